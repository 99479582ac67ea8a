"""start and resume: a study's run from the command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import finish
from sweep.cli.common import db_option, is_tty, json_option, print_json, study_argument
from sweep.cli.space_options import SpaceCommand, override_options, read, space_options
from sweep.cli.stop import say_given_up
from sweep.errors import BusyError, SweepError, UsageError

if TYPE_CHECKING:
    from storage.records import StudyRow
    from storage.store import Store
    from sweep.config import Overrides, StudySpec


@click.command(cls=SpaceCommand)
@partial(space_options, required=False)
@click.option("--url", metavar="URL", help="Measure the server that runs there; nothing is launched.")
@click.option("--baseline-url", metavar="URL", help="With --url: the same model without speculation, to compare with.")
@click.option("--detach", is_flag=True, help="Run in the background; survives logout.")
@finish.finish_options
@db_option
@json_option
def start(
    space: str | None,
    url: str | None,
    baseline_url: str | None,
    detach: bool,
    db_url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a study from SPACE, a search-space YAML or the bare name of a shipped one.

    With --url no server is launched: the one that runs there is measured, with SPACE's workload where given. Its key is
    taken from SWEEP_API_KEY.
    """
    from storage.store import Store
    from sweep import session
    from sweep.config import find

    if url is not None:
        _start_attached(space, url, baseline_url, db_url, as_json, options)
        return
    if baseline_url is not None:
        raise UsageError("--baseline-url goes with --url")
    if space is None:
        raise UsageError("SPACE is missing: a search-space YAML, or the bare name of a shipped one such as eagle3")
    spec = read(space, **options)
    with Store.open(db_url) as store:
        study = session.create(store, spec, find(space).read_text(encoding="utf-8"))
        if detach:
            _detach(study.name, db_url)
            return
        _run(store, study, spec, as_json)


@click.command()
@study_argument
@click.option(
    "--space", help="The YAML, extended: more trials, another drafter, a wider axis. The difference is shown."
)
@click.option("--detach", is_flag=True, help="Run in the background; survives logout.")
@finish.finish_options
@override_options
@db_option
@json_option
def resume(
    study: str | None,
    space: str | None,
    detach: bool,
    sets: tuple[str, ...],
    hosts: tuple[str, ...],
    trials: int | None,
    budget: str | None,
    until: str | None,
    db_url: str,
    as_json: bool,
) -> None:
    """Carry on STUDY (the newest where left out): what was running is tried again, nothing measured is lost."""
    from storage.store import Store
    from storage.upkeep import trimmed
    from sweep.config import Overrides, StudySpec

    with Store.open(db_url, create=False) as store:
        row = store.study(study)
        if trimmed(row):
            raise UsageError(
                f"the request rows of study {row.name!r} were deleted by `sweep db trim`: it can be read, not resumed"
            )
        old = StudySpec.parse(row.spec)
        overrides = Overrides(sets=sets, hosts=hosts, trials=trials, budget=budget, until=until, name=row.name)
        spec, text = _extended(old, row.yaml, space, overrides)
        _show_difference(store, row, old, spec, text, as_json)
        if detach:
            _detach(row.name, db_url)
            return
        _run(store, row, spec, as_json)


# What --url measures with where no SPACE is given; its space is never used.
_ATTACHED = """
name: url
model: {path: attached}
space: {algorithm: [NGRAM], num_draft_tokens: [8]}
workload: {prompts: builtin, concurrency: [1, 8], repeats: 2}
measurement: {engine_default: false}
"""


def _start_attached(
    space: str | None, url: str, baseline_url: str | None, db_url: str, as_json: bool, options: dict[str, Any]
) -> None:
    from storage.queries import summary
    from storage.store import Store
    from sweep import attached
    from sweep.cli.progress import PlainProgress
    from sweep.cli.query import print_best
    from sweep.config import Overrides, load_text

    if options.pop("simulate", None) is not None:
        raise UsageError("--simulate launches servers, --url measures one that runs: give one of them")
    if options.pop("warm_start", None) is not None:
        raise UsageError("--warm-start is for a search, and with --url nothing is searched")
    if space is not None:
        spec = read(space, simulate=None, **options)
    else:
        options["name"] = options["name"] or time.strftime("url-%Y%m%d-%H%M%S")
        spec = load_text(_ATTACHED, Overrides(**options), source="--url")
    progress = PlainProgress(lambda line: click.echo(line, err=as_json))
    with Store.open(db_url) as store:
        try:
            study = attached.measure(store, spec, url, baseline_url, os.environ.get("SWEEP_API_KEY"), progress)
        except SweepError as error:
            finish.tell({"study": spec.name, "simulated": False, "state": "stopped", "error": str(error)})
            raise
        answer = summary(store, study.id)
        finish.tell(answer)
        if as_json:
            print_json(answer)
        else:
            print_best(store, study.name)


def _run(store: Store, study: StudyRow, spec: StudySpec, as_json: bool) -> None:
    from storage.queries import summary
    from sweep import session
    from sweep.calibration import known_for

    calibrated = None if spec.references_only else known_for(store, spec)
    if calibrated is not None:
        for floor in calibrated["noise"]:
            click.echo(
                f"calibrated before ({calibrated['study']}): {floor['metric']}@{floor['concurrency']} resolves gains "
                f"from {100 * floor['minimum_detectable_gain']:.1f} % on",
                err=as_json,
            )
    begun = time.time()
    try:
        # Ray prints what it hears of its cluster; beside JSON that belongs on stderr.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            state = session.run(store, study, spec, make_progress(study, spec, as_json))
    except BusyError:
        raise  # another controller runs the study: it has not ended
    except SweepError as error:
        finish.tell({"study": study.name, "simulated": study.simulated, "state": "stopped", "error": str(error)})
        raise
    answer = summary(store, study.id)
    finish.tell(answer)
    if state == "stopped":
        say_given_up(store, study, begun)
    if as_json:
        print_json(answer)
    else:
        from sweep.cli.query import print_best

        ended = answer["search"]["ended"]
        click.echo(f"study {study.name!r} is {state}" + (f"; the search ended: {ended['why']}" if ended else ""))
        print_best(store, study.name)
        if state == "stopped":
            click.echo(f"`sweep resume {study.name}` carries it on")
    if state == "stopped":
        sys.exit(130)


def make_progress(study: StudyRow, spec: StudySpec, as_json: bool) -> Any:
    """The listener of a run: live on a terminal, plain lines otherwise (on stderr beside JSON)."""
    from rich.console import Console

    from sweep import pairing
    from sweep.agenda import launches_left
    from sweep.books import Books
    from sweep.cli.progress import LiveProgress, Outlook, PlainProgress
    from sweep.runner import RunSettings

    mode = pairing.choose(spec).mode

    def make(books: Books, settings: RunSettings) -> Any:
        def outlook(confirmed: int) -> Outlook:
            finished, wanted = books.trials_finished(), books.trials_wanted(settings.trials)
            top, launches = min(settings.confirm_top, wanted), settings.confirm_launches
            every = spec.measurement.baseline_every
            left = launches_left(wanted - finished, mode, every, top, launches, confirmed)
            return Outlook(finished, wanted, left, books.best_line())

        if as_json or not is_tty():
            return PlainProgress(lambda line: click.echo(line, err=as_json))
        title = study.name + (" (simulated)" if spec.simulated else "")
        return LiveProgress(Console(), title, [host.name for host in spec.hosts], outlook)

    return make


def _extended(old: StudySpec, yaml: str, space: str | None, overrides: Overrides) -> tuple[StudySpec, str]:
    """The study's specification with what the command line changes; ``--space`` replaces the YAML."""
    from sweep.calibration import only_references
    from sweep.config import find, load_space, load_stored, simulated

    changed = any((overrides.sets, overrides.hosts, overrides.trials, overrides.budget, overrides.until))
    if space is None and not changed:
        return old, yaml
    if space is None:
        text, spec = yaml, load_stored(old, yaml, overrides)
    else:
        text, spec = find(space).read_text(encoding="utf-8"), load_space(space, overrides)
    if space is not None and old.simulated_by_flag:
        spec = simulated(spec, old.simulate.profile if old.simulate else None, trials=overrides.trials)
    if old.references_only:
        spec = only_references(spec, old.measurement.calibrate_launches, old.measurement.wanted_gain)
    return spec, text


def _show_difference(store: Store, row: StudyRow, old: StudySpec, new: StudySpec, text: str, as_json: bool) -> None:
    from sweep import session
    from sweep.config import diff

    found = diff(old, new)
    if found.refused:
        lines = "\n".join(f"  {key}: {reason}" for key, reason in found.refused)
        raise UsageError(
            f"study {row.name!r} cannot be resumed with these changes:\n{lines}\nStart a new study with --name."
        )
    if found.allowed:
        for line in found.allowed:
            click.echo(f"changed: {line}", err=as_json)
        store.extend_study(
            row.id, spec=new.dump(), yaml=text, space_hash=session.space_hash(new), notes=list(found.allowed)
        )


def _detach(study: str, db_url: str) -> None:
    """Go on in a process of its own session, with its output in a file."""
    log = Path(f"{study}.log").resolve()
    command = [sys.executable, "-m", "sweep", "resume", study, "--db", db_url, *finish.arguments()]
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=dict(os.environ)
        )
    click.echo(f"study {study!r} runs in the background (pid {child.pid}), log {log}")
    click.echo(f"`sweep status {study}` shows it, `sweep stop {study}` ends it")
