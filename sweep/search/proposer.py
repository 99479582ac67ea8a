"""The search's front: given every row of a study, what to launch next, what is best, and whether to stop.

A proposal is a function of (seed, rows) alone: every ask rebuilds its sampler, seeded from the seed and the number of
rows, so a study that was killed and resumed proposes what an uninterrupted one would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sweep.errors import UsageError
from sweep.model import ArmConfig, Objective, Verdict
from sweep.search import seeds
from sweep.search.known import Known
from sweep.search.view import Origin, Prediction, Proposal, SpaceView, Told

if TYPE_CHECKING:
    import optuna

    from sweep.search.model.fit import CostModel
    from sweep.search.model.stop import Regret

SAMPLERS = ("model", "tpe", "random", "grid", "nsga2", "gp")
# The stop rule speaks only once this many launches were measured.
LEAST_MEASURED = 4
# Without a budget, a space no larger is enumerated: the search itself takes about as many launches.
SMALL = 8


def default_sampler(space: SpaceView) -> str:
    """``model`` where the space turns speculative knobs, else ``tpe``."""
    return "model" if space.speculative else "tpe"


class Proposer:
    """Proposes configurations.

    ``sampler``: a name of :data:`SAMPLERS`, None for the default. ``budget``: the trials the study may run; a space no
    larger is enumerated in its order (None: no limit; spaces up to :data:`SMALL` are). ``tolerance``: with the cost
    model, stop when the expected regret (a fraction) is no larger; None never stops early. ``prior``: rows of earlier
    studies that teach the cost model and are nothing else, neither settled nor the best; a drafter that never accepted
    in them is left out. Raises UsageError for an unknown sampler.
    """

    def __init__(
        self,
        space: SpaceView,
        objectives: Sequence[Objective],
        *,
        sampler: str | None = None,
        seed: int = 0,
        known_good: Sequence[ArmConfig] = (),
        budget: int | None = None,
        tolerance: float | None = 0.01,
        prior: Sequence[Told] = (),
    ) -> None:
        self.space = space
        self.objectives = tuple(objectives)
        self.sampler = sampler or default_sampler(space)
        self.seed = seed
        self.known_good = tuple(dict.fromkeys(known_good))
        self.budget = budget
        self.tolerance = tolerance
        self.prior = tuple(prior)
        self._last: tuple[list[Told], CostModel] | None = None
        if self.sampler not in SAMPLERS:
            raise UsageError(f"unknown sampler {sampler!r}; one of {', '.join(SAMPLERS)}")

    @property
    def enumerates(self) -> bool:
        """True where the budget allows to measure every candidate."""
        return len({*self.space.candidates, *self.known_good}) <= (SMALL if self.budget is None else self.budget)

    def propose(self, history: Sequence[Told]) -> Proposal | None:
        """The next configuration, or None when nothing is left to try or the stop rule is met. ``history``: every row,
        finished and running, in number order."""
        known = self.known(history)
        if first := known.open(self.known_good):
            return Proposal(first[0], Origin.KNOWN_GOOD, "listed under known_good")
        allowed = known.open(self.space.candidates)
        rng = np.random.default_rng([self.seed, len(history)])
        if self.sampler == "model" and not self.enumerates:
            return self._by_model(history, allowed, known.again(), rng)
        if not allowed:
            return None
        if self.enumerates:
            why = "the budget covers every configuration" if self.budget else "so small a space is measured whole"
            return Proposal(allowed[0], Origin.ENUMERATED, why)
        if self.sampler == "grid":
            return Proposal(allowed[0], Origin.ENUMERATED, "next cell of the grid")
        if self.sampler == "random":
            return Proposal(allowed[rng.integers(len(allowed))], Origin.SAMPLER, "drawn at random")
        return self._by_optuna(history, allowed, rng)

    def known(self, history: Sequence[Told]) -> Known:
        """What may not be proposed any more. Of the prior: drafters that never accepted a draft."""
        useless = [told for told in self.prior if told.verdict is Verdict.DRAFTER_INEFFECTIVE]
        return Known([*useless, *history])

    def decided(self, history: Sequence[Told]) -> bool:
        """True where the stop rule of the cost model is met: known-good and seed configurations are through, and the
        expected regret of stopping is within the tolerance."""
        known = self.known(history)
        if self.sampler != "model" or self.tolerance is None or self.enumerates or known.open(self.known_good):
            return False
        allowed = known.open(self.space.candidates)
        if seeds.pick([*self.prior, *history], allowed) or sum(t.complete for t in history) < LEAST_MEASURED:
            return False
        regret = self._regret(history, allowed)
        return regret is not None and regret.decided(self.tolerance)

    def remaining_regret(self, history: Sequence[Told]) -> float | None:
        """Fraction by which the best configuration is expected to beat the best measured one, for the objective where
        that is most; None before anything was measured."""
        regret = self.regret(history)
        return None if regret is None else regret.expected

    def regret(self, history: Sequence[Told]) -> Regret | None:
        """As :meth:`remaining_regret`, with the doubt and the launches it may take until decided."""
        return self._regret(history, self.known(history).open(self.space.candidates))

    def recommend(self, history: Sequence[Told]) -> list[ArmConfig]:
        """Per objective, the measured configuration to confirm: the best by the cost model, which shares strength
        between launches, or the best value measured with any other sampler. Empty before anything was measured."""
        done = [t for t in history if t.complete and t.finite(self.objectives) and _kept(t)]
        if not done:
            return []
        if self.sampler != "model":
            signs = [1.0 if o.maximize else -1.0 for o in self.objectives]
            best = [max(done, key=lambda t: s * t.values[o.key]) for o, s in zip(self.objectives, signs, strict=True)]
            return [t.ran for t in best]
        model = self._model(history)
        return [model.configs[max(model.measured, key=lambda i: (o.mean[i], -i))] for o in model.outlooks]

    def predict(
        self,
        history: Sequence[Told],
        configs: Sequence[ArmConfig],
        concurrency: int,
        *,
        accept_length: float | None = None,
    ) -> list[Prediction]:
        """Tokens/s of each configuration at a concurrency, measured there or not, with 95 % intervals.
        ``accept_length``: as if every configuration had this one, which leaves the step time as the only unknown."""
        from sweep.search.model.fit import CostModel

        rows = [*self.prior, *history]
        model = CostModel([*self.space.candidates, *configs], self.objectives, rows, (concurrency,))
        outlook = model.throughput(concurrency)
        mean, var = outlook.mean, outlook.var
        if accept_length is not None:
            step = model.step_time(concurrency)
            mean, var = np.log(concurrency * accept_length) - step.mean, step.var
        out = []
        for config in configs:
            i = model.index[config]
            half = 1.96 * float(np.sqrt(var[i]))
            centre = float(mean[i])
            out.append(Prediction(*(float(np.exp(v)) for v in (centre, centre - half, centre + half))))
        return out

    def study(self, history: Sequence[Told], *, name: str | None = None) -> optuna.Study:
        """The Optuna study of these rows, rebuilt in memory, for exports and dashboards."""
        from sweep.search import study

        return study.build(history, self.space, self.objectives, name=name)

    def _model(self, history: Sequence[Told]) -> CostModel:
        from sweep.search.model.fit import CostModel

        rows = [*self.prior, *history]
        if self._last is None or self._last[0] != rows:
            self._last = (rows, CostModel(self.space.candidates, self.objectives, rows))
        return self._last[1]

    def _regret(self, history: Sequence[Told], allowed: Sequence[ArmConfig]) -> Regret | None:
        from sweep.search.model import stop

        model = self._model(history)
        rng = np.random.default_rng([self.seed, len(history), 1])
        tolerance = 0.01 if self.tolerance is None else self.tolerance
        return stop.remaining(model, [model.index[c] for c in allowed], tolerance, rng)

    def _by_model(
        self,
        history: Sequence[Told],
        allowed: Sequence[ArmConfig],
        again: Sequence[ArmConfig],
        rng: np.random.Generator,
    ) -> Proposal | None:
        from sweep.search.model import acquisition

        if seed := seeds.pick([*self.prior, *history], allowed):
            return Proposal(seed[0], Origin.SEED, seed[1])
        if self.decided(history) or not (allowed or again):
            return None
        model = self._model(history)
        fresh = np.array([model.index[c] for c in allowed], dtype=np.intp)
        known = np.array([i for c in again if (i := model.index[c]) in model.measured], dtype=np.intp)
        if not len(fresh) and not len(known):
            return None
        worth, explores = acquisition.score(model, fresh, rng)
        index = fresh if explores else np.concatenate([fresh, known])
        chosen = int(index[np.argmax(worth[index])])
        return Proposal(model.configs[chosen], Origin.SAMPLER, acquisition.why(model, chosen, explores))

    def _by_optuna(self, history: Sequence[Told], allowed: list[ArmConfig], rng: np.random.Generator) -> Proposal:
        from sweep.search import study

        sampler = study.make_sampler(self.sampler, int(rng.integers(2**31)))
        built = study.build(
            history, self.space, self.objectives, sampler=sampler, complete_only=self.sampler in ("gp", "nsga2")
        )
        config = study.ask(built, self.space, allowed)
        if config is None:
            config = allowed[rng.integers(len(allowed))]
            return Proposal(config, Origin.SAMPLER, f"{self.sampler} offered only known ones; drawn at random")
        return Proposal(config, Origin.SAMPLER, f"chosen by {self.sampler}")


def _kept(told: Told) -> bool:
    """All constraints kept."""
    return all(value <= 0 for value in told.constraints.values())
