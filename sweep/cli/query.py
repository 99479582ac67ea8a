"""best, pareto, show, logs, command, export, rm: reading what a study measured. Nothing here touches a host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, is_tty, json_option, print_json, study_argument
from sweep.cli.trial_text import print_trial
from sweep.errors import BusyError, UsageError

if TYPE_CHECKING:
    from storage.records import StudyRow
    from storage.store import Store


def open_store(db_url: str) -> Store:
    """The database of a query: it must be there already."""
    from storage.store import Store

    return Store.open(db_url, create=False)


@click.command()
@study_argument
@click.option("--objective", metavar="METRIC@CONCURRENCY", help="Rank by this; default: the first objective.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many to show.")
@click.option("--lossy", is_flag=True, help="Rank the arms with relaxed acceptance, which may change the answers.")
@db_option
@json_option
def best(study: str | None, objective: str | None, limit: int, lossy: bool, db_url: str, as_json: bool) -> None:
    """The best configurations of STUDY against the baseline and against the engine's own choice."""
    from storage import queries

    with open_store(db_url) as store:
        answer = queries.best(store, store.study(study).id, objective=objective, limit=limit, lossy=lossy)
    if as_json:
        print_json(answer)
    else:
        _print_best(answer)


def print_best(store: Store, study: str) -> None:
    """What `best` prints, for the end of a run."""
    from storage import queries

    _print_best(queries.best(store, store.study(study).id))


def _print_best(answer: dict[str, Any]) -> None:
    render.banner(answer)
    for line in render.headline(answer):
        click.echo(line)
    for name in ("baseline", "engine_default"):
        levels = answer[name]["by_objective"]
        if levels:
            what = "no speculation" if name == "baseline" else "engine default"
            click.echo(f"{what}: " + ", ".join(f"{key} {render.number(value, 1)}" for key, value in levels.items()))
    if not answer["best"]:
        return
    value = answer["objective"]
    columns = ["rank", "trial", "configuration", value, "tok/s", "accept", "break-even", "gain (95 %)"]
    columns += ["over engine default", "stage", "result", "flags"]
    rows = [
        [
            str(row["rank"]),
            str(row["trial"]),
            row["label"],
            render.number(row["value"], 1),
            render.number(row["throughput"], 1),
            render.number(row["accept_length"]),
            render.number(row["break_even_accept_length"]),
            render.interval(row["gain"]),
            render.interval(row["gain_over_engine_default"]),
            row["gain"]["stage"] if row["gain"] else render.NONE,
            row["comparison"] if row["feasible"] else f"{row['comparison']}, breaks a constraint",
            ", ".join(row["flags"]),
        ]
        for row in answer["best"]
    ]
    if value.startswith("output_throughput@"):
        columns.pop(4)
        for cells in rows:
            cells.pop(4)
    click.echo()
    render.table(columns, rows)
    if answer["ranked"] > len(rows):
        click.echo(f"{answer['ranked'] - len(rows)} more; --limit shows them.")
    ties = [row["rank"] for row in answer["best"]]
    if len(set(ties)) < len(ties):
        click.echo("Equal ranks are ties: the measurement cannot tell them apart; the cheaper arm stands first.")


@click.command()
@study_argument
@db_option
@json_option
def pareto(study: str | None, db_url: str, as_json: bool) -> None:
    """The Pareto front of STUDY over its objectives, the baseline included."""
    from storage.pareto import pareto as front

    with open_store(db_url) as store:
        answer = front(store, store.study(study).id)
    if as_json:
        print_json(answer)
        return
    render.banner(answer)
    points = [point for point in answer["points"] if point["on_front"] or point["is_baseline"]]
    if not points:
        click.echo("No complete trial has a figure in every objective yet.")
        return
    keys = answer["objectives"]
    first, direction = keys[0], answer["directions"][keys[0]]
    points.sort(key=lambda point: point["values"][first], reverse=direction == "maximize")
    rows = [
        [
            "baseline" if point["is_baseline"] else str(point["trial"]),
            "yes" if point["on_front"] else "no",
            *(render.number(point["values"][key], 2) for key in keys),
            "no speculation" if point["is_baseline"] else render.config_text(point["config"]),
        ]
        for point in points
    ]
    render.table(
        ["trial", "on front", *(f"{key} ({answer['directions'][key]})" for key in keys), "configuration"], rows
    )
    hidden = len(answer["points"]) - len(points)
    if hidden:
        click.echo(f"{hidden} more points lie behind the front; --json has them.")


@click.command()
@click.argument("trial", type=click.IntRange(min=0))
@study_argument
@db_option
@json_option
def show(trial: int, study: str | None, db_url: str, as_json: bool) -> None:
    """TRIAL (its number) of STUDY with its launches, blocks, asked and effective configuration, and evidence."""
    from storage import details

    with open_store(db_url) as store:
        answer = details.show(store, store.study(study).id, trial)
    if as_json:
        print_json(answer)
    else:
        print_trial(answer)


@click.command()
@click.argument("trial", type=click.IntRange(min=0))
@study_argument
@click.option("-n", "lines", type=click.IntRange(min=1), default=50, show_default=True, help="How many last lines.")
@db_option
@json_option
def logs(trial: int, study: str | None, lines: int, db_url: str, as_json: bool) -> None:
    """The last lines of the server log of TRIAL's newest launch."""
    from storage import details

    with open_store(db_url) as store:
        row = store.study(study)
        launch, found = details.log_lines(store, row.id, trial, lines)
    if as_json:
        head = {"study": row.name, "simulated": row.simulated, "trial": trial, "launch": launch.id}
        print_json({**head, "host": launch.host, "log_path": launch.log_path, "lines": found})
        return
    for line in found:
        click.echo(line)
    if not found:
        where = f"{launch.host}:{launch.log_path}" if launch.log_path else f"launch {launch.id} has none"
        click.echo(f"no log lines are stored yet; the log: {where}", err=True)


@click.command()
@click.argument("trial", type=click.IntRange(min=0))
@study_argument
@db_option
@json_option
def command(trial: int, study: str | None, db_url: str, as_json: bool) -> None:
    """The exact launch command of TRIAL, quoted for a shell. Secrets are not in it."""
    from storage import details

    with open_store(db_url) as store:
        answer = details.launch_command(store, store.study(study).id, trial)
    if as_json:
        print_json(answer)
        return
    if answer["simulated"]:
        click.echo("# SIMULATED: starts a simulated server, not an inference engine")
    click.echo(answer["command"])


@click.command()
@study_argument
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), default="csv", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="New folder (json: new file).")
@db_option
@json_option
def export(study: str | None, kind: str, output: Path, db_url: str, as_json: bool) -> None:
    """Write STUDY's trials, blocks, requests and gains: a folder of CSV or Parquet tables, or one JSON file."""
    from storage.export import export as write

    with open_store(db_url) as store:
        answer = write(store, store.study(study), kind, output)
    if as_json:
        print_json(answer)
        return
    render.banner(answer)
    click.echo(f"{output}: " + ", ".join(f"{count} {name}" for name, count in answer["rows"].items()))


@click.command()
@click.argument("study")
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def rm(study: str, yes: bool, db_url: str, as_json: bool) -> None:
    """Delete STUDY and everything measured in it."""
    with open_store(db_url) as store:
        row = store.study(study)
        _refuse_running(row)
        if not yes:
            if not is_tty():
                raise UsageError(f"this deletes study {row.name!r} and all its measurements; add --yes to do it")
            count = len(store.trials(row.id))
            click.confirm(f"Delete study {row.name!r} with {count} trials and their measurements?", abort=True)
        store.delete_study(row.id)
    if as_json:
        print_json({"study": row.name, "simulated": row.simulated, "deleted": True})
    else:
        click.echo(f"deleted study {row.name!r}")


def _refuse_running(study: StudyRow) -> None:
    from sweep.controller import controlled

    if controlled(study):
        assert study.controller is not None
        raise BusyError(
            f"study {study.name!r} is run by process {study.controller['pid']} on {study.controller['hostname']}; "
            f"`sweep stop {study.name}` first"
        )
