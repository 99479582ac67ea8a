"""Time of one verify step.

    t(b) = exp(base_b) (1 + exp(draft_b) steps (1 + kappa topk) + exp(verify_b) verified^bend_b) exp(exp(graph) off)

with off = 1 where CUDA graphs are off.

One drafter pass per step (a wider frontier costs a little more), one pass of the target over the tree, both relative
to the pass of a single token. Every logarithm is a sum of a shared value, a slope over log b, a deviation per
concurrency level and, where it can differ, per drafter, so that levels, drafters and graph settings share strength.
The logarithm of t is linearised about the current estimate (Gauss-Newton); what the form misses (cliffs at graph batch
sizes, memory-bound regimes) is left to the residual process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.search.model.features import Table
from sweep.search.model.gaussian import Array, Conditioned, Hyper, Index, Posterior, Prior, Rows, average

ROUNDS = 5
# The verified tokens at which the cost of one is stated; other counts through the power law.
PIVOT = 8.0
START = Hyper(0.02, 1.0)
GRID = tuple(
    Hyper(amplitude, noise, -0.5 * i - 0.5 * abs(k - 1), main)
    for i, amplitude in enumerate((0.003, 0.01, 0.03, 0.1, 0.3))
    for k, noise in enumerate((0.5, 1.0, 2.0, 4.0))
    for main in (0.95, 0.4)
)


@dataclass(frozen=True)
class Stepped:
    """One launch at one concurrency: configuration's ``index``, ``level`` into the levels, seconds per step and its
    relative standard error (the grid scales it)."""

    index: int
    level: int
    seconds: float
    error: float


class StepTime:
    """Posterior of log step time at (configuration, level) pairs. ``levels``: concurrencies; ``table`` as indexed."""

    def __init__(self, table: Table, groups: int, levels: Sequence[float], seen: Sequence[Stepped]) -> None:
        self._table, self._groups = table, groups
        self._log_b = np.log(np.asarray(levels, dtype=float))
        index = np.array([s.index for s in seen], dtype=np.intp)
        level = np.array([s.level for s in seen], dtype=np.intp)
        y = np.log(np.array([s.seconds for s in seen]))
        scale = np.array([s.error for s in seen])
        self.prior = self._prior(float(np.median(y)) if len(y) else 0.0)
        terms = self.prior.mean
        for _ in range(ROUNDS):
            rows, offset = self._linear(index, level, terms)
            terms = Conditioned(self.prior, rows, y - offset, scale, START).terms()
        self._terms = terms
        rows, offset = self._linear(index, level, terms)
        self._fit = average(self.prior, rows, y - offset, scale, GRID)
        self.misfit = float(sum(w * c.hyper.amplitude for w, c in self._fit))

    def posterior(self, index: Index, level: int) -> Posterior:
        """Of log seconds per step at these configurations and one level."""
        rows, offset = self._linear(index, np.full(len(index), level, dtype=np.intp), self._terms)
        return Posterior(self._fit, rows, offset)

    def _prior(self, base: float) -> Prior:
        """Drafter pass 6 % of a target pass (factor 2.2 either way); a verified token 0.6 % at b = 1 (factor 2.7),
        growing as sqrt(b), with a power near 1; a frontier node 3 % of a drafter pass; graphs off costs a factor 1.5
        (1.3 to 1.8) and never less than nothing, since a graph only removes launch overhead."""
        levels, groups, extras = len(self._log_b), self._groups, self._table.extras.shape[1]
        spread = 1.0 if levels > 1 else 0.0
        terms = [
            *[(base, 0.7), (0.15, 0.3 * spread)],
            *[(0.0, 0.3 * spread)] * levels,
            *[(float(np.log(0.06)), 0.8), (0.0, 0.3 * spread)],
            *[(0.0, 0.25 * spread)] * levels,
            *[(0.0, 0.15)] * groups,
            *[(float(np.log(0.006)), 1.0), (0.5 * spread, 0.4 * spread)],
            *[(0.0, 0.25 * spread)] * levels,
            *[(1.0, 0.15), (0.0, 0.15 * spread)],
            *[(0.0, 0.15 * spread)] * levels,
            *[(float(np.log(0.03)), 0.7)],
            *[(float(np.log(0.4)), 0.35), (0.0, 0.05)],
            *[(0.0, 0.05)] * groups,
            *[(0.0, 0.15)] * extras,
        ]
        return Prior(np.array([m for m, _ in terms]), np.array([s for _, s in terms]) ** 2)

    def _linear(self, index: Index, level: Index, at: Array) -> tuple[Rows, Array]:
        """log t at the pairs, linearised about the terms ``at``: (rows, offset), log t = offset + rows . terms."""
        t, n = self._table, len(index)
        levels = len(self._log_b)
        one, log_b = np.ones((n, 1)), self._log_b[level][:, None]
        at_level, member = np.eye(levels)[level], np.eye(self._groups)[t.group[index]]
        base = np.concatenate([one, log_b, at_level], axis=1)
        draft = np.concatenate([one, log_b, at_level, member], axis=1)
        verify = np.concatenate([one, log_b, at_level], axis=1)
        cut = np.cumsum([base.shape[1], draft.shape[1], verify.shape[1], verify.shape[1]])
        kappa = float(np.exp(at[cut[3]]))
        drafting = np.exp(draft @ at[cut[0] : cut[1]]) * t.steps[index]
        octaves = np.log(np.maximum(t.verified[index], 0.5) / PIVOT)
        bend = verify @ at[cut[2] : cut[3]]
        verifying = np.exp(verify @ at[cut[1] : cut[2]] + bend * octaves) * PIVOT * (t.verified[index] > 0)
        topk = t.topk[index]
        total = 1.0 + drafting * (1.0 + kappa * topk) + verifying
        penalty = float(np.exp(at[cut[3] + 1]))
        off = t.no_graph[index][:, None]
        tail = np.concatenate([off * np.log1p(t.steps[index])[:, None], member, t.extras[index]], axis=1)
        basis = np.concatenate(
            [
                base,
                draft * (drafting * (1.0 + kappa * topk) / total)[:, None],
                verify * (verifying / total)[:, None],
                verify * (verifying * octaves / total)[:, None],
                (drafting * kappa * topk / total)[:, None],
                off * penalty,
                tail,
            ],
            axis=1,
        )
        value = base @ at[: cut[0]] + np.log(total) + off[:, 0] * penalty + tail @ at[cut[3] + 2 :]
        near = np.concatenate([t.near[index, :-1], log_b / np.log(8.0)], axis=1)
        return Rows(basis, np.ones((n, 1)), near, np.arange(n, dtype=np.intp)), value - basis @ at
