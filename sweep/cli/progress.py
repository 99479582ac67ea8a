"""What a running study shows: a live table on a terminal, plain lines otherwise, nothing on stdout under --json."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

QUIET = {"progress", "block", "launch"}  # too frequent for plain lines


@dataclass(slots=True)
class _HostView:
    phase: str = "connecting"
    arm: str = ""
    trial: int | None = None
    since: float = field(default_factory=time.time)
    done: int = 0
    note: str = ""


class LiveProgress:
    """A ``sweep.seams.Listener`` that keeps a table up to date.

    ``best`` returns the line for the best configuration so far; ``left`` the seconds left, None where unknown.
    """

    def __init__(
        self, console: Console, title: str, best: Callable[[], str | None], left: Callable[[int], float | None]
    ) -> None:
        self._title = title
        self._best = best
        self._left = left
        self._hosts: dict[str, _HostView] = {}
        self._verdicts: Counter[str] = Counter()
        self._last = ""
        self._best_line: str | None = None
        self._live = Live(self._render(), console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "progress" and event.get("phase") is None:
            return
        if name := event.get("host"):
            host = self._hosts.setdefault(name, _HostView())
            if kind in ("launch", "block", "progress"):
                host.phase = describe_phase(event)
                host.since = event.get("since", event["at"])
                if kind == "launch":
                    host.arm, host.trial = event["arm"], event.get("trial")
            elif kind == "host_aside":
                host.phase, host.note = "set aside", event["why"]
        if kind == "finished":
            host = self._hosts[event["host"]]
            host.done, host.phase, host.arm = host.done + 1, "idle", ""
            if event.get("trial") is not None:
                verdict = event["diagnosis"]["verdict"] if event["diagnosis"] else "complete"
                self._verdicts[verdict] += 1
            self._best_line = self._best()
        if (line := describe(event)) and kind not in QUIET:
            self._last = line

    def _render(self) -> Group:
        table = Table(title=self._title, title_justify="left", expand=False)
        for column in ("host", "launches", "arm", "phase", "for"):
            table.add_column(column)
        for name, host in sorted(self._hosts.items()):
            arm = f"#{host.trial} {host.arm}" if host.trial is not None else host.arm
            table.add_row(name, str(host.done), arm, host.note or host.phase, clock(time.time() - host.since))
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self._verdicts.items())) or "none yet"
        left = self._left(sum(self._verdicts.values()))
        lines = [f"trials: {counts}" + (f"   about {clock(left)} left" if left is not None else "")]
        if self._best_line:
            lines.append(f"best so far: {self._best_line}")
        if self._last:
            lines.append(self._last)
        return Group(table, *(Text(line, overflow="ellipsis") for line in lines))


class PlainProgress:
    """One line an event, for logs and pipes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event["kind"] in QUIET:
            return
        if line := describe(event):
            self._write(f"{time.strftime('%H:%M:%S', time.localtime(event['at']))} {line}")


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
    if kind == "left_over":
        return f"host {host}: ended what an earlier run left: launches {', '.join(event['launches'])}"
    if kind == "unclean_stop":
        return f"host {host}: the end of launch {event['launch']} is not certain: {event['why']}"
    if kind == "stopping":
        return f"stopping: {event['why']}"
    if kind == "budget":
        return f"no further trials: {event['why']}"
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
