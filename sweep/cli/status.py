"""status and ls: how studies are doing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sweep.cli.common import db_option, is_tty, json_option, print_json, study_argument

if TYPE_CHECKING:
    from storage.records import StudyRow

WATCH_S = 1.0


@click.command()
@study_argument
@click.option("--watch", is_flag=True, help="Follow the study until it stops.")
@db_option
@json_option
def status(study: str | None, watch: bool, db_url: str, as_json: bool) -> None:
    """How STUDY (the newest where left out) is doing."""
    from storage import queries
    from storage.store import Store

    with Store.open(db_url, create=False) as store:
        while True:
            row = store.study(study)
            answer = _living(queries.status(store, row.id), row)
            if as_json:
                print_json(answer)
            else:
                if watch and is_tty():
                    click.clear()
                _print(answer)
            if not watch or answer["state"] != "running":
                return
            time.sleep(WATCH_S)  # the next look


@click.command()
@db_option
@json_option
def ls(db_url: str, as_json: bool) -> None:
    """List the studies in the database, the newest first."""
    from rich.console import Console
    from rich.table import Table

    from storage import queries
    from storage.store import Store

    with Store.open(db_url, create=False) as store:
        found = queries.studies(store)
    if as_json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("study", "state", "engine", "started", "trials"):
        table.add_column(column)
    for item in found:
        table.add_row(item["study"], item["state"], item["engine"], _when(item["created_at"]), _counts(item["counts"]))
    Console().print(table)


def _living(answer: dict[str, Any], row: StudyRow) -> dict[str, Any]:
    """A study whose controller is gone is not running, whatever its row says."""
    from sweep.controller import controlled

    if answer["state"] == "running" and row.controller is not None and not controlled(row):
        return {**answer, "state": "stopped", "note": "its controller was killed; `sweep resume` carries it on"}
    return {**answer, "note": None}


def _print(answer: dict[str, Any]) -> None:
    marks = " (simulated)" if answer["simulated"] else ""
    click.echo(f"{answer['study']}{marks}: {answer['state']}" + (f", {answer['note']}" if answer["note"] else ""))
    click.echo(f"trials: {_counts(answer['counts'])}")
    click.echo(
        f"launches: {answer['launches']['search']} of the search, {answer['launches']['total']} in all; "
        f"{answer['gpu_hours']:.2f} GPU-hours" + (" of simulated GPUs" if answer["simulated"] else "")
    )
    for line in search_lines(answer["search"]):
        click.echo(line)
    for host in answer["hosts"]:
        if host["phase"] is None:
            doing = host["state"]
        else:
            trial = f"trial {host['trial']} " if host["trial"] is not None else ""
            doing = f"{trial}{host['arm']}: {host['phase']} for {int(time.time() - host['since'])} s"
            doing += f"; proposed: {host['why']}" if host["why"] else ""
        click.echo(f"host {host['name']}: {doing}" + (f" ({host['note']})" if host["note"] else ""))


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
