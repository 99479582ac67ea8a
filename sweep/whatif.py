"""What a study's cost model says of configurations, loads and drafters that were not measured, and how far to trust it.

    tokens/s at concurrency b = b x accept length / step time,    break-even accept length = baseline x step time / b

The model is the search's own (``sweep.search.model``). How wrong it is, it is told by the study's own arms: each is
predicted from all the others, and intervals are widened until the errors seen fit them.
Over 300 lines on purpose: what is predicted and how it is checked stand side by side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from search_spaces.space import SearchSpace
from storage.reading import BlockFigures, block_figures
from storage.records import StudyRow
from storage.store import Store
from sweep.config import StudySpec
from sweep.errors import UsageError
from sweep.model import ArmConfig, Role
from sweep.proposing import proposer_of
from sweep.search.model.fit import THROUGHPUT_ERROR, CostModel
from sweep.search.view import Prediction, Told
from sweep.told import THROUGHPUT, of_blocks, told
from sweep.warmstart import alike, expected_gpus, sources

Z95 = 1.96
# Errors this much larger than the model expected are worth a sentence.
STRAYS = 2.0


@dataclass(frozen=True, slots=True)
class Checked:
    """One measured arm at one load, tokens/s: what was measured, and what the other arms let the model expect."""

    trial: int
    config: ArmConfig
    concurrency: int
    measured: float
    predicted: Prediction
    score: float  # error in standard deviations of the prediction and the measurement together

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted.mean / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One configuration at one load. Throughputs are tokens/s, ``gain`` a ratio to no speculation minus 1; None where
    there is nothing to compare with. ``measured`` None: it was not measured there."""

    config: ArmConfig
    concurrency: int
    trial: int | None
    measured: float | None
    predicted: Prediction
    accept_length: Prediction
    break_even: Prediction | None
    gain: Prediction | None
    baseline: float | None


class WhatIf:
    """The model of one study, from its rows. Raises UsageError where no candidate was measured."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.study = study
        self.spec = StudySpec.parse(study.spec)
        self.space = SearchSpace.from_spec(self.spec)
        blocks = block_figures(store, study.id)
        trials = store.trials(study.id)
        self.rows = told(trials, of_blocks(blocks))
        self.numbers = {row.ran: trial.number for trial, row in zip(trials, self.rows, strict=True) if row.complete}
        self.baseline = baseline_levels(blocks)
        self.proposer = proposer_of(self.spec, self.space)
        seen = [(trial, row) for trial, row in zip(trials, self.rows, strict=True) if row.complete and row.observations]
        self.measured = [row for _, row in seen]
        self._trials = [trial.number for trial, _ in seen]  # of measured, where an arm may have several
        if not self.measured:
            raise UsageError(f"study {study.name!r} has no measured candidate yet: there is nothing to predict from")

    # ------------------------------------------------------------------ what is asked

    @property
    def levels(self) -> list[int]:
        """The loads of the study's objectives."""
        return list(dict.fromkeys(goal.concurrency for goal in self.spec.goals))

    def best(self) -> ArmConfig:
        """The configuration to start from: what most likely leads, else the first that was measured."""
        found = self.proposer.recommend(self.rows)
        return found[0] if found else self.measured[0].ran

    def arm(
        self,
        numbers: tuple[int | None, int | None, int | None] | None,
        drafter: str | None,
        graphs: bool | None,
    ) -> ArmConfig:
        """The study's best with what was asked changed. Raises UsageError for what SGLang would not serve so."""
        asked = self.best()
        if numbers is not None:
            asked = replace(asked, num_steps=numbers[0], topk=numbers[1], num_draft_tokens=numbers[2])
        if drafter is not None:
            if drafter not in self.spec.drafters:
                raise UsageError(f"no draft model {drafter!r} in the study; there are: {', '.join(self.spec.drafters)}")
            asked = replace(asked, draft_model=drafter)
        if graphs is not None:
            asked = replace(asked, cuda_graph=graphs)
        flat = asked.as_dict()
        found = self.space.canonical({**flat, **flat.pop("args", {})})
        if not isinstance(found, ArmConfig):
            raise UsageError(f"{asked.label()} cannot be served: {found.reason}")
        return found

    def ranking(self, concurrency: int, count: int) -> list[Answer]:
        """The ``count`` configurations of the space with the highest expected throughput at a load, without those that
        failed or that a failure excludes."""
        ran = dict.fromkeys(row.ran for row in self.measured)
        failed = {c for row in self.rows if row.verdict and row.verdict.infeasible for c in (row.config, row.ran)}
        known = self.proposer.known(self.rows)
        able = [c for c in self.space.candidates if c not in failed and known.excluded(c) is None]
        everything = list(dict.fromkeys([*able, *ran]))
        model = self._model(everything, self.rows, (concurrency,))
        mean = model.throughput(concurrency).mean
        best = sorted(everything, key=lambda config: -mean[model.index[config]])[:count]
        return self.answers(best, [concurrency])

    def answers(
        self, configs: Sequence[ArmConfig], levels: Sequence[int], accept_length: float | None = None
    ) -> list[Answer]:
        """Every configuration at every load; ``accept_length``: as if the drafter reached this one."""
        if accept_length is not None:
            for config in configs:
                most = config.num_draft_tokens if config.num_steps is None else config.num_steps + 1
                if accept_length < 1 or (most is not None and accept_length > most):
                    raise UsageError(
                        f"accept length {accept_length:g}: {config.label()} emits 1 to {most} tokens a step"
                    )
        model = self._model(configs, self.rows, levels)
        return [self._answer(model, config, level, accept_length) for config in configs for level in levels]

    def _answer(self, model: CostModel, config: ArmConfig, level: int, accept_length: float | None) -> Answer:
        i = model.index[config]
        step, length, speed = model.step_time(level), model.accept_length, model.throughput(level)
        base = self.baseline_at(level)
        if accept_length is None:
            lengths = self._interval(length.mean[i], length.var[i])
            predicted = self._interval(speed.mean[i], speed.var[i])
        else:
            lengths = Prediction(accept_length, accept_length, accept_length)
            predicted = self._interval(math.log(level * accept_length) - step.mean[i], step.var[i])
        # Of several trials the newest speaks: a first figure had to be high to be looked at twice.
        of_it = [(n, r) for n, r in zip(self._trials, self.measured, strict=True) if r.ran == config]
        trial, row = next((pair for pair in reversed(of_it) if level in pair[1].observations), (None, None))
        return Answer(
            config=config,
            concurrency=level,
            trial=trial if trial is not None else self.numbers.get(config),
            measured=row.observations[level].throughput if row is not None else None,
            predicted=predicted,
            accept_length=lengths,
            break_even=None if base is None else self._interval(math.log(base / level) + step.mean[i], step.var[i]),
            gain=None if base is None else _over(predicted, base),
            baseline=base,
        )

    # ------------------------------------------------------------------ how far to trust it

    @cached_property
    def checked(self) -> list[Checked]:
        """Every measured arm at every load, predicted from the other arms."""
        out: list[Checked] = []
        if len(self.measured) < 2:
            return out
        levels = sorted({level for row in self.measured for level in row.observations})
        configs = [row.ran for row in self.measured]
        for number, row in zip(self._trials, self.measured, strict=True):
            model = self._model(configs, [other for other in self.rows if other.ran != row.ran], levels)
            i = model.index[row.ran]
            for level, seen in row.observations.items():
                if not seen.throughput:
                    continue
                outlook = model.throughput(level)
                error = row.stderr.get(f"{THROUGHPUT}@{level}", THROUGHPUT_ERROR * seen.throughput) / seen.throughput
                variance = float(outlook.var[i]) + error**2
                score = (math.log(seen.throughput) - float(outlook.mean[i])) / math.sqrt(variance)
                predicted = _exp(float(outlook.mean[i]), Z95 * math.sqrt(variance))
                out.append(Checked(number, row.ran, level, seen.throughput, predicted, score))
        return out

    @cached_property
    def widening(self) -> float:
        """What intervals are multiplied by: the root mean square of the scores, never below 1."""
        scores = [one.score for one in self.checked]
        return max(1.0, math.sqrt(statistics.fmean(s * s for s in scores))) if scores else 1.0

    def contradictions(self) -> list[str]:
        """Where the data contradict the model, in words; empty where they do not."""
        out = []
        for one in self.checked:
            if not one.predicted.low <= one.measured <= one.predicted.high:
                expected = f"{one.predicted.mean:.1f} ({one.predicted.low:.1f} to {one.predicted.high:.1f})"
                out.append(
                    f"{one.config.label()} at concurrency {one.concurrency}: measured {one.measured:.1f} tok/s, "
                    f"the other arms let one expect {expected}"
                )
        return out

    def baseline_at(self, level: int) -> float | None:
        """Output tokens/s without speculation; between measured loads a straight line over the logarithms."""
        if level in self.baseline or not self.baseline:
            return self.baseline.get(level)
        known = sorted(self.baseline)
        if not known[0] < level < known[-1]:
            return None
        logs = np.interp(math.log(level), np.log(known), np.log([self.baseline[b] for b in known]))
        return float(np.exp(logs))

    def _model(self, configs: Sequence[ArmConfig], rows: Sequence[Told], levels: Sequence[int]) -> CostModel:
        return CostModel(configs, self.spec.goals, [row for row in rows if row.verdict is not None], levels)

    def _interval(self, mean: float, variance: float) -> Prediction:
        return _exp(float(mean), Z95 * self.widening * math.sqrt(float(variance)))


def forecast(store: Store, spec: StudySpec, space: SearchSpace, count: int = 5) -> dict[str, Any] | None:
    """What earlier studies of the same model let one expect of a space before anything is launched: the ``count``
    configurations with the highest expected output throughput at each objective's load. None without such a study.

    Nothing is connected to, so the GPUs are those that hosts of these names had before (``gpus``; empty: not known).
    Raises UsageError where ``warm_start`` names a study of something else.
    """
    mine = expected_gpus(store, spec)
    found = sources(store, spec, mine) if isinstance(spec.warm_start, str) else alike(store, spec, mine)
    if not any(row.observations for one in found for row in one.rows):
        return None
    proposer = proposer_of(spec, space)
    proposer.prior = tuple(row for one in found for row in one.prior({}))
    ranking = []
    for level in dict.fromkeys(goal.concurrency for goal in spec.goals):
        values = zip(space.candidates, proposer.predict([], space.candidates, level), strict=True)
        base = next((one.baseline[level] for one in found if level in one.baseline), None)
        for config, value in sorted(values, key=lambda pair: -pair[1].mean)[:count]:
            ranking.append(
                {
                    "config": config.as_dict(),
                    "label": config.label(),
                    "concurrency": level,
                    "predicted": _interval_of(value),
                    "gain": None if base is None else _interval_of(_over(value, base)),
                }
            )
    return {
        "studies": [{"study": one.study, "launches": len(one.rows)} for one in found],
        "gpus": sorted(mine),
        "used": spec.warm_start is not False,
        "ranking": ranking,
    }


def _over(value: Prediction, base: float) -> Prediction:
    """Tokens/s as a gain over a baseline."""
    return Prediction(*(part / base - 1.0 for part in _parts(value)))


def baseline_levels(blocks: Sequence[BlockFigures]) -> dict[int, float]:
    """Geometric mean of the baseline's output tokens/s at each concurrency, over all its launches."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        if block.role == Role.BASELINE and block.invalid is None and block.figures[THROUGHPUT]:
            found.setdefault(block.concurrency, []).append(math.log(block.figures[THROUGHPUT] or 1.0))
    return {level: math.exp(statistics.fmean(logs)) for level, logs in found.items()}


def _exp(mean: float, half: float) -> Prediction:
    return Prediction(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _parts(value: Prediction) -> tuple[float, float, float]:
    return value.mean, value.low, value.high


def as_dict(what: WhatIf, answers: Sequence[Answer], accept_length: float | None) -> dict[str, Any]:
    """The JSON of `sweep whatif`."""
    return {
        "study": what.study.name,
        "simulated": what.study.simulated,
        "accept_length": accept_length,
        "answers": [
            {
                "config": one.config.as_dict(),
                "label": one.config.label(),
                "trial": one.trial,
                "concurrency": one.concurrency,
                "predicted": _interval_of(one.predicted),
                "measured": one.measured,
                "accept_length": _interval_of(one.accept_length),
                "break_even_accept_length": _interval_of(one.break_even),
                "gain": _interval_of(one.gain),
                "baseline": one.baseline,
            }
            for one in answers
        ],
        "calibration": {
            "arms": len({one.config for one in what.checked}),
            "median_error": statistics.median(abs(one.error) for one in what.checked) if what.checked else None,
            "largest_error": max((abs(one.error) for one in what.checked), default=None),
            "inside": _share_inside(what.checked),
            "widened_by": what.widening,
            "checked": [
                {
                    "trial": one.trial,
                    "label": one.config.label(),
                    "concurrency": one.concurrency,
                    "measured": one.measured,
                    "predicted": _interval_of(one.predicted),
                }
                for one in what.checked
            ],
        },
        "contradictions": what.contradictions(),
    }


def _share_inside(checked: Sequence[Checked]) -> float | None:
    if not checked:
        return None
    return sum(one.predicted.low <= one.measured <= one.predicted.high for one in checked) / len(checked)


def _interval_of(value: Prediction | None) -> Mapping[str, float] | None:
    return None if value is None else {"estimate": value.mean, "low": value.low, "high": value.high}
