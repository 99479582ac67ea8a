"""A study from command to state: the composition root. Everything is put together here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from launchers.locks import this_holder
from search_spaces.space import SearchSpace
from storage.records import StudyRow, StudyState
from storage.store import Store
from sweep import __version__
from sweep.analysis import AnalysisSettings
from sweep.assembly import host_states, next_epoch, requests_of
from sweep.books import Books
from sweep.config import StudySpec, secret_env
from sweep.controller import controlled
from sweep.errors import BusyError
from sweep.model import Stage
from sweep.outputs import OutputCheck
from sweep.pins import added_pins
from sweep.planning import make_plan, outputs_comparable, prompts_of, slo
from sweep.pool import Pool, RayPool
from sweep.proposing import Proposing, proposer_of
from sweep.ray_address import configured
from sweep.runner import Runner, RunSettings
from sweep.seams import Listener
from sweep.warmstart import WarmStart, sources


class Progress(AbstractContextManager["Progress"], Listener, Protocol):
    """A listener that is entered while the study runs."""


MakeProgress = Callable[[Books, RunSettings], Progress]


def create(store: Store, spec: StudySpec, yaml: str) -> StudyRow:
    """A new study row. Raises StudyExistsError, which names `resume`, and ConfigError for what can never run."""
    # Refused before there is a row: a secret that is not there, a space without a servable configuration, a warm start
    # from what is not there.
    secret_env(spec, os.environ)
    SearchSpace.from_spec(spec)
    if isinstance(spec.warm_start, str):
        sources(store, spec, frozenset())  # which GPUs there are is not known yet
    return store.create_study(
        spec.name,
        engine=spec.engine,
        spec=spec.dump(),
        yaml=yaml,
        space_hash=space_hash(spec),
        seed=spec.seed,
        tool_version=__version__,
        objectives=spec.goals,
        constraints=spec.limits,
        simulated=spec.simulated,
        profile=spec.simulate.profile if spec.simulated and spec.simulate else None,
        notes=[{"pin": pin.flag, "value": pin.value, "why": pin.why} for pin in added_pins(spec)],
    )


def space_hash(spec: StudySpec) -> str:
    """12 hex digits over axes and pins."""
    dump = spec.dump()
    text = json.dumps([dump["space"], dump["server"], dump["model"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run(store: Store, study: StudyRow, spec: StudySpec, make_progress: MakeProgress, pool: Pool | None = None) -> str:
    """Run a study to its next state: ``finished`` or ``stopped``. Raises SweepError; the study stays resumable."""
    secrets = secret_env(spec, os.environ)
    _take(store, study)
    state = StudyState.STOPPED
    try:
        store.set_state(study.id, StudyState.RUNNING)
        prompts = prompts_of(spec)
        books = make_books(store, study, spec)
        books.recover("the controller ended while this was running")
        settings = _run_settings(spec)
        progress = make_progress(books, settings)
        runner = Runner(
            store=store,
            books=books,
            pool=pool or RayPool(configured(spec.ray.address)),
            hosts=host_states(store, study, spec, prompts),
            settings=settings,
            plans={stage: make_plan(spec, stage, prompts) for stage in Stage},
            request=requests_of(spec, secrets),
            renew_owner=lambda old: replace(old, owner=replace(old.owner, epoch=next_epoch(old.owner.epoch))),
            listener=progress,
            outputs=_outputs(store, study) if outputs_comparable(spec) else None,
            slo=slo(spec),
        )
        with progress:
            state = StudyState(_drive(runner))
    finally:
        store.set_state(study.id, state)
        store.set_controller(study.id, None)
    return state.value


def _drive(runner: Runner) -> str:
    """Run under Ctrl-C. While Ray starts there is nothing to end cleanly, so that one is enough."""
    with _interruptible():
        try:
            runner.open()
            return asyncio.run(_run_stoppable(runner))
        except (KeyboardInterrupt, SystemExit):  # while owners start; the latter is Ray's own answer to SIGTERM
            return StudyState.STOPPED.value
        finally:
            runner.pool.close()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP mean what Ctrl-C means."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    """What ends a study; SIGHUP only where nobody (nohup) told us to live on."""
    hup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hup]


async def _run_stoppable(runner: Runner) -> str:
    """The first signal asks for a clean stop, the second for one without grace; more end the waiting."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def interrupted() -> None:
        if len(stops) < 2:
            why = "interrupted again, without grace" if stops else "interrupted"
            stops.append(loop.create_task(runner.stop(why, now=bool(stops))))
        else:
            task.cancel()

    numbers = _signals()
    for number in numbers:
        loop.add_signal_handler(number, interrupted)
    try:
        return await runner.run()
    except asyncio.CancelledError:
        return StudyState.STOPPED.value
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# ---------------------------------------------------------------------------------------------- who runs a study


def _take(store: Store, study: StudyRow) -> None:
    """Become the study's controller; BusyError where another one lives."""
    mine = this_holder()
    seen = study.controller
    rival = controlled(study) and seen != mine.as_dict()  # ourselves: a run that could not even let go, on a full disk
    if rival or not store.take_controller(study.id, mine.as_dict(), seen=seen):
        other = store.study_by_id(study.id).controller or mine.as_dict()
        raise BusyError(
            f"study {study.name!r} is run by process {other['pid']} of {other['user']} on {other['hostname']}. "
            f"`sweep status {study.name} --watch` follows it, `sweep stop {study.name}` ends it."
        )


# ---------------------------------------------------------------------------------------------- parts


def _outputs(store: Store, study: StudyRow) -> OutputCheck:
    """As the last run of this study left it."""
    events = [event for kind in ("outputs_open", "outputs") for event in store.events(study.id, kind=kind)]
    return OutputCheck.resumed((e.kind, e.host, e.detail) for e in sorted(events, key=lambda event: event.id))


def _run_settings(spec: StudySpec) -> RunSettings:
    measurement = spec.measurement
    return RunSettings(
        trials=0 if spec.references_only else spec.budget.trials,
        deadline=_deadline(spec),
        max_attempts=measurement.max_attempts,
        confirm_top=measurement.confirm_top,
        confirm_launches=measurement.confirm_launches,
        retry_pause_s=0.5 if spec.simulated else 10.0,
        screening=measurement.screening,
    )


def _deadline(spec: StudySpec) -> float | None:
    """The earlier of `hours` from now and the next `until` o'clock, Unix seconds."""
    ends: list[float] = []
    if spec.budget.hours is not None:
        ends.append(time.time() + spec.budget.hours * 3600)
    if spec.budget.until is not None:
        hour, minute = map(int, spec.budget.until.split(":"))
        now = datetime.now().astimezone()
        end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        ends.append((end if end > now else end + timedelta(days=1)).timestamp())
    return min(ends, default=None)


def make_books(store: Store, study: StudyRow, spec: StudySpec) -> Books:
    proposing = Proposing(
        proposer_of(spec, SearchSpace.from_spec(spec)), WarmStart(store, study, spec) if spec.warm_start else None
    )
    analysis = AnalysisSettings(
        bracket_tolerance=spec.measurement.tolerance,
        ignore_eos=spec.workload.ignore_eos,
        slo=slo(spec),
        wanted_gain=spec.measurement.wanted_gain,
        metrics=tuple(
            dict.fromkeys([*(goal.metric for goal in spec.goals), "output_throughput", "ttft_p50", "tpot_p50"])
        ),
    )
    return Books(
        store,
        study.id,
        f"{study.name}-{int(study.created_at)}",
        proposing=proposing,
        objectives=spec.goals,
        constraints=spec.limits,
        analysis=analysis,
    )
