"""Accept length by depth and width.

The chance q_j that draft j + 1 is accepted, given that the j before it were, is modelled through

    log(-log(1 - q_j)) = a_g + s_g j + d_j + gamma_g log(width) + ...,      AL = 1 + sum_j prod_{i<=j} q_i

The complementary log-log makes width linear: w independent alternatives of chance p give 1 - (1-p)^w, and correlated
ones 1 - (1-p)^(w^gamma), gamma < 1. Groups g (algorithm, drafter) deviate from a shared value, so one drafter's
launches teach the next. A launch's accept histogram gives one observation per depth: a deep chain teaches every
shallower one. How conditional acceptance shifts with depth between trees is a residual of its own (its load grows with
depth), which widens the interval of what was only seen in another tree. Without histograms the accept length itself is
used, linearised about the current estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.search.model.features import Table
from sweep.search.model.gaussian import Array, Conditioned, Hyper, Index, Part, Posterior, Prior, Rows, average, fits

# No drafter is right more often than this at any width (argmax ties and sampling noise remain); a smooth minimum.
CEILING = float(np.log(-np.log(0.03)))
SHARPNESS = 6.0
# A residual of the depth slope reaches the level's own size after this many depths.
DEPTH_SCALE = 4.0
ROUNDS = 3
START = Hyper(0.06, 1.0)
# Verify steps of one answer are not quite independent: the grid allows twice the binomial error. Larger residuals are
# believed on evidence alone: with -0.3 instead, 87 % of 400 `saturating` problems are within 1 % after 12 launches, not
# 90 %; of `product` 89 %, not 91 %.
GRID = tuple(
    Hyper(amplitude, noise, -0.8 * i, main)
    for i, amplitude in enumerate((0.02, 0.06, 0.15, 0.4))
    for noise in (1.0, 2.0)
    for main in (0.9, 0.3)
)


@dataclass(frozen=True)
class Accepted:
    """What one launch taught: its configuration's ``index`` in the table, ``histogram`` of accepted drafts per verify
    step or None, and ``accept_length`` with its relative error."""

    index: int
    histogram: tuple[int, ...] | None
    accept_length: float | None
    error: float = 0.015


class Acceptance:
    """Posterior of log accept length at every configuration of ``table``."""

    def __init__(self, table: Table, groups: int, depth: int, seen: Sequence[Accepted]) -> None:
        self._table, self._groups, self._max_depth = table, groups, max(depth, 1)
        self.prior = self._prior()
        histograms = [(s.index, *_by_depth(s.histogram, int(table.depth[s.index]))) for s in seen if s.histogram]
        lengths = [s for s in seen if not s.histogram and s.accept_length and s.accept_length > 1.0]
        index = np.concatenate([np.full(len(d), i) for i, d, _, _ in histograms] or [np.empty(0)]).astype(np.intp)
        depth_of = np.concatenate([d for _, d, _, _ in histograms] or [np.empty(0)]).astype(np.intp)
        eta = np.concatenate([e for _, _, e, _ in histograms] or [np.empty(0)])
        error = np.concatenate([s for _, _, _, s in histograms] or [np.empty(0)])
        self._fit: list[tuple[float, Conditioned]] = []
        estimate: Conditioned | None = None
        for _ in range(ROUNDS):
            rows, y, scale = self._observed(index, depth_of, eta, error, estimate)
            more = self._linear_lengths(lengths, estimate)
            rows, y, scale = _join((rows, y, scale), more)
            estimate = Conditioned(self.prior, rows, y, scale, START)
        self._fit = [
            (w, fit) for w, (fit, _) in average([(fit, None) for fit in fits(self.prior, rows, y, scale, GRID)])
        ]
        self._best = self._fit[0][1]
        self.misfit = float(sum(w * c.hyper.amplitude for w, c in self._fit))

    def posterior(self, index: Index) -> Posterior:
        """Of log AL at these configurations."""
        _, rows, offset = self.log_length(index, self._best)
        return Posterior([Part(w, c, rows, offset) for w, c in self._fit])

    def log_length(self, index: Index, at: Conditioned | None) -> tuple[Array, Rows, Array]:
        """(value, rows, offset): log AL at the estimate ``at``, and its linearisation offset + rows . unknowns."""
        table = self._table
        depth = self._max_depth
        grid = np.tile(np.arange(depth), (len(index), 1))
        alive = grid < table.depth[index][:, None]
        rows = self._rows(np.repeat(index, depth), grid.ravel())
        raw = (rows.basis @ self.prior.mean if at is None else self._mean(rows, index, depth, at)).reshape(grid.shape)
        eta, slope = _ceiling(raw)
        q = np.where(alive, -np.expm1(-np.exp(eta)), 0.0)
        reach = np.cumprod(q, axis=1)
        length = 1.0 + reach.sum(1)
        # d AL / d q_j = sum_{m>=j} reach_m / q_j;   d q / d eta = (1 - q) exp(eta)
        after = np.cumsum(reach[:, ::-1], axis=1)[:, ::-1]
        weight = np.where(alive, after / np.maximum(q, 1e-9) * (1.0 - q) * np.exp(eta) * slope, 0.0) / length[:, None]
        basis = np.einsum("nj,njp->np", weight, rows.basis.reshape(len(index), depth, len(self.prior.mean)))
        loads = np.einsum("nj,njr->nr", weight, rows.loads.reshape(len(index), depth, 2))
        linear = Rows(basis, loads, table.near[index], np.arange(len(index), dtype=np.intp))
        return np.log(length), linear, np.log(length) - (weight * raw).sum(1)

    def _mean(self, rows: Rows, index: Index, depth: int, at: Conditioned) -> Array:
        residual = np.repeat(at.residual(self._table.near[index]), depth, axis=0)
        return np.asarray(rows.basis @ at.terms() + (rows.loads * residual).sum(1))

    def _prior(self) -> Prior:
        """Shared: level 0 +- 0.7 (acceptance 0.4-0.87), slope -0.06 +- 0.06 per depth, width exponent 0.5 +- 0.2;
        per drafter +- 0.35, 0.05, 0.12; any depth +- 0.1 of its own, a drafter's +- 0.03 more."""
        groups, depth = self._groups, self._max_depth
        level, slope, width, topk, budget = (0.0, 0.7), (-0.06, 0.06), (0.5, 0.2), (0.0, 0.15), (0.0, 0.15)
        deeper_width, first_topk, first_budget = (0.0, 0.06), (0.0, 0.2), (0.0, 0.2)
        bounded = (0.0, 0.3)
        shared = [level, slope, width, topk, budget, deeper_width, first_topk, first_budget, bounded]
        mean = [m for m, _ in shared] + [0.0] * (3 * groups + (1 + groups) * depth)
        sd = [s for _, s in shared] + [0.35] * groups + [0.05] * groups + [0.12] * groups
        sd += [0.1] * depth + [0.03] * (groups * depth)
        return Prior(np.array(mean), np.array(sd) ** 2)

    def _rows(self, index: Index, depth: Index) -> Rows:
        """Rows of eta at (configuration, depth) pairs."""
        t = self._table
        j = depth.astype(float)
        width, topk, verified = np.log(t.width[index]), np.log(t.topk[index]), np.log1p(t.verified[index])
        member = np.eye(self._groups)[t.group[index]]
        budget = verified - np.log1p(t.depth[index])
        # The first depth has topk candidates whatever the budget, deeper ones share what the budget leaves.
        first = depth == 0
        shared = np.stack(
            [
                np.ones(len(j)),
                j,
                width,
                topk,
                budget,
                j * width / 4.0,
                first * topk,
                first * budget,
                -np.expm1(-width),
            ],
            axis=1,
        )
        per_depth = np.eye(self._max_depth)[np.minimum(depth, self._max_depth - 1)]
        own_depth = (member[:, :, None] * per_depth[:, None, :]).reshape(len(j), self._groups * self._max_depth)
        basis = np.concatenate(
            [shared, member, member * j[:, None], member * width[:, None], per_depth, own_depth], axis=1
        )
        loads = np.stack([np.ones(len(j)), j / DEPTH_SCALE], axis=1)
        points, at = np.unique(index, return_inverse=True)
        return Rows(basis, loads, t.near[points], at.astype(np.intp))

    def _observed(
        self, index: Index, depth: Index, eta: Array, error: Array, at: Conditioned | None
    ) -> tuple[Rows, Array, Array]:
        """Histogram observations, linearised through the ceiling about the current estimate."""
        rows = self._rows(index, depth)
        raw = rows.basis @ self.prior.mean if at is None else at.mean(rows)
        if at is None:
            return rows, eta, error
        value, slope = _ceiling(raw)
        linear = Rows(rows.basis * slope[:, None], rows.loads * slope[:, None], rows.features, rows.at)
        return linear, eta - value + slope * raw, error

    def _linear_lengths(self, lengths: Sequence[Accepted], at: Conditioned | None) -> tuple[Rows, Array, Array]:
        index = np.array([s.index for s in lengths], dtype=np.intp)
        _, rows, offset = self.log_length(index, at)
        y = np.log(np.array([s.accept_length for s in lengths], dtype=float)) - offset
        return rows, y, np.array([s.error for s in lengths])


def _by_depth(histogram: Sequence[int], depth: int) -> tuple[Array, Array, Array]:
    """(depths, eta, standard error) from counts of verify steps that accepted k drafts.

    At depth j, those that reached it are trials and those that went past it successes; half a count is added to each
    side, so that all or none is finite.
    """
    counts = np.asarray(histogram, dtype=float)
    reached = np.cumsum(counts[::-1])[::-1]
    depths, eta, error = [], [], []
    for j in range(min(depth, len(counts))):
        at_risk = reached[j]
        if at_risk < 5:
            break
        passed = reached[j + 1] if j + 1 < len(reached) else 0.0
        q = (passed + 0.5) / (at_risk + 1.0)
        hazard = -np.log1p(-q)
        depths.append(float(j))
        eta.append(float(np.log(hazard)))
        error.append(float(np.sqrt(q * (1 - q) / (at_risk + 1.0)) / ((1 - q) * hazard)))
    return np.array(depths), np.array(eta), np.array(error)


def _ceiling(eta: Array) -> tuple[Array, Array]:
    """Smooth minimum of eta and the ceiling, and its slope."""
    over = SHARPNESS * (CEILING - eta)
    return CEILING - np.logaddexp(0.0, over) / SHARPNESS, 1.0 / (1.0 + np.exp(-np.clip(over, -60, 60)))


def _join(a: tuple[Rows, Array, Array], b: tuple[Rows, Array, Array]) -> tuple[Rows, Array, Array]:
    rows = Rows(
        np.concatenate([a[0].basis, b[0].basis]),
        np.concatenate([a[0].loads, b[0].loads]),
        np.concatenate([a[0].features, b[0].features]),
        np.concatenate([a[0].at, b[0].at + len(a[0].features)]),
    )
    return rows, np.concatenate([a[1], b[1]]), np.concatenate([a[2], b[2]])
