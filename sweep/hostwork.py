"""One host's launches: alone, or two servers beside each other; what they answered is compared on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from storage.records import HostState as HostRowState
from storage.store import Store
from sweep import beside
from sweep.agenda import HostAgenda, Job
from sweep.books import Books
from sweep.launching import Launcher, LaunchOutcome, LaunchPlan, Request
from sweep.metrics import Slo
from sweep.model import BASELINE, ArmConfig, Flag, Role, Stage
from sweep.outputs import OutputCheck
from sweep.pool import Pool
from sweep.reports import OwnerSettings


@dataclass(slots=True)
class HostState:
    """One host during a run. ``resident``: candidates are measured beside a baseline, once it was ``checked`` that an
    idle neighbour costs nothing."""

    name: str
    settings: OwnerSettings
    agenda: HostAgenda
    gpus: tuple[int, ...]
    resident: bool = False
    checked: bool = False
    strikes: int = 0
    baseline_failures: int = 0  # in a row
    aside: str | None = None  # why the host is not used any more
    launch: int | None = None  # the row of the launch under way
    phase: str | None = None  # the phase last written to that row
    measuring: bool = False  # the launch under way has come to its blocks
    beside: set[str] = field(default_factory=set)  # other slots that had a server meanwhile

    def neighbours(self, hosts: Iterable[HostState]) -> list[HostState]:
        """Other slots of the same machine that have a launch under way."""
        return [h for h in hosts if h is not self and h.machine == self.machine and h.launch is not None]

    @property
    def machine(self) -> str:
        return self.settings.machine or self.name


class Event(Protocol):
    def __call__(self, kind: str, **more: Any) -> None: ...


@dataclass(slots=True)
class HostWork:
    """Launches of one study. ``plans`` gives the launch plan per stage, ``request`` a launch request; ``outputs`` None:
    outputs are not comparable (sampling, no token ids). ``screening``: candidates that cannot matter any more are
    stopped, but not beside a baseline, whose blocks would be left without a partner."""

    store: Store
    books: Books
    pool: Pool
    plans: Mapping[Stage, LaunchPlan]
    request: Callable[[ArmConfig, tuple[int, ...]], Request]
    event: Event
    outputs: OutputCheck | None
    slo: Slo | None
    screening: bool
    hosts: Mapping[str, HostState]

    async def launch(self, host: HostState, job: Job) -> LaunchOutcome:
        """One launch alone on the host's GPUs."""
        host.beside.clear()
        outcome = await self._launcher(host, job).run(job, self._request(host, job), self._plan(host, job))
        outcome = _marked(host, outcome)
        self._compare_outputs(host, job, outcome)
        self._idle(host, outcome)
        return outcome

    async def pair(self, host: HostState, job: Job) -> tuple[Job, beside.PairOutcome]:
        """A candidate beside a baseline of its own; returns the baseline's job and what came of both. Where they do
        not fit, the host goes on bracketed."""
        host.beside.clear()
        pair = self.books.next_pair()
        job, base = replace(job, pair=pair), Job(BASELINE, Role.BASELINE, job.stage, pair=pair)
        out = await beside.measure_pair(
            self._launcher(host, job),
            (base, self._request(host, base)),
            (job, self._request(host, job)),
            self._plan(host, base),
            partial(self._compare_outputs, host, job),
        )
        self._compare_outputs(host, base, out.baseline)
        self._idle(host, out.baseline)
        if out.refused is not None:
            self._go_bracketed(host, out.refused)
        if out.candidate is not None:
            out = replace(out, candidate=_marked(host, out.candidate))
        return base, out

    async def check_neighbour(self, host: HostState) -> list[tuple[Job, LaunchOutcome]]:
        """Two calibration baselines, of which the first is measured with and without the other beside it."""
        host.checked = True
        job = Job(BASELINE, Role.BASELINE, Stage.CALIBRATE)
        start = (job, self._request(host, job))
        outcomes, cost, refused = await beside.check_neighbour(
            self._launcher(host, job), start, start, self._plan(host, job)
        )
        for outcome in outcomes:
            self._compare_outputs(host, job, outcome)
            self._idle(host, outcome)
        if cost is not None:
            detail = {"slowdown": cost.mean, "standard_error": cost.error, "pairs": cost.pairs, "accepted": not refused}
            self.event("neighbour", host=host.name, **detail)
        if refused is not None:
            self._go_bracketed(host, refused)
        return [(job, outcome) for outcome in outcomes]

    # ------------------------------------------------------------------ parts

    def _launcher(self, host: HostState, job: Job) -> Launcher:
        def note(kind: str, more: dict[str, Any]) -> None:
            if kind == "launch":
                host.launch, host.phase = more["launch"], None
                self.store.set_host_state(self.books.study_id, host.name, HostRowState.BUSY)
                for other in host.neighbours(self.hosts.values()):
                    if other.measuring:
                        other.beside.add(host.name)
            elif kind == "block":
                host.measuring = True
                host.beside |= {other.name for other in host.neighbours(self.hosts.values())}
            self.event(kind, host=host.name, trial=job.trial, stage=job.stage, **more)

        async def call(method: str, *args: Any) -> Any:
            return await self.pool.call(host.name, method, *args)

        return Launcher(self.store, self.books.study_id, host.name, call, note, self.slo)

    def _request(self, host: HostState, job: Job) -> Request:
        make = self.request(job.arm, host.gpus)
        return lambda row: make(f"{self.books.study_uid}-{row}")

    def _plan(self, host: HostState, job: Job) -> LaunchPlan:
        plan = self.plans[job.stage]
        if self.screening and job.role is Role.CANDIDATE and job.stage is Stage.SEARCH:
            plan = replace(plan, screen=partial(self.books.hopeless, host.name, job.arm))
        if job.role is Role.BASELINE and self.outputs is not None:
            plan = replace(plan, questions=partial(self.outputs.questions, host.name))
        return plan

    def _idle(self, host: HostState, outcome: LaunchOutcome) -> None:
        host.launch, host.measuring = None, False
        self.store.set_host_state(self.books.study_id, host.name, HostRowState.IDLE, outcome.unclean)

    def _go_bracketed(self, host: HostState, why: str) -> None:
        host.resident = False
        self.event("pairing", host=host.name, mode="bracketed", why=why)

    def _compare_outputs(self, host: HostState, job: Job, outcome: LaunchOutcome) -> None:
        """Same output: open until a baseline has answered, then an event and a flag; both are stored."""
        if self.outputs is None or outcome.diagnosis is not None:
            return
        blocks = outcome.measured.blocks
        if job.trial is not None:
            if (waiting := self.outputs.candidate(host.name, job.trial, blocks)) is not None:
                self.event("outputs_open", host=host.name, **waiting)
        elif job.role is Role.BASELINE:
            for found in self.outputs.answered(host.name, blocks, outcome.answers):
                if found.differs:
                    self.books.flag(found.trial, Flag.OUTPUT_DIFFERS, found.evidence)
                # After the flag: a question whose event is missing is asked again, a flag would stay missing.
                self.event("outputs", host=host.name, **found.detail)


def _marked(host: HostState, outcome: LaunchOutcome) -> LaunchOutcome:
    """With the flag that says beside whom it was measured, where it was not alone on its machine."""
    if not host.beside:
        return outcome
    words = f"servers of ours ran on {', '.join(sorted(host.beside))} while its blocks were measured"
    return replace(outcome, flags={**outcome.flags, Flag.NEIGHBOURS: words})
