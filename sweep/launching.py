"""One launch, from its durable row to its last block: the page to read first.

Every step is a call to the host's owner; its result is in the database before the next step begins. Whatever happens,
the server is stopped and the row is closed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.store import Store
from sweep.agenda import Job
from sweep.diagnoses import cancelled
from sweep.model import (
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
from sweep.reports import BlockReport, LaunchReport, LaunchRequest, ProbeReport, Stopped

BLOCK_ATTEMPTS = 2  # a block that came back invalid (client lag, lost requests) is measured once more


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """What a launch came to. ``measured`` holds its valid blocks; ``diagnosis`` is None when all of it went well."""

    measured: MeasuredLaunch
    effective: Effective | None
    diagnosis: Diagnosis | None
    flags: frozenset[Flag]
    host_lost: bool = False
    unclean: str | None = None  # what is not known to be gone after the stop
    seconds: float = 0.0


@dataclass(slots=True)
class LaunchPlan:
    """What a launch measures: probe prompts, then blocks in order. ``warm`` is the block that warm-up imitates."""

    probe_prompts: tuple[Prompt, ...]
    warm: BlockSpec
    blocks: tuple[BlockSpec, ...]


class _Ended(Exception):
    """Control flow: the launch is over, for this reason."""

    def __init__(self, diagnosis: Diagnosis, *, host_lost: bool = False) -> None:
        super().__init__(diagnosis.reason)
        self.diagnosis = diagnosis
        self.host_lost = host_lost


Call = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class Launcher:
    """Runs launches of one study on one host. ``call(method, *args)`` reaches the host's owner."""

    store: Store
    study_id: int
    host: str
    call: Call
    note: Callable[[str, dict[str, Any]], None]
    _sequence: int = field(default=0)

    async def run(self, job: Job, request: Callable[[str], LaunchRequest], plan: LaunchPlan) -> LaunchOutcome:
        """Launch, probe, warm up, measure, stop. Never raises for what the server or the host does."""
        begun = time.time()
        self._sequence = self.store.next_sequence(self.study_id, self.host)
        row = self.store.begin_launch(
            self.study_id,
            trial=job.trial,
            arm=job.arm,
            role=job.role,
            host=self.host,
            stage=job.stage,
            sequence=self._sequence,
            pair=job.pair,
        )
        blocks: list[BlockResult] = []
        effective: Effective | None = None
        flags: set[Flag] = set()
        diagnosis: Diagnosis | None = None
        host_lost = False
        report: LaunchReport | None = None
        stopped: Stopped | HostLost
        asked = request(str(row))
        name = asked.launch_id
        try:
            report = await self._start(row, asked)
            _raise_if(report.diagnosis)
            effective = report.effective
            if effective is not None and effective.status == "coerced":
                flags.add(Flag.COERCED)
            await self._probe(row, name, plan.probe_prompts, speculative=job.arm.speculative)
            _raise_if(await self._ask("warm_up", name, plan.warm))
            for spec in plan.blocks:
                blocks.append(await self._block(row, name, spec))
        except _Ended as end:
            diagnosis, host_lost = end.diagnosis, end.host_lost
        except BaseException:  # the database or the study ends: this launch must not look measured
            diagnosis = cancelled(Phase.BENCHMARK)
            raise
        finally:
            # A launch that did not become ready has been stopped already, and its report says how.
            stopped = report.stop if report is not None and report.stop is not None else await self.call("stop", name)
            if isinstance(stopped, HostLost):
                self.store.finish_launch(row, diagnosis)
            else:
                self.store.finish_launch(row, diagnosis, stopped.report, log_tail=stopped.log_tail)
        for block in blocks:
            flags.update(Flag(name) for name in block.log_flags)
        measured = MeasuredLaunch(
            launch_id=row,
            arm_key=job.arm.key,
            role=job.role,
            trial=job.trial,
            host=self.host,
            stage=job.stage,
            sequence=self._sequence,
            started_at=begun,
            blocks=tuple(blocks),
            pair=job.pair,
        )
        unclean = None if isinstance(stopped, HostLost) or stopped.report.clean else stopped.report.note
        return LaunchOutcome(measured, effective, diagnosis, frozenset(flags), host_lost, unclean, time.time() - begun)

    async def _start(self, row: int, request: LaunchRequest) -> LaunchReport:
        self.note("launch", {"launch": row, "arm": request.arm.label()})
        report: LaunchReport = await self._ask("launch", request)
        self.store.launch_started(row, report)
        if report.ready:
            self.store.launch_ready(row, report)
        return report

    async def _probe(self, row: int, name: str, prompts: Sequence[Prompt], *, speculative: bool) -> None:
        if not speculative:
            return
        report: ProbeReport = await self._ask("probe", name, tuple(prompts))
        self.store.launch_probed(row, report.accept_length, report.verify_steps, report.histogram)
        _raise_if(report.diagnosis)

    async def _block(self, row: int, name: str, spec: BlockSpec) -> BlockResult:
        self.note("block", {"launch": row, "concurrency": spec.concurrency, "round": spec.round})
        for attempt in range(BLOCK_ATTEMPTS):
            report: BlockReport = await self._ask("measure", name, spec)
            if report.block is not None:
                self.store.add_block(row, report.block)
                if report.block.invalid is None and report.diagnosis is None:
                    return report.block
            if report.diagnosis is not None and (
                report.diagnosis.reason != "path_lost" or attempt + 1 == BLOCK_ATTEMPTS
            ):
                raise _Ended(report.diagnosis)
        assert report.block is not None
        raise _Ended(
            Diagnosis(
                Verdict.MEASUREMENT_INVALID,
                Phase.BENCHMARK,
                "block_invalid",
                report.block.invalid or "invalid block",
                f"{BLOCK_ATTEMPTS} attempts at concurrency {spec.concurrency} were invalid. Mend the cause named, "
                "then `sweep resume` tries the configuration again.",
                Retry.LATER,
            )
        )

    async def _ask(self, method: str, *args: Any) -> Any:
        answer = await self.call(method, *args)
        if isinstance(answer, HostLost):
            raise _Ended(
                Diagnosis(
                    Verdict.INFRA_ERROR, Phase.BENCHMARK, "host_lost", answer.message,
                    "The configuration is not at fault; it is tried again.", Retry.LATER,
                ),
                host_lost=True,
            )  # fmt: skip
        return answer


def _raise_if(diagnosis: Diagnosis | None) -> None:
    if diagnosis is not None:
        raise _Ended(diagnosis)
