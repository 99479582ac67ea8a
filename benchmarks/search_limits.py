"""Where the search's regret comes from, and what noise alone costs: one line per family after twelve launches.

    python benchmarks/search_limits.py [--families two_loads] [--problems 50] [--launches 12] [--jobs 2]

Shares of problems within 1 % of the best (the mean over objectives), by which configuration is kept:

    kept      what the search recommends
    raw       the highest measured figure of what it launched
    found     the truly best of what it launched: a perfect choice, so what falls short was never launched
    once      an oracle launches the truly best configurations, one launch each, and keeps the highest measured figure:
              what one noisy launch per configuration allows, whatever the search
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from search_families import FAMILIES
from search_problem import Problem

from sweep.model import ArmConfig
from sweep.search.proposer import Proposer
from sweep.search.view import Told

KEPT = ("kept", "raw", "found", "once")


def one(number: int, family: str, launches: int) -> list[float]:
    """Mean regret over objectives by what is kept, in the order of KEPT."""
    problem = FAMILIES[family](np.random.default_rng([number, list(FAMILIES).index(family)]))
    proposer = Proposer(problem.space, problem.objectives, sampler="model", seed=number, tolerance=None)
    rng = np.random.default_rng([number, 7])
    history: list[Told] = []
    while len(history) < launches and (proposal := proposer.propose(history)) is not None:
        history.append(problem.launch(proposal.config, rng))
    done = [told for told in history if told.complete]
    if not done:
        return [1.0] * len(KEPT)
    raw = [max(done, key=lambda t, key=o.key: t.values[key]).config for o in problem.objectives]
    found = [_best(problem, b, [t.config for t in done])[0] for b in problem.levels]
    once = [_once(problem, k, launches, np.random.default_rng([number, 99])) for k in range(len(problem.levels))]
    return [problem.regret(chosen)[0] for chosen in (proposer.recommend(history), raw, found, once)]


def _best(problem: Problem, level: int, configs: Sequence[ArmConfig]) -> list[ArmConfig]:
    return sorted(configs, key=lambda c: -problem.value(c, level))


def _once(problem: Problem, objective: int, launches: int, rng: np.random.Generator) -> ArmConfig:
    """What the oracle keeps for one objective."""
    best = _best(problem, problem.levels[objective], problem.space.candidates)[:launches]
    key = problem.objectives[objective].key
    shown = [problem.launch(config, rng).values[key] for config in best]
    return best[int(np.argmax(shown))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--launches", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    sys.stdout.write(f"{'family':18}" + "".join(f"{name:>8}" for name in KEPT) + "\n")
    with ProcessPoolExecutor(args.jobs) as pool:
        for family in args.families:
            job: Callable[[int], list[float]] = partial(one, family=family, launches=args.launches)
            regrets = np.array(list(pool.map(job, range(args.problems))))
            shares = (regrets <= 0.01).mean(0)
            sys.stdout.write(f"{family:18}" + "".join(f"{share:>8.0%}" for share in shares) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
