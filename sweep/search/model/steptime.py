"""Time of one verify step.

    t(b) = exp(base_b) (1 + draft_b + verify_b + bound_b) x exp(graph off + jump)
    draft_b = exp(draft) steps (1 + exp(kappa) topk),  verify_b = exp(verify) verified^bend
    bound_b = exp(weight) (max(1, b (verified + 1) / ridge) - 1)

One drafter pass per step (a wider frontier costs a little more), one pass of the target over the tree, all relative to
the pass of a single token. Every logarithm but those of the bound is a sum of a shared value, a slope over log b, a
deviation per concurrency level and, where it can differ, per drafter, so that levels, drafters and graph settings
share strength. The logarithm of t is linearised about the current estimate (Gauss-Newton); what the form misses is left
to the residual process.

The bound is the roofline (Williams, Waterman & Patterson 2009): a pass is bound by memory, and its tokens are free, up
to a ridge of tokens in flight; beyond it by arithmetic, in proportion. Where a step time has a corner the best tree
often sits in it, so corners must not be smoothed away: whether there is one and where (:class:`Form`) are hypotheses,
averaged by their evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.search.model.features import Table
from sweep.search.model.gaussian import (
    Array,
    Conditioned,
    Hyper,
    Index,
    Part,
    Points,
    Posterior,
    Prior,
    Rows,
    average,
    fits,
)

# Rounds of Gauss-Newton for the plain form, and for every other from there.
ROUNDS = 5
MORE_ROUNDS = 2
# The verified tokens at which the cost of one is stated; other counts through the power law.
PIVOT = 8.0
# The order of the smooth maximum in the bound: 6 % above the corner.
SHARP = 12.0
START = Hyper(0.02, 1.0)
GRID = tuple(
    Hyper(amplitude, noise, -0.5 * i - 0.5 * abs(k - 1), main)
    for i, amplitude in enumerate((0.005, 0.03, 0.1, 0.3))
    for k, noise in enumerate((0.7, 1.0, 1.5))
    for main in ((0.95, 0.4) if amplitude > 0.01 else (0.95,))
)
# Tokens in flight at which arithmetic may begin to bind; each is refined by a factor of 1.3 either way.
RIDGES = (16.0, 32.0, 64.0, 128.0, 256.0)
# Tokens per request past which another kernel, or no captured graph, may serve a pass.
JUMPS = (8.0, 16.0, 32.0)
# Chances of a ridge within reach, of such a jump, of padding to powers of two.
RIDGE, JUMP, PAD = 0.5, 0.2, 0.2
# Forms that get the whole grid: the best so many, none less likely than the best by this log evidence.
MOST_FORMS = 4
FAR = 3.0


@dataclass(frozen=True)
class Form:
    """One hypothesis. ``ridge`` (tokens in flight) and ``jump`` (tokens per request, with graphs) are infinite where
    there is none; ``padded``: with graphs, verified tokens cost as much as the next power of two, the sizes that graphs
    are captured for and that kernels tile by."""

    ridge: float = math.inf
    jump: float = math.inf
    padded: bool = False
    log_prior: float = 0.0


def forms(flight: float, widest: float) -> list[Form]:
    """The plain form first, then every other that differs where ``flight`` tokens at most are in flight at once and
    ``widest`` at most belong to one request."""
    ridges = _among([r for r in RIDGES if r < 1.5 * flight], RIDGE)
    jumps = _among([j for j in JUMPS if j < widest], JUMP)
    pads = ((False, 1.0 - PAD), (True, PAD))
    return [
        Form(ridge, jump, padded, math.log(p * q * r)) for ridge, p in ridges for jump, q in jumps for padded, r in pads
    ]


def _among(values: Sequence[float], chance: float) -> list[tuple[float, float]]:
    """None of them (infinite), then each, with their chances."""
    return [(math.inf, 1.0 - chance if values else 1.0), *((v, chance / len(values)) for v in values)]


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
        plain, *others = forms(
            float(np.exp(self._log_b.max()) * (table.verified.max() + 1.0)), table.verified.max() + 1.0
        )
        points = self._points(index, level)
        near = Points(points, points)

        def settle(form: Form, terms: Array, rounds: int) -> tuple[float, Form, Array]:
            evidence = 0.0
            for _ in range(rounds):
                rows, offset = self._linear(index, level, terms, form, points)
                own = self.prior.covariances(rows, rows, near)
                fit = Conditioned(self.prior, rows, y - offset, scale, START, own)
                terms, evidence = fit.terms(), fit.evidence
            return evidence + form.log_prior, form, terms

        tried = [settle(plain, self.prior.mean, ROUNDS)]
        tried += [settle(form, tried[0][2], MORE_ROUNDS) for form in others]
        tried.sort(key=lambda row: -row[0])
        found: list[tuple[Conditioned, tuple[Form, Array]]] = []
        for evidence, form, terms in tried[:MOST_FORMS]:
            if evidence >= tried[0][0] - FAR:
                rows, offset = self._linear(index, level, terms, form, points)
                own = self.prior.covariances(rows, rows, near)
                found += [
                    (fit, (form, terms)) for fit in fits(self.prior, rows, y - offset, scale, GRID, own, form.log_prior)
                ]
        self._fit = [(w, fit, at) for w, (fit, at) in average(found)]
        self.misfit = float(sum(w * fit.hyper.amplitude for w, fit, _ in self._fit))

    def posterior(self, index: Index, level: int) -> Posterior:
        """Of log seconds per step at these configurations and one level."""
        at = np.full(len(index), level, dtype=np.intp)
        points = self._points(index, at)
        seen = {form: self._linear(index, at, terms, form, points) for _, _, (form, terms) in self._fit}
        return Posterior([Part(w, fit, *seen[form]) for w, fit, (form, _) in self._fit])

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
            *[(float(np.log(0.03)), 0.7), (0.5 * spread, 0.4 * spread)],
            *[(0.0, 0.25 * spread)] * levels,
            *[(float(np.log(0.7)), 0.4), (0.0, 0.25)],
            *[(float(np.log(0.17)), 0.5)],
            *[(float(np.log(0.4)), 0.35), (0.0, 0.05)],
            *[(0.0, 0.05)] * groups,
            *[(0.0, 0.15)] * extras,
        ]
        return Prior(np.array([m for m, _ in terms]), np.array([s for _, s in terms]) ** 2)

    def _linear(self, index: Index, level: Index, at: Array, form: Form, points: Array) -> tuple[Rows, Array]:
        """log t at the pairs, linearised about the terms ``at``: (rows, offset), log t = offset + rows . terms."""
        t, n = self._table, len(index)
        verified = t.verified[index]
        if form.padded:
            whole = 2.0 ** np.ceil(np.log2(verified + 1.0)) - 1.0
            verified = np.where(t.no_graph[index] > 0, verified, whole)
        levels = len(self._log_b)
        one, log_b = np.ones((n, 1)), self._log_b[level][:, None]
        at_level, member = np.eye(levels)[level], np.eye(self._groups)[t.group[index]]
        base = np.concatenate([one, log_b, at_level], axis=1)
        draft = np.concatenate([one, log_b, at_level, member], axis=1)
        verify = np.concatenate([one, log_b, at_level], axis=1)
        cut = np.cumsum([base.shape[1], draft.shape[1], verify.shape[1], verify.shape[1], verify.shape[1]])
        kappa = np.exp(verify @ at[cut[3] : cut[4]])
        drafting = np.exp(draft @ at[cut[0] : cut[1]]) * t.steps[index]
        octaves = np.log(np.maximum(verified, 0.5) / PIVOT)
        bend = verify @ at[cut[2] : cut[3]]
        verifying = np.exp(verify @ at[cut[1] : cut[2]] + bend * octaves) * PIVOT * (verified > 0)
        topk = t.topk[index]
        weight, ridge = float(np.exp(at[cut[4]])), form.ridge * float(np.exp(at[cut[4] + 1]))
        flight = (np.exp(log_b[:, 0]) * (verified + 1.0) / ridge) ** SHARP
        corner = (1.0 + flight) ** (1.0 / SHARP)
        bound, refined = weight * (corner - 1.0), -weight * corner * flight / (1.0 + flight)
        jump = float(np.exp(at[cut[4] + 2])) * ((t.verified[index] + 1.0 > form.jump) & (t.no_graph[index] == 0))
        penalty = float(np.exp(at[cut[4] + 3]))
        total = 1.0 + drafting * (1.0 + kappa * topk) + verifying + bound
        off = t.no_graph[index][:, None]
        tail = np.concatenate([off * np.log1p(t.steps[index])[:, None], member, t.extras[index]], axis=1)
        basis = np.concatenate(
            [
                base,
                draft * (drafting * (1.0 + kappa * topk) / total)[:, None],
                verify * (verifying / total)[:, None],
                verify * (verifying * octaves / total)[:, None],
                verify * (drafting * kappa * topk / total)[:, None],
                (bound / total)[:, None],
                (refined / total)[:, None],
                jump[:, None],
                off * penalty,
                tail,
            ],
            axis=1,
        )
        value = base @ at[: cut[0]] + np.log(total) + jump + off[:, 0] * penalty + tail @ at[cut[4] + 4 :]
        return Rows(basis, np.ones((n, 1)), points, np.arange(n, dtype=np.intp)), value - basis @ at

    def _points(self, index: Index, level: Index) -> Array:
        return np.concatenate([self._table.near[index, :-1], self._log_b[level][:, None] / np.log(8.0)], axis=1)
