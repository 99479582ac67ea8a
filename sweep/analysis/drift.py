"""The baseline's level at a candidate's time, with what is not known about it.

On one host and in one stage the log level of the baseline is taken as constant + linear drift + random walk, each
launch adding its own effect of variance V (a Gaussian process; kriging with a drift, Cressie 1993, ch. 3). Time is
counted in launch slots, the median time from one launch to the next, so that a study of minutes and one of a night
have the same priors. The walk's variance per slot, as a multiple of V, is not estimated but averaged over the grid
``WALKS`` by marginal likelihood: with a handful of baselines any single value would be over-trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sweep.analysis.figures import LaunchFigures
from sweep.analysis.robust import Array, Mask
from sweep.model import Role

Index = npt.NDArray[np.int_]

WALKS = np.array([0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])  # variance of the walk per slot, in units of V
WALK_PRIOR = np.array([0.60, 0.20, 0.10, 0.05, 0.03, 0.015, 0.005])
SLOPE_SD = 1.0  # prior standard deviation of the linear drift per slot, in units of sqrt(V)
CONSTANT = 1e4  # variance of the level, in units of V: as good as unknown
# What is believed of a baseline launch's noise (standard deviation of the log) before differences between baselines
# are known, where they are judged: the busier end of what single servers show (1.5 to 4 %), because a refusal costs
# launches and a noise taken for too large only leaves the interval to say it. It weighs as much as so many differences.
BELIEVED_SD = 0.03
BELIEVED_WORTH = 2.0
CHUNK = 32  # baselines taken together; beyond, a night is cut into overlapping stretches


@dataclass(frozen=True)
class Geometry:
    """Prediction at every launch of a chunk from the usable baselines; depends on times alone, not on figures.

    K walks, n launches, b baselines: ``weights`` K x n x b, ``spread`` K x n x n (covariance of the prediction error
    in units of V), ``inverse`` K x b x b, ``logdet`` K.
    """

    weights: Array
    spread: Array
    inverse: Array
    logdet: Array


@dataclass
class Chunk:
    """Launches of one host and stage, in time order, small enough for dense algebra. ``members`` index the study's
    launches; ``own`` marks those judged here (a boundary baseline also serves the neighbour)."""

    members: Index
    baseline: Mask
    slots: Array
    host: str
    confirm: bool
    slot_s: float
    _cache: dict[bytes, Geometry]

    def geometry(self, usable: Mask) -> Geometry:
        """``usable``: which members are baselines with a figure in the cell."""
        key = usable.tobytes()
        if key not in self._cache:
            self._cache[key] = _geometry(self.slots, self.slots[usable])
        return self._cache[key]


def _kernel(first: Array, second: Array, origin: float) -> Array:
    walk = np.minimum(first[:, None], second[None, :]) - origin
    steady = CONSTANT + SLOPE_SD**2 * first[:, None] * second[None, :]
    return np.asarray(steady[None] + WALKS[:, None, None] * walk[None])


def _geometry(every: Array, base: Array) -> Geometry:
    origin = float(every.min())
    centre = float(base.mean())
    every, base, origin = every - centre, base - centre, origin - centre
    noisy = _kernel(base, base, origin) + np.eye(len(base))[None]
    inverse = np.asarray(np.linalg.inv(noisy), dtype=np.float64)
    cross = _kernel(every, base, origin)
    weights = cross @ inverse
    spread = np.asarray(_kernel(every, every, origin) - weights @ cross.transpose(0, 2, 1), dtype=np.float64)
    return Geometry(weights, spread, inverse, np.asarray(np.linalg.slogdet(noisy)[1], dtype=np.float64))


def chunks(figures: Sequence[LaunchFigures]) -> list[Chunk]:
    """Cut the study's launches by host and stage, and long nights into stretches of ``CHUNK`` baselines.

    A launch between two stretches belongs to the first; the baseline at the cut belongs to both.
    """
    panels: dict[tuple[str, bool], list[int]] = {}
    for index, figure in enumerate(figures):
        panels.setdefault((figure.host, figure.confirm), []).append(index)
    out: list[Chunk] = []
    for (host, confirm), indices in sorted(panels.items()):
        order = sorted(indices, key=lambda i: (figures[i].at, figures[i].sequence))
        at = np.array([figures[i].at for i in order])
        steps = np.diff(at)
        slot = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
        baselines = [k for k, i in enumerate(order) if figures[i].role is Role.BASELINE]
        cuts = baselines[CHUNK::CHUNK]
        # A last stretch of very few baselines would know nothing of its own drift.
        if cuts and len(baselines) - CHUNK * len(cuts) < CHUNK // 4:
            cuts.pop()
        edges = [0, *cuts, len(order) - 1]
        for start, stop in pairwise(edges):
            rows = order[start : stop + 1]
            out.append(
                Chunk(
                    members=np.array(rows, dtype=np.int_),
                    baseline=np.array([figures[i].role is Role.BASELINE for i in rows]),
                    slots=(at[start : stop + 1] - at[start]) / slot,
                    host=host,
                    confirm=confirm,
                    slot_s=slot,
                    _cache={},
                )
            )
    return out


def brackets_disagree(chunk: Chunk, level: Array, tolerance: float, within: float) -> dict[int, str]:
    """Launch index -> why, for launches whose bracketing baselines differ by more than noise and ``tolerance``.

    ``level``: log figures of all launches of the study; ``within``: the variance of a baseline launch's log figure that
    its own rounds explain. Noise is the median of the *other* differences between successive baselines (a single step
    must not hide itself), its square averaged with what was believed before (``BELIEVED_SD`` and ``within``); three
    standard deviations are allowed. With two baselines there are no others, and the belief stands alone: launches that
    vary by 4 % are refused in 2 of 100 brackets, where one or two differences by themselves would refuse 5 to 40. A
    linear drift slow enough to stay within the tolerance between two baselines is interpolated, not refused.
    """
    values = level[chunk.members]
    usable = np.flatnonzero(chunk.baseline & np.isfinite(values))
    if len(usable) < 2:
        return {}
    jumps = np.abs(np.diff(values[usable]))
    believed = 2.0 * (BELIEVED_SD**2 + within)  # variance of a difference between two launches
    out: dict[int, str] = {}
    for number, (before, after) in enumerate(pairwise(usable)):
        others = np.sort(np.delete(jumps, number))
        # The median absolute difference of a normal is its standard deviation divided by 1.4826.
        seen = 1.4826 * float(others[len(others) // 2]) if len(others) else 0.0
        total = BELIEVED_WORTH * believed + len(others) * seen**2
        allowed = max(tolerance, 3.0 * float(np.sqrt(total / (BELIEVED_WORTH + len(others)))))
        if jumps[number] <= allowed:
            continue
        change = float(np.expm1(values[after] - values[before]))
        limit = float(np.expm1(np.copysign(allowed, change)))  # of the same sign: logs are not symmetric in per cent
        for inside in range(before + 1, after):
            if not chunk.baseline[inside]:
                out[int(chunk.members[inside])] = (
                    f"the baselines before and after it on {chunk.host} differ by {change:+.1%}, "
                    f"more than the {limit:+.1%} that noise and tolerance allow"
                )
    return out


def slope_per_hour(chunk: Chunk, level: Array, variance: float) -> tuple[float, float] | None:
    """Linear drift of the baseline, fraction per hour, with its standard error; None from fewer than two launches."""
    values = level[chunk.members]
    usable = chunk.baseline & np.isfinite(values)
    hours = chunk.slots[usable] * chunk.slot_s / 3600
    if usable.sum() < 2 or np.ptp(hours) <= 0:
        return None
    centred = hours - hours.mean()
    square = float((centred**2).sum())
    return float((centred * values[usable]).sum() / square), float(np.sqrt(variance / square))
