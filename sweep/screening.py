"""Racing on one launch: may this candidate still matter, by the blocks it has finished?

At each load the candidate has run, its log gain over the host's last baseline is compared with a rival's, a candidate
measured before. What is not known of the difference has two parts. One is the same in every block of this launch: the
launch effects of candidate and baseline, what the host has drifted since, and the error of the rival's own gain; it is
bounded once, by Student's t with the degrees of freedom of the study's launch noise. The other is new in every block
and is bounded for every number of blocks at once by the one-sided normal mixture (Robbins 1970; Howard, Ramdas,
McAuliffe & Sekhon 2021, Annals of Statistics 49, section 3): looking after each block costs nothing. Each part has half
of ``ALPHA``, divided by the number of rivals, so that over the whole race a candidate that is no more than the margin
worse than every rival is stopped with a chance of at most ``ALPHA``.

A candidate is hopeless where one rival is better at every objective, each at a load the candidate has run: nothing is
said of a load it has not run, and something that leads at one load is never stopped for another. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from sweep.analysis import StudyAnalysis
from sweep.analysis.figures import LaunchFigures, prompt_is_unit
from sweep.model import Objective

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log figures: ``launch`` from launch to launch, ``block`` from block to block within one,
    ``drift`` of the host's level since its last baseline; ``df`` degrees of freedom of ``launch``."""

    launch: float
    block: float
    drift: float
    df: float


@dataclass(frozen=True, slots=True)
class Rival:
    """A measured candidate at one load: its log gain over the baseline with standard error and degrees of freedom."""

    trial: int
    log_gain: float
    se: float
    df: float


def mixture_boundary(variance: float, rho: float, alpha: float) -> float:
    """With probability 1 - ``alpha`` a sum of independent normal errors stays below this at every one of its lengths.

    ``variance``: of the sum so far; ``rho`` > 0 (same unit): the variance at which the boundary is tightest. The closed
    form above the one-sided normal mixture of Howard et al. (2021).
    """
    total = variance + rho
    return math.sqrt(2.0 * total * math.log(math.sqrt(total / rho) / (2.0 * alpha) + 1.0))


def upper_bound(log_gains: Sequence[float], rival: Rival, noise: Noise, rivals: int) -> float:
    """The most that the log gain of the candidate less the rival's may be, whenever it is looked at.

    ``log_gains``: of the candidate's blocks at one load, in order; ``rivals``: how many it is compared with.
    """
    count, alpha = len(log_gains), ALPHA / 2.0 / rivals
    block = max(noise.block, statistics.stdev(log_gains) if count > 1 else 0.0)
    blocks = mixture_boundary(count * block**2, block**2, alpha) / count if block > 0 else 0.0
    fixed = math.sqrt(2.0 * noise.launch**2 + noise.drift**2 + rival.se**2)  # candidate, baseline; drift; rival
    reach = float(stats.t.ppf(1.0 - alpha, min(noise.df, rival.df)))
    return statistics.fmean(log_gains) - rival.log_gain + reach * fixed + blocks


def log_gains(blocks: Sequence[LaunchFigures], baseline: LaunchFigures, objective: Objective) -> list[float]:
    """Log gain of each block over the baseline's launch, on the prompts both have; ``blocks``: one block each, of any
    load. Empty where the candidate has not run the objective's load."""
    base = _figures(baseline, objective)
    out = []
    for block in blocks:
        mine = _figures(block, objective)
        common = mine.keys() & base.keys()
        if common:
            out.append(statistics.fmean(mine[unit] - base[unit] for unit in common))
    return out


def _figures(launch: LaunchFigures, objective: Objective) -> dict[tuple[str, str], float]:
    """Log figures by prompt where prompts are the unit, else by prompt list; means over the rounds."""
    if prompt_is_unit(objective.metric, objective.concurrency):
        return dict(launch.prompts.get((objective.metric, objective.concurrency), {}))
    lists: dict[tuple[str, str], list[float]] = {}
    for (prompts_hash, _), value in launch.cells.get((objective.metric, objective.concurrency, None), {}).items():
        lists.setdefault((prompts_hash, ""), []).append(value)
    return {unit: statistics.fmean(values) for unit, values in lists.items()}


def noise_of(analysis: StudyAnalysis, baseline: LaunchFigures, objective: Objective, hours: float) -> Noise | None:
    """What the study knows of its noise in one objective; None before anything is known.

    The host's level may have gone on as it drifted so far, and wandered by as much as launches differ.
    """
    key = (objective.metric, objective.concurrency)
    floor = next((n for n in analysis.noise if (n.metric, n.concurrency) == key), None)
    if floor is None:
        return None
    rounds = max(1, sum(c.concurrency == objective.concurrency for c in baseline.conduct))
    within = max(floor.launch_mean_sd**2 - floor.between_launch_sd**2, 0.0)
    slope = next((d for d in analysis.drift if (d.metric, d.concurrency, d.host) == (*key, baseline.host)), None)
    per_hour = math.hypot(slope.per_hour, slope.per_hour_se) if slope is not None else 0.0
    drift = math.hypot(floor.launch_mean_sd, per_hour * hours)
    return Noise(floor.launch_mean_sd, math.sqrt(within * rounds), drift, floor.df)


@dataclass(frozen=True, slots=True)
class Loss:
    """At one objective: the candidate's log gain less the rival's is at most ``most``."""

    objective: Objective
    most: float
    blocks: int


def hopeless(
    blocks: Sequence[LaunchFigures],
    baseline: LaunchFigures,
    analysis: StudyAnalysis,
    objectives: Sequence[Objective],
    rivals: Sequence[int],
    *,
    hours: float,
    margin: float,
) -> tuple[int, list[Loss]] | None:
    """The rival (trial number) that is better at every objective by more than ``margin`` (fraction), and by how much;
    None where the candidate may still matter.

    ``blocks``: figures of each finished block; ``baseline``: of the host's last baseline launch; ``hours``: since then;
    ``rivals``: trials that were measured whole and keep the constraints.
    """
    seen = [(objective, log_gains(blocks, baseline, objective)) for objective in objectives]
    if not rivals or not all(found for _, found in seen):
        return None
    noises = {objective: noise_of(analysis, baseline, objective, hours) for objective in objectives}
    for trial in rivals:
        losses: list[Loss] = []
        for objective, found in seen:
            noise, rival = noises[objective], _rival(analysis, trial, objective)
            if noise is None or rival is None:
                break
            losses.append(Loss(objective, upper_bound(found, rival, noise, len(rivals)), len(found)))
        if len(losses) == len(objectives) and all(loss.most < math.log1p(-margin) for loss in losses):
            return trial, losses
    return None


def _rival(analysis: StudyAnalysis, trial: int, objective: Objective) -> Rival | None:
    row = analysis.find(trial, objective.metric, objective.concurrency)
    if row is None or row.gain is None or row.log_se is None or row.df is None:
        return None
    return Rival(trial, math.log1p(row.gain.estimate), row.log_se, row.df)


def in_words(losses: Sequence[Loss], rival: str) -> str:
    """``output_throughput@1: at least 12.3 % worse than #3 ... after 1 block; ...``, the evidence of the flag."""
    return "; ".join(
        f"{loss.objective.key}: at least {100 * -math.expm1(loss.most):.1f} % worse than {rival} after {loss.blocks} "
        + ("block" if loss.blocks == 1 else "blocks")
        for loss in losses
    )
