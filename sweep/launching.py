"""One launch, from its durable row to its last block: the page to read first.

Every step is a call to the host's owner; its result is in the database before the next step begins. Whatever happens,
the server is stopped and the row is closed. A little over 300 lines on purpose: a launch can be read on one page.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from launchers.engines.effective import pin_conflicts
from storage.store import Store
from sweep.agenda import Job
from sweep.analysis.validity import impossible
from sweep.bench.health import LIMIT, PATH_LIMIT
from sweep.bench.parts import next_processes
from sweep.diagnoses import cancelled
from sweep.metrics import Slo
from sweep.model import (
    FORCED_ACCEPT_LENGTH,
    BlockResult,
    BlockSpec,
    Diagnosis,
    Effective,
    Flag,
    MeasuredLaunch,
    Phase,
    Prompt,
    Retry,
    Verdict,
)
from sweep.pool import HostLost
from sweep.reports import (
    BlockReport,
    LaunchReport,
    LaunchRequest,
    ProbeReport,
    Stopped,
    TokenAnswer,
    TokenQuestion,
)

PATH_LIMITED = "path_limit"  # the reason of a launch that the path to its host could not carry
BLOCK_ATTEMPTS = 2  # a block that came back invalid (client lag, lost requests) is measured once more


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """What a launch came to. ``measured`` holds its valid blocks; ``diagnosis`` is None when all of it went well.

    ``flags`` maps a flag to its evidence; ``answers`` are those to the plan's questions.
    """

    measured: MeasuredLaunch
    effective: Effective | None
    diagnosis: Diagnosis | None
    flags: Mapping[Flag, str]
    host_lost: bool = False
    unclean: str | None = None  # what is not known to be gone after the stop
    seconds: float = 0.0
    answers: tuple[TokenAnswer, ...] = ()

    @property
    def over(self) -> bool:
        """True where the trial ends with this launch, whatever was planned after it."""
        return self.diagnosis is not None or Flag.SCREENED_OUT in self.flags


Questions = Callable[[Sequence[BlockResult]], Sequence[TokenQuestion]]


@dataclass(slots=True)
class LaunchPlan:
    """What a launch measures: probe prompts, then blocks in order. ``warm``: the blocks that warm-up imitates.

    ``questions``: what the server is asked after its blocks, given these. ``screen``: why the arm cannot matter any
    more, given the blocks so far; None: every block is measured.
    """

    probe_prompts: tuple[Prompt, ...]
    warm: tuple[BlockSpec, ...]
    blocks: tuple[BlockSpec, ...]
    questions: Questions | None = None
    screen: Callable[[Sequence[BlockResult]], str | None] | None = None


class Ended(Exception):
    """Control flow: a launch is over, for this reason."""

    def __init__(self, diagnosis: Diagnosis, *, host_lost: bool = False) -> None:
        super().__init__(diagnosis.reason)
        self.diagnosis = diagnosis
        self.host_lost = host_lost


Call = Callable[..., Awaitable[Any]]
Request = Callable[[str], LaunchRequest]


@dataclass(slots=True)
class Live:
    """A launch under way: its row, the owner's name for it, and what is known of it so far."""

    job: Job
    row: int
    sequence: int
    asked: LaunchRequest
    begun: float = field(default_factory=time.time)
    report: LaunchReport | None = None
    blocks: list[BlockResult] = field(default_factory=list)
    flags: dict[Flag, str] = field(default_factory=dict)
    answers: tuple[TokenAnswer, ...] = ()
    outcome: LaunchOutcome | None = None

    @property
    def name(self) -> str:
        return self.asked.launch_id


@dataclass(slots=True)
class Launcher:
    """Runs launches of one study on one host. ``call(method, *args)`` reaches the host's owner; ``slo`` is stored as
    the goodput of every block."""

    store: Store
    study_id: int
    host: str
    call: Call
    note: Callable[[str, dict[str, Any]], None]
    slo: Slo | None = None

    async def run(self, job: Job, request: Request, plan: LaunchPlan) -> LaunchOutcome:
        """Launch, probe, warm up, measure, stop. Never raises for what the server or the host does."""
        async with self.launched(job, request) as live:
            await self.open(live, plan)
            for left, spec in enumerate(plan.blocks, 1 - len(plan.blocks)):
                await self.block(live, spec)
                if left and plan.screen is not None and (why := plan.screen(live.blocks)) is not None:
                    live.flags[Flag.SCREENED_OUT] = why
                    self.note("screened", {"launch": live.row, "arm": job.arm.label(), "why": why})
                    break
            await self.question(live, plan)
        assert live.outcome is not None
        return live.outcome

    @asynccontextmanager
    async def launched(self, job: Job, request: Request) -> AsyncIterator[Live]:
        """A launch from its durable row to its closed one. Whatever ends the body, the server is stopped; an
        :class:`Ended` becomes the outcome's diagnosis."""
        sequence = self.store.next_sequence(self.study_id, self.host)
        row = self.store.begin_launch(
            self.study_id,
            trial=job.trial,
            arm=job.arm,
            role=job.role,
            host=self.host,
            stage=job.stage,
            sequence=sequence,
            pair=job.pair,
        )
        live = Live(job, row, sequence, request(str(row)))
        end: Ended | None = None
        try:
            yield live
        except Ended as ended:
            end = ended
        except BaseException:  # the database or the study ends: this launch must not look measured
            end = Ended(cancelled(Phase.BENCHMARK))
            raise
        finally:
            await self._close(live, end)

    async def _close(self, live: Live, end: Ended | None) -> None:
        # A launch that did not become ready has been stopped already, and its report says how.
        report, diagnosis = live.report, end.diagnosis if end is not None else None
        stopped: Stopped | HostLost
        stopped = report.stop if report is not None and report.stop is not None else await self.call("stop", live.name)
        lost = isinstance(stopped, HostLost)
        if isinstance(stopped, HostLost):
            self.store.finish_launch(live.row, diagnosis)
        else:
            self.store.finish_launch(live.row, diagnosis, stopped.report, log_tail=stopped.log_tail)
        job = live.job
        for block in live.blocks:
            for name, line in block.log_flags.items():
                live.flags.setdefault(Flag(name), line)
        measured = MeasuredLaunch(
            launch_id=live.row,
            arm_key=job.arm.key,
            role=job.role,
            trial=job.trial,
            host=self.host,
            stage=job.stage,
            sequence=live.sequence,
            started_at=live.begun,
            blocks=tuple(live.blocks),
            pair=job.pair,
        )
        live.outcome = LaunchOutcome(
            measured,
            report.effective if report is not None and report.diagnosis is None else None,
            diagnosis,
            live.flags,
            host_lost=end is not None and end.host_lost,
            unclean=None if lost or stopped.report.clean else stopped.report.note,
            seconds=time.time() - live.begun,
            answers=live.answers,
        )

    async def open(self, live: Live, plan: LaunchPlan) -> None:
        """Until the server has been warmed up; raises :class:`Ended`."""
        live.report = await self._start(live.row, live.asked)
        _raise_if(live.report.diagnosis)
        effective = live.report.effective
        if effective is not None and effective.status == "coerced":
            words = (f"{d.key}: asked {d.asked}, runs {d.effective} ({d.rule})" for d in effective.differences)
            live.flags[Flag.COERCED] = "; ".join(words)
        if effective is not None and (other := self._unlike_the_baseline(effective)):
            live.flags[Flag.COERCED] = "; ".join(filter(None, (live.flags.get(Flag.COERCED), other)))
        if live.job.arm.speculative and (forced := live.asked.env.get(FORCED_ACCEPT_LENGTH)):
            live.flags[Flag.FORCED_ACCEPT_LENGTH] = f"{FORCED_ACCEPT_LENGTH}={forced}: gains are not the drafter's"
        await self._probe(live.row, live.name, plan.probe_prompts, speculative=live.job.arm.speculative)
        for spec in plan.warm:
            _raise_if(await self.ask("warm_up", live.name, spec))

    def _unlike_the_baseline(self, effective: Effective) -> str:
        """What the engine itself set otherwise than on the last baseline here: to be known, but not ours to forbid."""
        reference = self.store.last_baseline(self.study_id, self.host)
        unlike = pin_conflicts(reference, effective) if reference is not None else ()
        return "; ".join(f"{d.key}: {d.asked} on the baseline, {d.effective} here; pin it" for d in unlike)

    async def question(self, live: Live, plan: LaunchPlan) -> None:
        """Ask the server what the plan wants to know of it; an answer that does not come is no failure."""
        asked = tuple(plan.questions(live.blocks)) if plan.questions is not None else ()
        if asked:
            live.answers = await self.ask("next_tokens", live.name, plan.blocks[0], asked)

    async def _start(self, row: int, request: LaunchRequest) -> LaunchReport:
        self.note("launch", {"launch": row, "arm": request.arm.label()})
        report: LaunchReport = await self.ask("launch", request)
        self.store.launch_started(row, report)
        if report.ready:
            self.store.launch_ready(row, report)
        return report

    async def _probe(self, row: int, name: str, prompts: Sequence[Prompt], *, speculative: bool) -> None:
        if not speculative:
            return
        report: ProbeReport = await self.ask("probe", name, tuple(prompts))
        self.store.launch_probed(row, report.accept_length, report.verify_steps, report.histogram)
        _raise_if(report.diagnosis)

    async def block(self, live: Live, spec: BlockSpec) -> None:
        """Measure one block, twice where the first attempt was invalid for a cause that may pass; raises
        :class:`Ended`.

        All arms of a host are measured at one level by the same number of client processes: where the number is not
        stated, by as many as the level's last block had, and by twice as many after one in which the client was the
        limit. The first block of a level, a baseline's, takes what its warm-up asks for.
        """
        row, stated = live.row, spec.client_processes is not None
        if not stated:
            spec = replace(spec, client_processes=self._client_processes(spec.concurrency))
        self.note("block", {"launch": row, "concurrency": spec.concurrency, "round": spec.round})
        for attempt in range(BLOCK_ATTEMPTS):
            report: BlockReport = _possible(await self.ask("measure", live.name, spec), live)
            if report.block is not None:
                self.store.add_block(row, report.block, slo=self.slo)
                if report.block.invalid is None and report.diagnosis is None:
                    live.blocks.append(report.block)
                    return
                if not stated:
                    spec = replace(spec, client_processes=next_processes(report.block.client, report.block.invalid))
            if report.diagnosis is not None and (
                report.diagnosis.reason != "path_lost" or attempt + 1 == BLOCK_ATTEMPTS
            ):
                raise Ended(report.diagnosis)
            if report.block is not None and PATH_LIMIT in (report.block.invalid or ""):
                break
        assert report.block is not None
        invalid = report.block.invalid or "invalid block"
        if LIMIT in invalid:
            live.flags[Flag.CLIENT_LIMITED] = invalid
        raise Ended(_invalid(invalid, spec.concurrency))

    def _client_processes(self, concurrency: int) -> int | None:
        last = self.store.last_client(self.study_id, self.host, concurrency)
        return None if last is None else next_processes(*last)

    async def ask(self, method: str, *args: Any) -> Any:
        """A call of the host's owner; raises :class:`Ended` where the host is lost."""
        answer = await self.call(method, *args)
        if isinstance(answer, HostLost):
            raise Ended(
                Diagnosis(
                    Verdict.INFRA_ERROR, Phase.BENCHMARK, "host_lost", answer.message,
                    "The configuration is not at fault; it is tried again.", Retry.LATER,
                ),
                host_lost=True,
            )  # fmt: skip
        return answer


def _invalid(words: str, concurrency: int) -> Diagnosis:
    """A block that could not be measured, and whether other attempts on this host may fare better."""
    reason, tried = "block_invalid", f"{BLOCK_ATTEMPTS} attempts at concurrency {concurrency} were invalid"
    if PATH_LIMIT in words:
        reason, tried = PATH_LIMITED, f"concurrency {concurrency} cannot be measured over the path to this host"
    advice = f"{tried}. Mend the cause named, then `sweep resume` tries the configuration again."
    return Diagnosis(Verdict.MEASUREMENT_INVALID, Phase.BENCHMARK, reason, words, advice, Retry.LATER)


def _possible(report: BlockReport, live: Live) -> BlockReport:
    """The report, its block invalid where what it shows cannot have happened."""
    if report.block is None or report.block.invalid is not None:
        return report
    effective = live.report.effective if live.report is not None else None
    why = impossible(report.block, effective.config if effective is not None else live.job.arm)
    return report if why is None else replace(report, block=replace(report.block, invalid=why))


def _raise_if(diagnosis: Diagnosis | None) -> None:
    if diagnosis is not None:
        raise Ended(diagnosis)
