"""How many launches does a search need? Ours beside random, grid, Optuna's TPE (raw and canonical), NSGA-II and GP.

    python benchmarks/search.py [--fast] [--json] [--families product tables] [--problems 100] [--jobs 2]

Each problem is a noise-free truth (search_families.py); a method proposes, sees what one launch would show, and after
every launch names the configuration it would keep. Regret is that one's true shortfall. With several objectives a
method keeps one configuration each and the worst shortfall counts. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import optuna
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))

from search_families import AXES, FAMILIES, Problem

from sweep.model import ArmConfig
from sweep.search.proposer import Proposer
from sweep.search.view import Told

BUDGETS = (5, 8, 12, 20, 40)
TOLERANCE = 0.01
METHODS = ("ours", "tpe_canonical", "tpe_raw", "random", "grid", "nsga2", "gp")

Trace = list[float]


def through_proposer(problem: Problem, name: str, seed: int) -> tuple[Trace, tuple[int, bool] | None]:
    """Regret after every launch, and (launches, right) at the moment the stop rule fires."""
    stopping = Proposer(problem.space, problem.objectives, sampler=name, seed=seed, tolerance=TOLERANCE)
    going = Proposer(problem.space, problem.objectives, sampler=name, seed=seed, tolerance=None)
    rng = np.random.default_rng([seed, 7])
    history: list[Told] = []
    trace: Trace = []
    stopped = None
    proposer = stopping
    while len(history) < BUDGETS[-1]:
        proposal = proposer.propose(history)
        if proposal is None and proposer is stopping:
            stopped = (len(history), trace[-1] <= TOLERANCE)
            proposer = going
            continue
        if proposal is None:
            break
        history.append(problem.launch(proposal.config, rng))
        trace.append(problem.regret(proposer.recommend(history)))
    return trace + [trace[-1]] * (BUDGETS[-1] - len(trace)), stopped


def raw_tpe(problem: Problem, seed: int) -> Trace:
    """The nearest peer's way: TPE over the raw axes, every cell launched, failures and impossible trees told as FAIL."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["maximize"] * len(problem.levels), sampler=optuna.samplers.TPESampler(seed=seed)
    )
    rng = np.random.default_rng([seed, 7])
    best: list[tuple[float, ArmConfig] | None] = [None] * len(problem.levels)
    trace: Trace = []
    for _ in range(BUDGETS[-1]):
        trial = study.ask()
        params = {n: trial.suggest_categorical(n, list(values)) for n, values in problem.space.axes.items()}
        config = problem.space.canonical(params)
        told = problem.launch(config, rng) if config else None
        if told is None or not told.complete:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            values = [told.values[o.key] for o in problem.objectives]
            study.tell(trial, values)
            best = [
                max(filter(None, (b, (v, told.config)))) if b is None or v > b[0] else b
                for b, v in zip(best, values, strict=True)
            ]
        trace.append(problem.regret([b[1] for b in best if b]))
    return trace


def one(job: tuple[str, str, int]) -> tuple[Trace, tuple[int, bool] | None]:
    family, method, number = job
    problem = FAMILIES[family](np.random.default_rng([number, list(FAMILIES).index(family)]))
    if method == "tpe_raw":
        return raw_tpe(problem, number), None
    name = {"ours": "model", "tpe_canonical": "tpe"}.get(method, method)
    return through_proposer(problem, name, number)
