"""What a running study shows: a live table on a terminal, plain lines otherwise, nothing on stdout under --json."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

QUIET = {"progress", "block", "launch"}  # too frequent for plain lines


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far a study is. ``launches_left`` is a guess; ``best`` the best configuration so far in words."""

    finished: int
    wanted: int
    launches_left: int
    best: str | None


@dataclass(slots=True)
class _HostView:
    phase: str = "starting Ray"
    arm: str = ""
    trial: int | None = None
    since: float = field(default_factory=time.time)  # of the phase
    begun: float | None = None  # of the launch
    done: int = 0


class LiveProgress:
    """A ``sweep.seams.Listener`` that keeps a table up to date.

    ``outlook`` is asked after each launch, with the number of confirming launches so far.
    """

    def __init__(self, console: Console, title: str, hosts: Sequence[str], outlook: Callable[[int], Outlook]) -> None:
        self._title = title
        self._outlook = outlook
        self._hosts = {name: _HostView() for name in hosts}
        self._verdicts: Counter[str] = Counter()
        self._last = ""
        self._confirmed = 0
        self._seen: Outlook | None = None
        self._begun: float | None = None  # when the first launch began
        self._took: list[float] = []  # seconds of every launch that was measured to its end
        self._left_at: tuple[float, float] | None = None  # seconds left, as reckoned at this time
        self._live = Live(self._render(), console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left_at = None
        self._live.stop()

    def on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "progress" and event.get("phase") is None:
            return
        if name := event.get("host"):
            self._on_host(self._hosts.setdefault(name, _HostView()), kind, event)
        if kind in ("finished", "launched"):
            self._reckon(event)
        if (line := describe(event)) and kind not in QUIET:
            self._last = line

    def _on_host(self, host: _HostView, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "prepare":
            host.phase, host.since = "connecting", event["at"]
        elif kind in ("launch", "block", "progress"):
            phase = describe_phase(event)
            if phase != host.phase:
                host.phase, host.since = phase, event.get("since", event["at"])
            if kind == "launch":
                confirm = " (confirm)" if event.get("stage") == "confirm" else ""
                host.arm, host.trial, host.begun = event["arm"] + confirm, event.get("trial"), event["at"]
                self._begun = self._begun or event["at"]
        elif kind == "placing":
            host.phase = "looking for a Ray node"
        elif kind == "host_aside":
            host.phase, host.arm, host.trial = f"set aside: {event['why']}", "", None
        elif kind in ("finished", "launched"):
            if host.begun is not None and event["diagnosis"] is None:
                self._took.append(event["at"] - host.begun)
            host.done, host.phase, host.since = host.done + 1, "idle", event["at"]
            host.arm, host.trial, host.begun = "", None, None

    def _reckon(self, event: Mapping[str, Any]) -> None:
        """After a launch: counts, the best so far, and the time left at the pace so far."""
        self._confirmed += event["kind"] == "launched"
        if event["kind"] == "finished" and event.get("trial") is not None:
            self._verdicts[event["diagnosis"]["verdict"] if event["diagnosis"] else "complete"] += 1
        self._seen = self._outlook(self._confirmed)
        done = sum(host.done for host in self._hosts.values())
        if self._begun is not None and done > 1:  # one launch says little: the first of all is slower
            pace = (event["at"] - self._begun) / done
            self._left_at = (self._seen.launches_left * pace, event["at"])

    def _render(self) -> Group:
        table = Table(title=self._title, title_justify="left", expand=False, box=SIMPLE_HEAD, pad_edge=False)
        for column in ("host", "launches", "arm", "phase", "for", "launch"):
            table.add_column(column, overflow="fold")
        usual = f" of about {clock(median(self._took))}" if self._took else ""
        now = time.time()
        for name, host in sorted(self._hosts.items()):
            arm = f"#{host.trial} {host.arm}" if host.trial is not None else host.arm
            launch = "" if host.begun is None else clock(now - host.begun) + usual
            cells = (name, str(host.done), arm, host.phase, clock(now - host.since), launch)
            table.add_row(*map(Text, cells))  # names and errors may hold brackets, which rich would take for markup
        lines = [self._counts()]
        if self._seen is not None and self._seen.best:
            lines.append(f"best so far: {self._seen.best}")
        if self._last:
            lines.append(self._last)
        return Group(table, *(Text(line, overflow="ellipsis", no_wrap=True) for line in lines))

    def _counts(self) -> str:
        text = "trials: "
        if self._seen is None:
            text += "none yet"
        else:
            counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self._verdicts.items()))
            text += f"{self._seen.finished} of {self._seen.wanted} finished" + (f" ({counts})" if counts else "")
        if self._left_at is not None:
            seconds, at = self._left_at
            text += f"; about {clock(max(0.0, seconds - (time.time() - at)))} left"
        return text


class PlainProgress:
    """One line an event, for logs and pipes. Where nobody takes the lines any more (`| tee` was ended, the log's disk
    is full) the study goes on without them."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._heard = True

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event["kind"] in QUIET or not self._heard:
            return
        if line := describe(event):
            try:
                self._write(f"{time.strftime('%H:%M:%S', time.localtime(event['at']))} {line}")
            except OSError:
                self._heard = False


def describe_phase(event: Mapping[str, Any]) -> str:
    """The phase column: what a host does just now."""
    phase = "launching" if event["kind"] == "launch" else str(event.get("phase") or "benchmark")
    if (concurrency := event.get("concurrency")) is not None:
        phase += f", concurrency {concurrency}"
        if (turn := event.get("round")) is not None:
            phase += f", round {turn + 1}"
    return phase


def describe(event: Mapping[str, Any]) -> str | None:
    """One event as a line, None where it says nothing to a reader."""
    kind, host = event["kind"], event.get("host")
    if kind == "host_aside":
        return f"host {host} is set aside: {event['why']}"
    if kind == "given_up":
        return str(event["why"])
    if kind == "placing":
        return f"host {host} has no owner yet, tried again in {event['pause_s']:g} s: {event['why']}"
    if kind == "left_over":
        return f"host {host}: ended what an earlier run left: launches {', '.join(event['launches'])}"
    if kind == "unclean_stop":
        return f"host {host}: the end of launch {event['launch']} is not certain: {event['why']}"
    if kind == "stopping":
        return f"stopping: {event['why']}"
    if kind == "budget":
        return f"no further trials: {event['why']}"
    if kind == "warm_start":
        known = ", ".join(f"{item['study']} ({item['launches']} trials)" for item in event["studies"])
        return f"warm start from {known}" if known else "warm start: no study of this model and GPU is in the database"
    if kind == "search_ended":
        return f"the search has ended: {event['why']}"
    if kind == "screened":
        return f"{host}: {event['arm']} is stopped early: {event['why']}"
    if kind == "trial":
        return f"{host}: trial {event['trial']} {event['arm']} ({event['why']})"
    if kind == "requeued":
        return f"{host}: trial {event['trial']} will be tried again ({event['reason']})"
    if kind in ("finished", "launched"):
        who = f"trial {event['trial']} {event['arm']}" if event.get("trial") is not None else f"{event['arm']}"
        stage = " (confirm)" if kind == "launched" else ""
        if (diagnosis := event["diagnosis"]) is None:
            return f"{host}: {who}{stage} measured"
        return f"{host}: {who}{stage} {diagnosis['verdict']}: {diagnosis['evidence']} {diagnosis['advice']}"
    return None


def clock(seconds: float) -> str:
    """``75`` -> ``1:15``; hours where there are any."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, second = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"
