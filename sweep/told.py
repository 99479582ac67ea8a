"""What a launch shows beside its gain: the sampler's observations, and how far it is from a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from storage.records import TrialRow, TrialState
from sweep.metrics import Slo, accept_histogram, block_summary
from sweep.model import BlockResult, Constraint, MeasuredLaunch
from sweep.search.view import Observation, Told


def told(trials: Iterable[TrialRow], measured: Iterable[MeasuredLaunch]) -> list[Told]:
    """Every trial in number order, as the sampler may see it: a failure has a verdict and no value, a queued trial
    stands as running, since its configuration is taken."""
    by_trial: dict[int, MeasuredLaunch] = {}
    for launch in measured:
        if launch.trial is not None:
            by_trial.setdefault(launch.trial, launch)
    return [
        Told(
            config=trial.config,
            effective=trial.effective.config if trial.effective else None,
            verdict=trial.verdict if trial.state is TrialState.FINISHED else None,
            values=trial.values,
            stderr=trial.stderr,
            constraints=trial.constraints,
            observations=observations(by_trial[trial.number]) if trial.number in by_trial else {},
            dominates=trial.dominates,
            seconds=trial.seconds or 0.0,
        )
        for trial in trials
    ]


def observations(launch: MeasuredLaunch) -> dict[int, Observation]:
    """What one launch showed at each concurrency: means over its rounds, histograms added up."""
    out: dict[int, Observation] = {}
    for level in dict.fromkeys(block.concurrency for block in launch.blocks):
        blocks = [block for block in launch.blocks if block.concurrency == level]
        summaries = [block_summary(block) for block in blocks]
        histograms = [h for block in blocks if (h := accept_histogram(block))]
        merged = [sum(h[i] for h in histograms if i < len(h)) for i in range(max(map(len, histograms), default=0))]
        out[level] = Observation(
            throughput=_mean([s["output_throughput"] for s in summaries]),
            accept_length=_mean([s["accept_length"] for s in summaries]),
            accept_histogram=tuple(merged) or None,
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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
