"""db: check, back up and trim the database."""

from __future__ import annotations

from pathlib import Path

import click

from sweep.cli import render
from sweep.cli.common import db_option, is_tty, json_option, print_json
from sweep.cli.completion import studies as known_studies
from sweep.cli.query import open_store
from sweep.errors import StoreError, UsageError

GROWTH_FROM = 1000  # requests; below, the empty tables are most of the file


@click.group()
def db() -> None:
    """Check, back up or trim the database."""


@db.command()
@db_option
@json_option
def check(db_url: str, as_json: bool) -> None:
    """Is the file sound, and what takes its room? Exit 3 where it is damaged."""
    from storage import upkeep

    with open_store(db_url) as store:
        complaints = store.check()
        size, rows = upkeep.size_bytes(store), upkeep.sizes(store)
        answer = {"database": store.database.shown, "sound": not complaints, "complaints": complaints}
        answer |= {"bytes": size, "studies": rows}
    if as_json:
        print_json(answer)
    else:
        total = sum(row["requests"] for row in rows)
        click.echo(f"{answer['database']}: {'sound' if not complaints else 'DAMAGED'}" + _size(size))
        if size and total >= GROWTH_FROM:
            click.echo(
                f"about {size / total:.0f} bytes for each of {total} requests; `sweep db trim` lets go of old ones"
            )
        for complaint in complaints:
            click.echo(f"  {complaint}")
        if rows:
            columns = ["study", "state", "launches", "blocks", "requests"]
            table = [[str(row[name]) for name in columns[:-1]] + [_requests(row)] for row in rows]
            render.table(columns, table)
    if complaints:
        raise StoreError("the database is damaged. Copy it, then try `sqlite3 FILE .recover`, or go back to a backup.")


@db.command()
@click.argument("target", type=click.Path(path_type=Path))
@db_option
@json_option
def backup(target: Path, db_url: str, as_json: bool) -> None:
    """Copy the database to the new file TARGET, also while a study runs."""
    with open_store(db_url) as store:
        store.backup(target)
    size = target.stat().st_size
    if as_json:
        print_json({"path": str(target), "bytes": size})
    else:
        click.echo(f"{target}:" + _size(size).removeprefix(","))


@db.command()
@click.argument("studies", nargs=-1, shell_complete=known_studies)
@click.option(
    "--older-than", "days", metavar="DAYS", type=click.FloatRange(min=0), help="All that finished so long ago."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def trim(studies: tuple[str, ...], days: float | None, yes: bool, db_url: str, as_json: bool) -> None:
    """Delete the request rows of finished STUDIES. Their trials, blocks, gains and reports stay; they can no longer be
    resumed, and exports have no requests of them."""
    from storage import upkeep

    if bool(studies) == (days is not None):
        raise UsageError("name studies, or say --older-than DAYS")
    with open_store(db_url) as store:
        chosen = upkeep.to_trim(store, studies, days)
        names = [study.name for study in chosen]
        before = upkeep.size_bytes(store)
        if chosen and not yes:
            if not is_tty():
                raise UsageError(f"this deletes the request rows of {', '.join(names)} for good; add --yes to do it")
            click.confirm(f"Delete the request rows of {', '.join(names)} for good?", abort=True)
        gone = upkeep.trim(store, chosen) if chosen else 0
        after = upkeep.size_bytes(store)
    if as_json:
        print_json({"studies": names, "requests": gone, "bytes_before": before, "bytes_after": after})
    elif not names:
        click.echo("nothing to trim")
    else:
        click.echo(
            f"{gone} request rows of {', '.join(names)} deleted" + _size(before) + " before" + _size(after) + " now"
        )


def _size(size: int | None) -> str:
    return "" if size is None else f", {size / 1e6:.1f} MB"


def _requests(row: dict[str, object]) -> str:
    return "trimmed" if row["trimmed"] else str(row["requests"])
