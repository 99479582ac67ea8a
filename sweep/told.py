"""What launches show beside their gains: the sampler's observations, and how far it is from a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from storage.reading import BlockFigures
from storage.records import TrialRow, TrialState
from sweep.metrics import Slo, accept_histogram, block_summary
from sweep.model import BlockResult, Constraint, MeasuredLaunch, Phase, Stage, Verdict
from sweep.search.view import Observation, Told

THROUGHPUT = "output_throughput"
BATCH = ("max-running-requests", "cuda-graph-max-bs", "cuda-graph-max-bs-decode")
Observed = Mapping[int, Mapping[int, Observation]]  # trial number -> concurrency -> observation


def told(trials: Iterable[TrialRow], observed: Observed) -> list[Told]:
    """Every trial in number order, as the sampler may see it: a failure has a verdict and no value, a queued trial
    stands as running, since its configuration is taken."""
    return [
        Told(
            config=trial.config,
            effective=trial.effective.config if trial.effective else None,
            verdict=trial.verdict if trial.state is TrialState.FINISHED else None,
            values=trial.values,
            stderr=trial.stderr,
            constraints=trial.constraints,
            observations=_corrected(observed.get(trial.number, {}), trial.values),
            dominates=(*trial.dominates, *_memory(trial)),
            seconds=trial.seconds or 0.0,
        )
        for trial in trials
    ]


def _memory(trial: TrialRow) -> tuple[str, ...]:
    """Axes besides the tree of which more needs more of the memory that ran out. While the cache is made, a larger
    share for it may be what is missing; before and after, it is taken from what ran out."""
    if trial.verdict is not Verdict.LAUNCH_OOM or not trial.dominates:
        return ()
    return BATCH if trial.phase is Phase.KV_POOL else (*BATCH, "mem-fraction-static")


def _corrected(seen: Mapping[int, Observation], values: Mapping[str, float]) -> dict[int, Observation]:
    """The throughput with the host's drift taken out, where the analysis says one: launches hours apart and on other
    hosts then share one step time."""
    return {
        level: replace(one, throughput=values.get(f"{THROUGHPUT}@{level}", one.throughput))
        for level, one in seen.items()
    }


def of_launches(measured: Iterable[MeasuredLaunch]) -> Observed:
    """By trial number, of each trial's first launch."""
    first: dict[int, MeasuredLaunch] = {}
    for launch in measured:
        if launch.trial is not None:
            first.setdefault(launch.trial, launch)
    return {number: observations(launch) for number, launch in first.items()}


def of_blocks(blocks: Iterable[BlockFigures]) -> Observed:
    """The same from block rows alone, for studies that are read rather than run: all search launches of a trial."""
    by_cell: dict[int, dict[int, list[BlockFigures]]] = {}
    for block in blocks:
        if block.trial is not None and block.invalid is None and block.stage == Stage.SEARCH:
            by_cell.setdefault(block.trial, {}).setdefault(block.concurrency, []).append(block)
    return {
        trial: {
            level: Observation(
                throughput=_mean([block.figures[THROUGHPUT] for block in found]),
                accept_length=_mean([block.figures["accept_length"] for block in found]),
                accept_histogram=_merged([block.accept_histogram or () for block in found]),
            )
            for level, found in levels.items()
        }
        for trial, levels in by_cell.items()
    }


def observations(launch: MeasuredLaunch) -> dict[int, Observation]:
    """What one launch showed at each concurrency: means over its rounds, histograms added up."""
    out: dict[int, Observation] = {}
    for level, blocks in _by_level(launch).items():
        summaries = [block_summary(block) for block in blocks]
        out[level] = Observation(
            throughput=_mean([s[THROUGHPUT] for s in summaries]),
            accept_length=_mean([s["accept_length"] for s in summaries]),
            accept_histogram=_merged([accept_histogram(block) or () for block in blocks]),
        )
    return out


def violated(constraint: Constraint, launch: MeasuredLaunch, slo: Slo | None = None) -> float | None:
    """How far a launch is beyond a limit, as a fraction of it; kept where <= 0; None where it was not measured."""
    values: list[float] = []
    for level, blocks in _by_level(launch).items():
        if constraint.concurrency in (None, level):
            mean = _mean([block_summary(block, slo=slo)[constraint.metric] for block in blocks])
            if mean is not None:
                values.append(mean)
    if not values:
        return None
    worst = max(values) if constraint.below else min(values)
    beyond = worst - constraint.limit if constraint.below else constraint.limit - worst
    return beyond / abs(constraint.limit) if constraint.limit else beyond


def _by_level(launch: MeasuredLaunch) -> Mapping[int, list[BlockResult]]:
    levels: dict[int, list[BlockResult]] = {}
    for block in launch.blocks:
        levels.setdefault(block.concurrency, []).append(block)
    return levels


def _merged(histograms: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    longest = max(map(len, histograms), default=0)
    return tuple(sum(h[i] for h in histograms if i < len(h)) for i in range(longest)) or None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
