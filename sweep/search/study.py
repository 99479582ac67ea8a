"""The Optuna side of the search, the only module that imports optuna: a study rebuilt from rows, and one ask.

Our rows are the truth; a study lives in memory for one ask, an export or a dashboard. Failures follow one table:
infeasible -> PRUNED with the constraint ``launched`` violated (TPE learns from it, no value is invented);
surroundings and cancelled -> FAIL; running -> RUNNING (TPE's constant liar keeps parallel hosts apart).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweep.errors import UsageError
from sweep.model import ArmConfig, Objective, Scalar
from sweep.search.view import SpaceView, Told, fields

LAUNCHED = "launched"
PLACEHOLDER = "placeholder"
# Optuna's default of 50 would breed for the first time after more launches than a night allows.
NSGA2_POPULATION = 10
NUMERIC = ("num_steps", "topk", "num_draft_tokens")

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distributions(space: SpaceView) -> dict[str, BaseDistribution]:
    """One distribution per axis. Numbers are integers over their range (logarithmic where it spans a factor of 8),
    snapped to the axis afterwards, because a sampler that knows their order needs fewer launches; all else is
    categorical. Canonical configurations may hold values beside the axis, so the range covers those too."""
    out: dict[str, BaseDistribution] = {}
    for name, values in space.values.items():
        numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
        if name in NUMERIC and numbers:
            low, high = min(numbers), max(numbers)
            out[name] = IntDistribution(low, high, log=low > 0 and high >= 8 * low)
        else:
            out[name] = CategoricalDistribution(list(values))
    return out


def build(
    history: Sequence[Told],
    space: SpaceView,
    objectives: Sequence[Objective],
    *,
    sampler: BaseSampler | None = None,
    complete_only: bool = False,
    name: str | None = None,
) -> optuna.Study:
    """The study of these rows, in memory. ``complete_only``: the sampler reads only COMPLETE trials (GP, NSGA-II), so
    infeasible ones are COMPLETE with the worst feasible values, marked ``placeholder`` and still violating."""
    study = optuna.create_study(
        study_name=name,
        directions=["maximize" if objective.maximize else "minimize" for objective in objectives],
        sampler=sampler,
    )
    dists = distributions(space)
    worst = _worst(history, objectives) if complete_only else None
    completed = 0
    for told in history:
        trial = _frozen(told, dists, objectives, worst)
        if complete_only and trial.state is TrialState.COMPLETE:
            # What a living NSGA-II study would have noted at ask; a rebuilt one counts completed trials instead.
            trial.system_attrs[NSGAIISampler._get_generation_key()] = completed // NSGA2_POPULATION
            completed += 1
        study.add_trial(trial)
    return study


def make_sampler(name: str, seed: int) -> BaseSampler:
    """The Optuna sampler of that name, freshly seeded."""
    if name == "tpe":
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)
    if name == "nsga2":
        return NSGAIISampler(seed=seed, population_size=NSGA2_POPULATION)
    try:
        import_module("torch")  # Optuna would find its absence only at the first ask
    except ImportError as error:
        raise UsageError("sampler gp needs torch, which is not installed; install it, or use model or tpe") from error
    return optuna.samplers.GPSampler(seed=seed)


def ask(study: optuna.Study, space: SpaceView, allowed: Sequence[ArmConfig], *, attempts: int = 48) -> ArmConfig | None:
    """One configuration out of ``allowed`` by the study's sampler, or None when it would not leave known ground.

    A draw that is infeasible is told so; a draw that is already known stays RUNNING in this throw-away study, which
    repels the sampler from it.
    """
    dists = distributions(space)
    numeric = {name: [v for v in space.axes[name] if isinstance(v, int)] for name in dists if name in NUMERIC}
    members, everything = set(allowed), set(space.candidates)
    for _ in range(attempts):
        trial = study.ask(dists)
        params: dict[str, Scalar | None] = {
            name: _snap(value, numeric[name]) if numeric.get(name) else value for name, value in trial.params.items()
        }
        config = space.canonical(params)
        if config in members:
            return config
        if config is None or config not in everything:
            trial.set_constraint(LAUNCHED, 1.0)
            study.tell(trial, state=TrialState.PRUNED)
    return None


def _frozen(
    told: Told, dists: Mapping[str, BaseDistribution], objectives: Sequence[Objective], worst: list[float] | None
) -> FrozenTrial:
    row = fields(told.ran)
    params = {n: row[n] for n, d in dists.items() if row.get(n) is not None and d._contains(d.to_internal_repr(row[n]))}
    values = told.finite(objectives) if told.complete else None
    constraints = {LAUNCHED: 0.0, **{k: v for k, v in told.constraints.items() if math.isfinite(v)}}
    attrs: dict[str, Any] = {"config": told.config.as_dict(), "verdict": told.verdict, "stderr": dict(told.stderr)}
    if told.verdict is None:
        state = TrialState.RUNNING
    elif values is not None:
        state = TrialState.COMPLETE
    elif told.verdict.infeasible or told.complete:
        # Complete without every objective is an arm screened out on one load: worse than the rest, yet feasible.
        state = TrialState.PRUNED
        constraints[LAUNCHED] = 1.0 if told.verdict.infeasible else 0.0
        if worst is not None:
            state, values = TrialState.COMPLETE, worst
            attrs[PLACEHOLDER] = True
    else:
        state = TrialState.FAIL
    return create_trial(
        state=state,
        values=values,
        params=params,
        distributions={name: dists[name] for name in params},
        user_attrs=attrs,
        constraints=None if state in (TrialState.RUNNING, TrialState.FAIL) else constraints,
    )


def _worst(history: Sequence[Told], objectives: Sequence[Objective]) -> list[float] | None:
    """The worst feasible value of each objective, or None before there is any."""
    rows = [values for told in history if told.complete and (values := told.finite(objectives)) is not None]
    if not rows:
        return None
    columns = zip(*rows, strict=True)
    return [min(c) if o.maximize else max(c) for o, c in zip(objectives, columns, strict=True)]


def _snap(value: int, axis: Sequence[int]) -> int:
    """The axis value nearest in ratio."""
    return min(axis, key=lambda v: (abs(math.log(max(v, 0.5) / max(value, 0.5))), v))
