"""Resident pairing: baseline and candidate alive together on the same GPUs, their blocks alternating B C C B.

With a single block there is nothing to alternate, and the pair's basis is `alternate`.

Both servers are launched for each trial: a baseline that lived through many trials would be one launch for all of
them, and what one launch differs from the next would look like a gain of each. Before the first pair of a host the
baseline is measured with and without an idle neighbour.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweep.agenda import Job
from sweep.diagnoses import neighbour_ended
from sweep.launching import Ended, Launcher, LaunchOutcome, LaunchPlan, Live, Request
from sweep.model import BlockResult, Phase, Verdict
from sweep.reports import GpuRoom

Start = tuple[Job, Request]

# A candidate holds what the baseline does, and a drafter, its cache and larger graphs: not known before it runs.
ROOM_FACTOR = 1.25
# Slowdown by an idle neighbour (fraction) that is not accepted even where it is certain; the band of a tie.
NEIGHBOUR_LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """``candidate`` None: it was not launched beside the baseline (or ran out of memory there), ``refused`` says why,
    and the baseline was measured alone."""

    baseline: LaunchOutcome
    candidate: LaunchOutcome | None
    refused: str | None = None


async def measure_pair(
    launcher: Launcher,
    baseline: Start,
    candidate: Start,
    plan: LaunchPlan,
    seen: Callable[[LaunchOutcome], None],
) -> PairOutcome:
    """``baseline`` and ``candidate``: job and request. ``seen`` is told the candidate's outcome before the baseline is
    asked the plan's questions. Never raises for what servers or the host do."""
    beside: LaunchOutcome | None = None
    refused: str | None = None
    async with launcher.launched(*baseline) as base:
        await launcher.open(base, plan)
        refused = await no_room(launcher, base)
        if refused is None:
            beside = await _blocks_in_turn(launcher, base, candidate, plan)
            if beside.diagnosis is not None and beside.diagnosis.verdict is Verdict.LAUNCH_OOM:
                refused, beside = f"the GPUs do not hold both: {beside.diagnosis.evidence}", None
        if refused is not None:
            for spec in plan.blocks:
                await launcher.block(base, spec)
        elif beside is not None:
            if beside.diagnosis is not None:
                raise Ended(neighbour_ended(Phase.BENCHMARK, beside.diagnosis.evidence))
            seen(beside)
        await launcher.question(base, plan)
    assert base.outcome is not None
    return PairOutcome(base.outcome, beside, refused)


async def _blocks_in_turn(launcher: Launcher, base: Live, candidate: Start, plan: LaunchPlan) -> LaunchOutcome:
    """The candidate's life beside ``base``. Raises :class:`Ended` where it was the baseline that ended."""
    of_base: Ended | None = None
    async with launcher.launched(*candidate) as live:
        await launcher.open(live, plan)
        for turn, spec in enumerate(plan.blocks):
            for side in (base, live) if turn % 2 == 0 else (live, base):
                try:
                    await launcher.block(side, spec)
                except Ended as ended:
                    if side is live:
                        raise
                    of_base = ended
                    raise Ended(
                        neighbour_ended(Phase.BENCHMARK, ended.diagnosis.evidence), host_lost=ended.host_lost
                    ) from None
    if of_base is not None:
        raise of_base
    assert live.outcome is not None
    return live.outcome


async def no_room(launcher: Launcher, base: Live) -> str | None:
    """Why a second server does not fit beside this one, by what its pids hold; None where it does."""
    room: GpuRoom = await launcher.ask("room", base.name)
    if room.error is not None:
        return room.error
    needed = math.ceil(ROOM_FACTOR * room.held)
    if room.held == 0:
        return "nvidia-smi does not show what the baseline holds"
    if room.free < needed:
        return f"{room.free} MiB are free beside the baseline's {room.held} MiB, {needed} MiB are needed"
    return None


# ---------------------------------------------------------------------------------------------- the idle neighbour


@dataclass(frozen=True, slots=True)
class NeighbourCost:
    """How much slower the baseline's blocks are beside an idle server: fraction, standard error, pairs of units."""

    mean: float
    error: float
    pairs: int

    @property
    def too_much(self) -> bool:
        """Above the limit and above what its own error explains (two standard errors)."""
        return self.pairs == 0 or self.mean > max(NEIGHBOUR_LIMIT, 2 * self.error)


def neighbour_cost(alone: Sequence[BlockResult], beside: Sequence[BlockResult]) -> NeighbourCost:
    """Mean log ratio of speeds alone to beside, paired by block and prompt at concurrency 1, by block above."""
    before, after = _speeds(alone), _speeds(beside)
    logs = [math.log(before[unit] / after[unit]) for unit in before if unit in after]
    if not logs:
        return NeighbourCost(0.0, 0.0, 0)
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return NeighbourCost(statistics.fmean(logs), error, len(logs))


def _speeds(blocks: Sequence[BlockResult]) -> dict[tuple[int, int, str], float]:
    out: dict[tuple[int, int, str], float] = {}
    for block in blocks:
        if block.concurrency == 1:
            rows = ((request.prompt_id, request.speed) for request in block.requests)
            out.update({(1, block.round, prompt): speed for prompt, speed in rows if speed})
        elif block.output_tokens and block.elapsed_s > 0:
            out[block.concurrency, block.round, ""] = block.output_tokens / block.elapsed_s
    return out


async def check_neighbour(
    launcher: Launcher, first: Start, second: Start, plan: LaunchPlan
) -> tuple[tuple[LaunchOutcome, ...], NeighbourCost | None, str | None]:
    """Two baselines (A/A): the first measured alone and, while the second idles, again; then the second.

    Returns the outcomes of the first and, where it was measured, the second; the cost of the neighbour; and why servers
    may not live beside each other here (None: they may). The blocks measured again serve this check alone and enter no
    row.
    """
    outcomes: list[LaunchOutcome] = []
    cost: NeighbourCost | None = None
    refused: str | None = None
    async with launcher.launched(*first) as base:
        await launcher.open(base, plan)
        for spec in plan.blocks:
            await launcher.block(base, spec)
        refused = await no_room(launcher, base)
        if refused is None:
            async with launcher.launched(*second) as other:
                await launcher.open(other, plan)
                again = [(await launcher.ask("measure", base.name, spec)).block for spec in plan.blocks]
                cost = neighbour_cost(base.blocks, [block for block in again if block is not None])
                if cost.too_much:
                    refused = (
                        f"the baseline runs {cost.mean:+.1%} slower beside an idle server (standard error "
                        f"{cost.error:.1%}, {cost.pairs} pairs; {NEIGHBOUR_LIMIT:.0%} allowed)"
                    )
                    raise Ended(neighbour_ended(Phase.BENCHMARK, refused))
                for spec in plan.blocks:
                    await launcher.block(other, spec)
            assert other.outcome is not None
            if other.outcome.diagnosis is None:
                outcomes.append(other.outcome)
            elif refused is None:
                refused = f"a second server did not run beside the first: {other.outcome.diagnosis.evidence}"
        await launcher.question(base, plan)
    assert base.outcome is not None
    if base.outcome.diagnosis is not None and refused is None:
        refused = f"the baseline ended: {base.outcome.diagnosis.evidence}"
    return (base.outcome, *outcomes), cost, refused


__all__ = [
    "NEIGHBOUR_LIMIT",
    "ROOM_FACTOR",
    "NeighbourCost",
    "PairOutcome",
    "check_neighbour",
    "measure_pair",
    "neighbour_cost",
    "no_room",
]
