"""compare and history: one study against another, one configuration over all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, fraction, json_option, print_json, study_argument
from sweep.cli.completion import studies
from sweep.cli.query import open_store
from sweep.errors import SweepError


@click.command()
@click.argument("study_a", shell_complete=studies)
@click.argument("study_b", shell_complete=studies)
@click.option("--fail-on", metavar="3%", help="Exit 1 where an arm is lost, or shown to be worse by more than this.")
@click.option("--db-b", metavar="URL", help="Database of STUDY_B; default: the same.")
@db_option
@json_option
def compare(study_a: str, study_b: str, fail_on: str | None, db_b: str | None, db_url: str, as_json: bool) -> None:
    """What got better or worse from STUDY_A to STUDY_B, for the same effective configurations."""
    from storage.comparison import compare as side_by_side

    limit = None if fail_on is None else fraction(fail_on, "--fail-on")
    with open_store(db_url) as store, open_store(db_b or db_url) as other:
        answer = side_by_side(store, store.study(study_a), other.study(study_b), fail_on=limit, after_store=other)
    if as_json:
        print_json(answer)
    else:
        _print(answer)
    if answer["regressions"]:
        sys.exit(SweepError.exit_code)


def _print(answer: Mapping[str, Any]) -> None:
    before, after = answer["studies"]
    if answer["simulated"]:
        click.echo(f"SIMULATED: studies {before!r} and {after!r} ran on simulated servers; no GPU was measured.")
    for difference in answer["differences"]:
        old, new = (_plain(value) for value in difference["values"])
        click.echo(f"differs: {difference['what']}: {old} -> {new}")
    rows: list[list[str]] = []
    for arm in answer["arms"]:
        trials = " -> ".join("baseline" if number is None else str(number) for number in arm["trials"])
        if arm["word"] is not None:
            rows.append([trials, arm["label"], " -> ".join(map(_plain, arm["verdicts"])), "", "", arm["word"]])
        for key, found in arm["objectives"].items():
            values = " -> ".join(render.number(value, 1) for value in found["values"])
            rows.append([trials, arm["label"], key, values, _change(found["change"]), found["word"].replace("_", " ")])
    render.table(["trials", "configuration", "objective", "values", "change (95 %)", "result"], rows)
    for name, labels in zip(answer["studies"], answer["only_in"], strict=True):
        if labels:
            click.echo(f"only in {name!r}: {', '.join(labels)}")
    if answer["fail_on"] is not None:
        for found in answer["regressions"]:
            what = "is lost" if found["change"] is None else f"{found['objective']} {_change(found['change'])}"
            click.echo(f"regression: {found['label']}: {what}", err=True)
        if not answer["regressions"]:
            click.echo(f"no regression beyond {100 * answer['fail_on']:g} %")


def _change(change: Mapping[str, Any] | None) -> str:
    if change is None:
        return render.NONE
    return render.percent(change["estimate"]) if change["low"] is None else render.interval(change)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or render.NONE
    return render.NONE if value is None else str(value)


@click.command()
@click.argument("trial", type=click.IntRange(min=0))
@study_argument
@click.option("--objective", metavar="METRIC@CONCURRENCY", help="Default: the study's first objective.")
@db_option
@json_option
def history(trial: int, study: str | None, objective: str | None, db_url: str, as_json: bool) -> None:
    """The configuration that TRIAL of STUDY effectively ran, over every study in the database."""
    from storage import comparison, details
    from storage.figures import parse

    with open_store(db_url) as store:
        row = store.study(study)
        found = details.find_trial(store, row.id, trial)
        config = found.effective.config if found.effective else found.config
        with store.database.read() as connection:
            goal = parse(connection, row, objective)
        runs = comparison.history(store, config, goal)
    if as_json:
        print_json({"config": config.as_dict(), "objective": goal.key, "runs": runs})
        return
    click.echo(f"{config.label()}, {goal.key}")
    columns = ["study", "trial", "finished", "engine", "host", "verdict", goal.key, "accept", "gain (95 %)"]
    rows = [
        [
            run["study"] + (" (simulated)" if run["simulated"] else ""),
            str(run["trial"]),
            render.clock(run["finished_at"]),
            run["engine_version"] or render.NONE,
            run["host"] or render.NONE,
            run["verdict"] or render.NONE,
            render.number(run["value"], 1),
            render.number(run["accept_length"]),
            render.interval(run["gain"]),
        ]
        for run in runs
    ]
    render.table(columns, rows)
