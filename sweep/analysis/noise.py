"""Launch-to-launch variance of a cell, pooled over everything that was ever repeated, and what it lets one resolve.

V is the variance of a baseline launch's log figure about the drifting level: launch effect plus what is left of the
variation inside. Given the walk, baselines and repeated arms give a sum of squares with its degrees of freedom; a
scaled inverse chi-squared prior (``prior_sd``, ``prior_df``) joins it, so that two launches that happen to agree do
not make a zero and one launch does not make an infinity. Predictions are then Student's t with the joint degrees of
freedom, mixed over the walks by marginal likelihood (conjugate normal model: Gelman et al., Bayesian Data Analysis,
3rd ed., 14.2-14.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from sweep.analysis.cell import CellData
from sweep.analysis.drift import WALK_PRIOR, WALKS, Chunk, Index
from sweep.analysis.robust import Array
from sweep.analysis.types import AnalysisSettings, NoiseFloor


@dataclass(frozen=True)
class NoiseModel:
    """K walks: posterior ``weights`` and variance ``v`` of each, common ``df``. ``within``: the part of V that a
    baseline launch's own rounds explain. ``own`` per launch: what this launch's variance exceeds V by (an arm whose
    rounds scatter more than the baseline's), with ``own_df``."""

    weights: Array
    v: Array
    df: float
    within: float
    own: Array
    own_df: Array

    @property
    def mean_v(self) -> float:
        return float(self.weights @ self.v)

    @property
    def between(self) -> float:
        """Variance of the launch effect alone, not below 0."""
        return max(0.0, self.mean_v - self.within)


@dataclass(frozen=True)
class Prediction:
    """Every launch against the baseline predicted at its time: ``difference`` K x launches (NaN where there is no
    baseline), and per chunk the K x m x m covariance of the prediction errors in units of V."""

    difference: Array
    spread: tuple[Array | None, ...]


def predict(cell: CellData, parts: Sequence[Chunk]) -> tuple[Prediction, Array, Array, Array]:
    """Also returns, per walk, the baselines' sum of squares, log determinants and degrees of freedom.

    The latter are the sum of squares that pure launch noise of variance 1 would leave (the trace of the inverse), so
    that drift terms which explain noise by chance do not make V look smaller than it is.
    """
    difference = np.full((len(WALKS), len(cell.level)), np.nan)
    squares, logdet, df = (np.zeros(len(WALKS)) for _ in range(3))
    spread: list[Array | None] = []
    for chunk in parts:
        level = cell.level[chunk.members]
        usable = chunk.baseline & np.isfinite(level)
        together = cell.partner[chunk.members] >= 0
        if not usable.any():
            spread.append(None)
            continue
        shape = chunk.geometry(usable)
        base = level[usable]
        centred = base - base.mean()
        squares += np.einsum("i,kij,j->k", centred, shape.inverse, centred)
        logdet += shape.logdet
        df += _left(shape.inverse)
        predicted = base.mean() + shape.weights @ centred
        difference[:, chunk.members] = np.where(together[None], level[None], level[None] - predicted)
        spread.append(_with_partners(shape.spread, cell.partner[chunk.members], together))
    return Prediction(difference, tuple(spread)), squares, logdet, df


def _left(inverse: Array) -> Array:
    """Trace of each inverse with the constant projected out (the figures are centred)."""
    return np.asarray(np.einsum("kii->k", inverse) - inverse.mean(axis=(1, 2)), dtype=np.float64)


def _with_partners(spread: Array, partner: Index, together: np.ndarray) -> Array:
    """Paired launches share their partner's error (variance V) instead of the prediction's."""
    if not together.any():
        return spread
    out = spread.copy()
    out[:, together, :] = 0.0
    out[:, :, together] = 0.0
    same = together[:, None] & together[None, :] & (partner[:, None] == partner[None, :])
    out[:, same] = 1.0
    return out


def learn(
    cell: CellData, parts: Sequence[Chunk], repeats: Sequence[tuple[int, Index]], settings: AnalysisSettings
) -> tuple[NoiseModel, Prediction]:
    """``repeats``: (chunk number, positions in the chunk) of every arm launched more than once in it."""
    prediction, squares, logdet, df = predict(cell, parts)
    known = sum(max(int((c.baseline & np.isfinite(cell.level[c.members])).sum()) - 1, 0) for c in parts)
    within = cell.within[cell.baseline]
    within_b = float(np.median(within[np.isfinite(within)])) if np.isfinite(within).any() else 0.0
    # Prompt by prompt, what an arm's requests scatter beyond the baseline's is counted as interaction, not here.
    excess = np.zeros(len(cell.level)) if cell.by_prompt else np.where(np.isfinite(cell.within), cell.within, 0.0)
    if not cell.by_prompt:
        excess = excess - within_b
    for number, places in repeats:
        spread = prediction.spread[number]
        if spread is None:
            continue
        rows = parts[number].members[places]
        fine = np.isfinite(prediction.difference[0, rows])
        rows, places = rows[fine], places[fine]
        if len(rows) < 2:
            continue
        values = prediction.difference[:, rows]
        inverse = np.linalg.inv(spread[:, places[:, None], places[None, :]] + np.eye(len(rows))[None])
        ones = inverse.sum(axis=2)
        mean = (ones * values).sum(axis=1) / ones.sum(axis=1)
        rest = values - mean[:, None]
        found = np.einsum("ki,kij,kj->k", rest, inverse, rest)
        squares += np.maximum(found - (len(rows) - 1) * max(float(excess[rows].mean()), 0.0), 0.0)
        df += len(rows) - 1
        known += len(rows) - 1
    prior = settings.prior_sd**2 + within_b
    total = settings.prior_df + df
    scale = (settings.prior_df * prior + squares) / total
    count = settings.prior_df + known
    log_weight = np.log(WALK_PRIOR) - 0.5 * logdet - 0.5 * count * np.log(settings.prior_df * prior + squares)
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    if not settings.launch_effects:
        weights, scale = np.eye(len(WALKS))[0], np.zeros(len(WALKS))
        excess = np.where(np.isfinite(cell.within), 0.0 if cell.by_prompt else cell.within, 0.0)
    else:
        # However small V is found, a launch is not better known than its own rounds allow.
        v = float(weights @ scale)
        own_total = np.maximum(
            v + excess, 0.0 if cell.by_prompt else np.where(np.isfinite(cell.within), cell.within, 0.0)
        )
        excess = own_total - v
    return NoiseModel(weights, scale, float(weights @ total), within_b, excess, cell.within_df), prediction


def resolution(
    metric: str,
    concurrency: int,
    model: NoiseModel,
    spread: float,
    extra: float,
    unit_sd: float,
    settings: AnalysisSettings,
) -> NoiseFloor:
    """Noise floor of a cell. ``spread``: median variance of the baseline's prediction in units of V; ``extra``: median
    variance of a candidate beyond V (its own rounds, prompts).

    Minimum detectable gain = exp((t(1 - alpha/2) + t(power)) * SE) - 1; launches needed is the least L with
    SE * sqrt(1/L) small enough for the wanted gain, candidate and baseline relaunched L times each.
    """
    df = model.df
    reach = float(stats.t.ppf(1 - settings.alpha / 2, df) + stats.t.ppf(settings.power, df))
    variance = model.mean_v * (1 + spread) + extra
    pair = 2 * model.mean_v + extra
    wanted = math.log1p(settings.wanted_gain)
    needed = max(1, math.ceil(pair * (reach / wanted) ** 2))
    return NoiseFloor(
        metric=metric,
        concurrency=concurrency,
        between_launch_sd=math.sqrt(model.between),
        within_launch_sd=unit_sd,
        launch_mean_sd=math.sqrt(model.mean_v),
        df=df,
        minimum_detectable_gain=math.expm1(reach * math.sqrt(variance)),
        wanted_gain=settings.wanted_gain,
        launches_needed=needed,
    )
