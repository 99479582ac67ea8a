"""Rows of a study -> what is believed about every configuration.

    tokens/s at concurrency b = b x accept length / step time(b)

The two halves are learnt apart (:mod:`.acceptance`, :mod:`.steptime`): acceptance does not depend on the hardware, step
time not on the text. Metrics other than output throughput are regressed on it (:mod:`.generic`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtr

from sweep.model import ArmConfig, Objective, Verdict
from sweep.search.model.acceptance import Acceptance, Accepted
from sweep.search.model.feasible import chance
from sweep.search.model.features import Vocabulary, table
from sweep.search.model.gaussian import Array, Index, Posterior
from sweep.search.model.generic import Generic
from sweep.search.model.steptime import Stepped, StepTime
from sweep.search.view import Told

THROUGHPUT = "output_throughput"
# Relative error of one launch's figures where the row does not carry its own (measured: 1.4-6 % of a block).
THROUGHPUT_ERROR = 0.025
LENGTH_ERROR = 0.01
# An accept length the server did not report is taken from the model with this relative error.
UNREPORTED_ERROR = 0.1


class Outlook:
    """The belief about one objective over all configurations, in natural logarithms, larger is better. ``noise``: the
    standard deviation of what one more launch would show, its configuration known."""

    def __init__(self, parts: Sequence[tuple[float, Posterior]], centre: float, noise: float) -> None:
        self._parts = parts
        self.noise = noise
        self.mean = centre + np.sum([sign * p.mean for sign, p in parts], axis=0)
        self.var = np.sum([sign**2 * p.var for sign, p in parts], axis=0)

    def covariance(self, a: Index, b: Index) -> Array:
        return np.asarray(np.sum([sign**2 * p.covariance(a, b) for sign, p in self._parts], axis=0))

    def spread(self, reference: int) -> Array:
        """(n,) standard deviation of the difference to one configuration."""
        column = self.covariance(np.arange(len(self.mean)), np.array([reference]))[:, 0]
        return np.asarray(np.sqrt(np.maximum(self.var + self.var[reference] - 2.0 * column, 1e-12)))


class CostModel:
    """A fit to ``history`` over ``configs`` (the history's own are added; :attr:`index` finds them all).

    ``outlooks``: one per objective of ``objectives``. ``launches``: chance of launching and of keeping the constraints.
    ``minutes``: expected launch and measurement. ``measured``: configurations with a complete trial that keeps the
    constraints.
    """

    def __init__(
        self,
        configs: Sequence[ArmConfig],
        objectives: Sequence[Objective],
        history: Sequence[Told],
        levels: Sequence[int] = (),
    ) -> None:
        self.objectives = tuple(objectives)
        everything = tuple(dict.fromkeys([*configs, *(t.ran for t in history)]))
        self.configs = everything
        self.index: Mapping[ArmConfig, int] = {c: i for i, c in enumerate(everything)}
        self.vocabulary = Vocabulary.of(everything)
        self.table = table(everything, self.vocabulary)
        self._every = np.arange(len(everything), dtype=np.intp)
        done = [t for t in history if t.complete]
        seen = {b for t in done for b in t.observations}
        self.levels = sorted(seen | {o.concurrency for o in objectives} | set(levels))
        self._lengths: Posterior
        self._fit(done, ())
        if running := [self.index[t.ran] for t in history if t.verdict is None]:
            self._fit(done, running)
        self._guides: dict[int, Array] = {}
        self.outlooks = [self._outlook(objective, done) for objective in objectives]
        self.launches = self._launches(history, done, objectives)
        self.minutes = self._minutes(history)
        self.measured = [
            self.index[t.ran]
            for t in done
            if t.finite(objectives) is not None and all(v <= 0 for v in t.constraints.values())
        ]

    def throughput(self, level: int) -> Outlook:
        """Of log tokens/s at a concurrency among :attr:`levels`."""
        step = self.step_time(level)
        return Outlook([(1.0, self._lengths), (-1.0, step)], math.log(level), step.noise * self._error)

    @property
    def accept_length(self) -> Posterior:
        """Of log accept length."""
        return self._lengths

    def step_time(self, level: int) -> Posterior:
        """Of log seconds per verify step at a concurrency among :attr:`levels`."""
        if level not in self._step_times:
            self._step_times[level] = self._steps.posterior(self._every, self.levels.index(level))
        return self._step_times[level]

    @property
    def misfit(self) -> tuple[float, float]:
        """How far acceptance (complementary log-log) and step time (log) stray from their forms, as deviations."""
        return self._acceptance.misfit, self._steps.misfit

    def _fit(self, done: Sequence[Told], running: Sequence[int]) -> None:
        """Fit both halves. A running trial counts as if it had shown what is expected of it, so that its neighbours
        are known to be about to be known."""
        groups = max(len(self.vocabulary.groups), 1)
        pretend = [Accepted(i, None, float(np.exp(self._lengths.mean[i])), LENGTH_ERROR) for i in running]
        stepped = [
            Stepped(i, k, float(np.exp(self.step_time(b).mean[i])), THROUGHPUT_ERROR)
            for i in running
            for k, b in enumerate(self.levels)
        ]
        accepted = [a for t in done if (a := _accepted(t, self.index[t.ran])) is not None]
        self._acceptance = Acceptance(self.table, groups, self.vocabulary.depth, accepted)
        lengths = self._acceptance.posterior(self._every)
        told = {a.index for a in accepted}
        silent = [self.index[t.ran] for t in done if self.index[t.ran] not in told and t.ran.speculative]
        # Where the server reports no accept length the product is all there is: the model's own length is taken as
        # given, and the step time answers for the rest.
        accepted += [Accepted(i, None, float(np.exp(lengths.mean[i])), UNREPORTED_ERROR) for i in silent]
        if silent or pretend:
            self._acceptance = Acceptance(self.table, groups, self.vocabulary.depth, accepted + pretend)
            lengths = self._acceptance.posterior(self._every)
        for told_row in done:
            stepped += self._stepped(told_row, lengths)
        self._lengths = lengths
        self._error = float(np.median([s.error for s in stepped])) if stepped else THROUGHPUT_ERROR
        self._steps = StepTime(self.table, groups, self.levels, stepped)
        self._step_times: dict[int, Posterior] = {}

    def _stepped(self, told: Told, lengths: Posterior) -> list[Stepped]:
        index, out = self.index[told.ran], []
        for b, seen in told.observations.items():
            if seen.throughput is None or not seen.throughput > 0:
                continue
            length = seen.accept_length or (float(np.exp(lengths.mean[index])) if told.ran.speculative else 1.0)
            error = told.stderr.get(f"{THROUGHPUT}@{b}", THROUGHPUT_ERROR * seen.throughput) / seen.throughput
            seconds = seen.step_time or b * length / seen.throughput
            out.append(Stepped(index, self.levels.index(b), seconds, math.hypot(max(error, 0.005), LENGTH_ERROR)))
        return out

    def _guide(self, level: int) -> Array:
        if level not in self._guides:
            self._guides[level] = np.asarray(self.throughput(level).mean)
        return self._guides[level]

    def _outlook(self, objective: Objective, done: Sequence[Told]) -> Outlook:
        if objective.metric == THROUGHPUT:
            return self.throughput(objective.concurrency)
        pairs = [
            (self.index[t.ran], math.log(v)) for t in done if (v := t.values.get(objective.key)) and 0 < v < math.inf
        ]
        if not pairs:
            return self.throughput(objective.concurrency)
        index, y = zip(*pairs, strict=True)
        fit = Generic(self.table, self._guide(objective.concurrency), index, y)
        sign = fit.unit if objective.maximize else -fit.unit
        posterior = fit.posterior(self._every)
        centre = fit.centre if objective.maximize else -fit.centre
        return Outlook([(sign, posterior)], centre, fit.unit * posterior.noise)

    def _launches(self, history: Sequence[Told], done: Sequence[Told], objectives: Sequence[Objective]) -> Array:
        failed = [
            self.index[t.ran]
            for t in history
            if t.verdict is not None and t.verdict.infeasible and t.verdict is not Verdict.DRAFTER_INEFFECTIVE
        ]
        out = chance(self.table, [self.index[t.ran] for t in done], failed)
        guide = self._guide(objectives[0].concurrency)
        for name in dict.fromkeys(name for t in done for name in t.constraints):
            pairs = [(self.index[t.ran], t.constraints[name]) for t in done if name in t.constraints]
            index, y = zip(*[p for p in pairs if math.isfinite(p[1])] or [(0, 0.0)], strict=True)
            fit = Generic(self.table, guide, index, y)
            posterior = fit.posterior(self._every)
            out = out * ndtr(-(fit.centre + fit.unit * posterior.mean) / (fit.unit * np.sqrt(posterior.var)))
        return out

    def _minutes(self, history: Sequence[Told]) -> Array:
        """Means with and without graphs, each drawn towards the mean of all by two pseudo-launches."""
        spent = [(t.ran.cuda_graph, t.seconds / 60.0) for t in history if t.verdict is not None and t.seconds > 0]
        if not spent:
            return np.ones(len(self.configs))
        overall = sum(m for _, m in spent) / len(spent)
        means = {}
        for graphs in (True, False):
            mine = [m for g, m in spent if g is graphs]
            means[graphs] = (sum(mine) + 2.0 * overall) / (len(mine) + 2.0)
        return np.array([means[c.cuda_graph] for c in self.configs])


def _accepted(told: Told, index: int) -> Accepted | None:
    """One launch's acceptance, pooled over concurrencies: it is a matter of text, not of load."""
    if not told.ran.speculative:
        return None
    histograms = [o.accept_histogram for o in told.observations.values() if o.accept_histogram]
    lengths = [o.accept_length for o in told.observations.values() if o.accept_length]
    if not histograms and not lengths:
        return None
    size = max((len(h) for h in histograms), default=0)
    pooled = tuple(sum(h[j] for h in histograms if j < len(h)) for j in range(size))
    return Accepted(index, pooled or None, sum(lengths) / len(lengths) if lengths else None, LENGTH_ERROR)
