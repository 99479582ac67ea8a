"""report and ui: a study as one page, written to a file or served while it runs."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import click

from sweep.cli import render
from sweep.cli.common import db_option, json_option, print_json, study_argument
from sweep.cli.query import open_store
from sweep.errors import SweepError, UsageError


@click.command()
@study_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: STUDY.html or STUDY.md.")
@click.option("--format", "kind", type=click.Choice(["html", "md"]), default=None, help="Default: by the file's name.")
@click.option("--objective", metavar="METRIC@CONCURRENCY", help="Rank by this; default: the first objective.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@db_option
@json_option
def report(
    study: str | None,
    output: Path | None,
    kind: str | None,
    objective: str | None,
    force: bool,
    db_url: str,
    as_json: bool,
) -> None:
    """Write STUDY as one self-contained HTML page (or Markdown for a pull request; `-o -` prints it)."""
    from sweep.report.facts import collect

    if as_json and str(output) == "-":
        raise UsageError("`-o -` and --json both want standard output: name a file, or leave --json out")
    kind = kind or ("md" if output is not None and output.suffix in (".md", ".markdown") else "html")
    with render.busy() as say:
        say("reading the study")
        with open_store(db_url) as store:
            row = store.study(study)
            facts = collect(store, row, objective=objective)
        say("drawing the page")
        if kind == "md":
            from sweep.report.markdown import render as markdown

            text = markdown(facts)
        else:
            from sweep.report.page import render as page

            text = page(facts)
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    target = output or Path(f"{row.name}.{kind}")
    _write(target, text, force)
    if as_json:
        print_json({"study": row.name, "simulated": row.simulated, "format": kind, "path": str(target)})
    else:
        click.echo(f"{target}: {facts.headline[0]}")


def _write(target: Path, text: str, force: bool) -> None:
    """The whole file or none of it."""
    if target.exists() and not force:
        raise UsageError(f"{target} exists already; name another file or add --force")
    scratch = target.with_name(f".{target.name}.part")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(target)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise SweepError(f"cannot write {target}: {error.strerror or error}. Check room and permissions.") from error


@click.command()
@study_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the report page; default: a free one.")
@db_option
def ui(study: str | None, port: int, db_url: str) -> None:
    """Serve STUDY's report on this machine's loopback, following it while it runs; with optuna-dashboard where the
    extra `dashboard` is installed. Ctrl-C ends it."""
    from sweep.report.live import dashboard, serve

    with open_store(db_url) as store:
        row = store.study(study)
        with serve(store, row.id, port) as url, dashboard(store, row) as board:
            click.echo(f"report of study {row.name!r}: {url}")
            if board is None:
                click.echo("optuna-dashboard is not installed: pip install 'specsweep[dashboard]' adds it")
            else:
                click.echo(f"optuna-dashboard of the study as it is now: {board}")
            click.echo("Ctrl-C ends it." if board is None else "Ctrl-C ends both.")
            try:
                Event().wait()
            except KeyboardInterrupt:
                click.echo()
