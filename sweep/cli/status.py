"""status and ls: how studies are doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, is_tty, json_option, print_json, study_argument
from sweep.cli.progress import clock
from sweep.sentences import headline

if TYPE_CHECKING:
    from storage.records import StudyRow

WATCH_S = 1.0
STARTING_S = 60.0  # from a study's row to its controller, which `--detach` starts as a process of its own


@click.command()
@study_argument
@click.option("--watch", is_flag=True, help="Follow the study until it stops; with --json its last state alone.")
@db_option
@json_option
def status(study: str | None, watch: bool, db_url: str, as_json: bool) -> None:
    """How STUDY (the newest where left out) is doing."""
    from storage import queries
    from storage.store import Store

    with Store.open(db_url, create=False) as store:

        def look() -> dict[str, Any]:
            row = store.study(study)
            return _living(queries.status(store, row.id), row)

        def best() -> list[str]:
            return headline(queries.best(store, store.study(study).id))

        answer = look()
        if watch and is_tty() and not as_json:
            _watch(answer, look, best)
            return
        while True:
            going_on = watch and answer["state"] == "running"
            if as_json and not going_on:
                print_json(answer)
            elif not as_json:
                for line in lines(answer, best()):
                    click.echo(line)
            if not going_on:
                return
            time.sleep(WATCH_S)  # the next look
            answer = look()


def _watch(answer: dict[str, Any], look: Callable[[], dict[str, Any]], best: Callable[[], list[str]]) -> None:
    """On a terminal: one picture that is drawn anew; its last state stays."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def picture(found: dict[str, Any]) -> Text:
        return Text("\n".join(lines(found, best())))

    with Live(picture(answer), console=Console(highlight=False), auto_refresh=False) as live:
        while answer["state"] == "running":
            time.sleep(WATCH_S)  # the next look
            answer = look()
            live.update(picture(answer), refresh=True)


@click.command()
@db_option
@json_option
def ls(db_url: str, as_json: bool) -> None:
    """List the studies in the database, the newest first."""
    from storage import queries
    from storage.store import Store

    with Store.open(db_url, create=False) as store:
        rows = {row.name: row for row in store.studies()}
        found = [item | {"state": _living(item, rows[item["study"]])["state"]} for item in queries.studies(store)]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No study yet: `sweep start SPACE.yaml` makes one.")
    else:
        render.table(
            ["study", "state", "engine", "started", "trials"],
            [
                [item["study"], item["state"], item["engine"], _when(item["created_at"]), _counts(item["counts"])]
                for item in found
            ],
        )


def _living(answer: dict[str, Any], row: StudyRow) -> dict[str, Any]:
    """A study whose controller is gone is not running, whatever its row says."""
    from sweep.controller import controlled

    starting = row.controller is None and time.time() - row.created_at < STARTING_S
    if answer["state"] == "running" and not starting and not controlled(row):
        why = "it was never begun" if row.controller is None else "its controller was killed"
        return {**answer, "state": "stopped", "note": f"{why}; `sweep resume {row.name}` carries it on"}
    return {**answer, "note": None}


def lines(answer: dict[str, Any], best: list[str]) -> list[str]:
    """What ``status`` says of its answer; ``best`` is the headline of the ranking."""
    marks = " (simulated)" if answer["simulated"] else ""
    out = [
        f"{answer['study']}{marks}: {answer['state']}" + (f", {answer['note']}" if answer["note"] else ""),
        f"trials: {_counts(answer['counts'])}",
        f"launches: {answer['launches']['search']} of the search, {answer['launches']['total']} in all; "
        f"{answer['gpu_hours']:.2f} GPU-hours" + (" of simulated GPUs" if answer["simulated"] else ""),
        *search_lines(answer["search"]),
    ]
    for host in sorted(answer["hosts"], key=lambda host: str(host["name"])):
        note = f" ({host['note']})" if host["note"] else ""
        out.append(f"host {host['name']}: {_doing(host)}{note}")
    return [*out, *best]


def _doing(host: dict[str, Any]) -> str:
    """The host's launch, how long it has run, and how long such launches take."""
    if host["phase"] is None:
        return str(host["state"]).replace("_", " ")
    trial = f"trial {host['trial']} " if host["trial"] is not None else ""
    stage = " (confirm)" if host["stage"] == "confirm" else ""
    usual = f" of about {clock(host['expected_s'])}" if host["expected_s"] is not None else ""
    phase = str(host["phase"]).replace("_", " ")
    why = f"; proposed: {host['why']}" if host["why"] else ""
    return f"{trial}{host['arm']}{stage}: {phase}, {clock(time.time() - host['begun_at'])}{usual}{why}"


def search_lines(search: Mapping[str, Any]) -> list[str]:
    """What `status` says of the search: what is left to find, or why it has ended; what it began with."""
    out = []
    if search["warm_start"]:
        known = ", ".join(f"{item['study']} ({item['launches']} trials)" for item in search["warm_start"])
        out.append(f"warm start from {known}")
    if search["ended"] is not None:
        out.append(f"search ended: {search['ended']['why']}")
    elif search["regret"] is not None:
        left = search["launches_left"]
        out.append(
            f"left to find: {100 * search['regret']:.1f} % over the best measured configuration, by the cost model"
            + (f"; it stops at {100 * search['tolerance']:.1f} %" if search["tolerance"] is not None else "")
            + (f", after about {left} more launch{'es' if left != 1 else ''}" if left else "")
        )
    return out


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none yet"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
