"""best, pareto, show, logs, command, rm: reading what a study measured. Nothing here touches a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sweep.cli import render
from sweep.cli.common import db_option, fraction, is_tty, json_option, print_json, study_argument
from sweep.cli.completion import studies
from sweep.cli.ranking_text import print_groups, print_ranking
from sweep.cli.trial_text import print_trial
from sweep.errors import BusyError, UsageError
from sweep.model import ArmConfig

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
@click.option("--where", metavar="CONDITION", help="Only these, e.g. 'draft_tokens<=8 and concurrency==32'.")
@click.option("--within", metavar="1%", help="Only what is at most this much worse than the first.")
@click.option(
    "--per", type=click.Choice(["host", "category", "concurrency", "draft_model"]), help="A ranking for each."
)
@click.option("--limit", type=click.IntRange(min=1), help="How many to show.  [default: 10; with --per 1 of each]")
@click.option("--lossy", is_flag=True, help="Rank the arms with relaxed acceptance, which may change the answers.")
@db_option
@json_option
def best(
    study: str | None,
    objective: str | None,
    where: str | None,
    within: str | None,
    per: str | None,
    limit: int | None,
    lossy: bool,
    db_url: str,
    as_json: bool,
) -> None:
    """The best configurations of STUDY against the baseline and against the engine's own choice."""
    from storage import queries

    with open_store(db_url) as store:
        answer = queries.best(
            store,
            store.study(study).id,
            objective=objective,
            where=where,
            within=None if within is None else fraction(within, "--within"),
            per=per,
            limit=limit or (10 if per is None else 1),
            lossy=lossy,
        )
    if as_json:
        print_json(answer)
    elif per is None:
        print_ranking(answer)
    else:
        print_groups(answer)


def print_best(store: Store, study: str) -> None:
    """What `best` prints, for the end of a run."""
    from storage import queries

    print_ranking(queries.best(store, store.study(study).id))


@click.command()
@study_argument
@click.option("--objectives", metavar="A,B[,C]", help="METRIC@CONCURRENCY each; default: the study's own.")
@db_option
@json_option
def pareto(study: str | None, objectives: str | None, db_url: str, as_json: bool) -> None:
    """The Pareto front of STUDY over its objectives, the baseline included, with its hypervolume."""
    from storage.pareto import pareto as front

    wanted = None if objectives is None else [part.strip() for part in objectives.split(",")]
    with open_store(db_url) as store:
        answer = front(store, store.study(study).id, wanted)
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
            ArmConfig.from_dict(point["config"]).label(),
        ]
        for point in points
    ]
    render.table(
        ["trial", "on front", *(f"{key} ({answer['directions'][key]})" for key in keys), "configuration"], rows
    )
    if answer["hypervolume"] is not None:
        click.echo(
            f"hypervolume: {answer['hypervolume']:.3f} of the box between worst and best, "
            f"{render.number(answer['over_baseline'], 3)} beyond the baseline"
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
@click.argument("study", shell_complete=studies)
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
