"""Where speculation stops paying: the concurrency at which an arm's gain falls through 0; the envelope over arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy import stats

from sweep.analysis.types import Crossover, EnvelopeStep, Ranked
from sweep.model import ArmGain, Comparison


def _fall(levels: Sequence[int], values: Sequence[float]) -> float | None:
    """Last concurrency at which a piecewise linear function of log(concurrency) goes from >= 0 to < 0."""
    for k in range(len(levels) - 2, -1, -1):
        left, right = values[k], values[k + 1]
        if left >= 0 > right:
            share = left / (left - right)
            return math.exp(math.log(levels[k]) + share * math.log(levels[k + 1] / levels[k]))
    return None


def crossover(trial: int, rows: Sequence[ArmGain], alpha: float) -> Crossover | None:
    """``rows``: the trial's comparable throughput gains, one per concurrency; None from fewer than two.

    Log gain is interpolated linearly in log concurrency. The interval inverts the pointwise band: it runs from where
    the lower confidence bound falls through 0 to where the upper one does (as Fieller's interval does for a line).
    """
    found = sorted((r for r in rows if r.gain is not None and r.log_se is not None), key=lambda r: r.concurrency)
    if len(found) < 2:
        return None
    levels = [r.concurrency for r in found]
    middle = [math.log1p(r.gain.estimate) for r in found if r.gain is not None]
    reach = [float(stats.t.ppf(1 - alpha / 2, r.df or 1.0)) * (r.log_se or 0.0) for r in found]
    low = _fall(levels, [m - r for m, r in zip(middle, reach, strict=True)])
    high = _fall(levels, [m + r for m, r in zip(middle, reach, strict=True)])
    estimate = _fall(levels, middle)
    if estimate is None:
        if middle[-1] >= 0:
            why, sure = f"still gains at {levels[-1]}, the highest concurrency measured", middle[-1] > reach[-1]
        else:
            why, sure = f"loses from {levels[0]} on, the lowest concurrency measured", middle[0] < -reach[0]
        why += "" if sure else ", by its estimate alone: the interval there includes 0"
        return Crossover(trial, None, low, high, why)
    return Crossover(trial, estimate, low, high, f"gains below {estimate:.0f} concurrent requests, loses above")


def envelope(
    ranking: Mapping[int, Sequence[Ranked]], gains: Mapping[int, Mapping[int, ArmGain]]
) -> tuple[EnvelopeStep, ...]:
    """Which arm to use at which load. ``ranking``: concurrency -> its throughput ranking; ``gains``: trial ->
    concurrency -> gain over the baseline.

    At each level an arm may stand that ties for first and is faster than the baseline; one arm is kept as far up as
    it may stand, because a tie is no reason to change servers. Between two levels the change is put where the two
    gains (or the gain and 0) cross, linear in log concurrency.
    """
    levels = sorted(ranking)
    choice: list[int | None] = []
    for k, level in enumerate(levels):
        fit = _standing(ranking[level])
        if choice and choice[-1] in fit:
            choice.append(choice[-1])
            continue

        def reach(trial: int, start: int = k) -> int:
            stop = start
            while stop < len(levels) and trial in _standing(ranking[levels[stop]]):
                stop += 1
            return stop

        choice.append(max(fit, key=lambda t: (reach(t), -fit.index(t))) if fit else None)
    steps: list[EnvelopeStep] = []
    start = float(levels[0]) if levels else 1.0
    for k, trial in enumerate(choice):
        following = choice[k + 1] if k + 1 < len(choice) else None
        if k + 1 == len(choice):
            steps.append(EnvelopeStep(trial, start, None))
        elif following != trial:
            stop = _change(levels[k], levels[k + 1], trial, following, gains)
            steps.append(EnvelopeStep(trial, start, stop))
            start = stop
    return tuple(steps)


def _standing(rows: Sequence[Ranked]) -> list[int]:
    return [r.trial for r in rows if r.rank == 1 and r.result.comparison is Comparison.FASTER]


def _change(
    low: int, high: int, first: int | None, second: int | None, gains: Mapping[int, Mapping[int, ArmGain]]
) -> float:
    def log_gain(trial: int | None, level: int) -> float:
        if trial is None:
            return 0.0
        row = gains.get(trial, {}).get(level)
        return math.log1p(row.gain.estimate) if row is not None and row.gain is not None else 0.0

    edges = [log_gain(first, level) - log_gain(second, level) for level in (low, high)]
    return _fall([low, high], edges) or math.sqrt(low * high)
