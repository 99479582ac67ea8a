"""How many launches does a search need? Ours beside random, grid, Optuna's TPE (raw and canonical), NSGA-II and GP.

    python benchmarks/search.py [--fast] [--json] [--families product tables] [--problems 100] [--jobs 2]

Each problem is a noise-free truth (search_families.py); a method proposes, sees what one launch would show, and after
every launch names the configuration it would keep, one per objective: ours by its model, the others the best measured.
Regret is the mean true shortfall over objectives; the share where even the worst objective is within 1 % stands beside.
"Worse" is a paired comparison with TPE canonical: the 95 % interval of the mean difference lies above zero.
GP runs only where torch is installed. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

# One thread per process: the matrices are small and the processes share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import optuna
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))

from search_families import FAMILIES
from search_problem import Problem

from sweep.model import ArmConfig
from sweep.search.proposer import Proposer
from sweep.search.view import Told

BUDGETS = (5, 8, 12, 20, 40)
TOLERANCE = 0.01
METHODS = {"ours": "model", "tpe_canonical": "tpe", "tpe_raw": "", "random": "random", "grid": "grid", "nsga2": "nsga2"}
FAST_METHODS = ("ours", "tpe_canonical", "tpe_raw", "random")
BUILT_ON = ("product",)


class Run(NamedTuple):
    """One method on one problem: (mean, worst) regret after each launch; launches and truth when the rule stopped."""

    trace: list[tuple[float, float]]
    stopped: int | None = None
    right: bool = False


def through_proposer(problem: Problem, name: str, seed: int) -> Run:
    """Run to the largest budget, noting when the stop rule would have ended it."""
    stopping = Proposer(problem.space, problem.objectives, sampler=name, seed=seed, tolerance=TOLERANCE)
    going = Proposer(problem.space, problem.objectives, sampler=name, seed=seed, tolerance=None)
    rng = np.random.default_rng([seed, 7])
    history: list[Told] = []
    trace: list[tuple[float, float]] = []
    stopped, proposer = None, stopping
    while len(history) < BUDGETS[-1]:
        proposal = proposer.propose(history)
        if proposal is None and proposer is stopping and stopping.decided(history):
            stopped, proposer = len(history), going
            continue
        if proposal is None:
            break
        history.append(problem.launch(proposal.config, rng))
        trace.append(problem.regret(proposer.recommend(history)))
    trace += [trace[-1]] * (BUDGETS[-1] - len(trace))
    return Run(trace, stopped, stopped is not None and trace[stopped - 1][0] <= TOLERANCE)


def raw_tpe(problem: Problem, seed: int) -> Run:
    """The nearest peer's way: TPE over the raw axes, every cell launched, failures and impossible trees told FAIL."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(directions=["maximize"] * len(problem.levels), sampler=sampler)
    rng = np.random.default_rng([seed, 7])
    done: list[Told] = []
    trace = []
    for _ in range(BUDGETS[-1]):
        trial = study.ask()
        params = {n: trial.suggest_categorical(n, list(values)) for n, values in problem.space.axes.items()}
        config = problem.space.canonical(params)
        told = problem.launch(config, rng) if config else None
        if told is None or not told.complete:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, [told.values[o.key] for o in problem.objectives])
            done.append(told)
        best: list[ArmConfig] = []
        for o in problem.objectives if done else ():
            best.append(max(done, key=lambda t, key=o.key: t.values[key]).config)
        trace.append(problem.regret(best))
    return Run(trace)


def one(job: tuple[str, str, int]) -> Run:
    family, method, number = job
    problem = FAMILIES[family](np.random.default_rng([number, list(FAMILIES).index(family)]))
    return (
        raw_tpe(problem, number)
        if method == "tpe_raw"
        else through_proposer(problem, METHODS.get(method, method), number)
    )


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    traces = np.array([run.trace for run in runs])
    mean, worst = traces[:, :, 0], traces[:, :, 1]
    return {
        "within1": {str(b): round(float((mean[:, b - 1] <= 0.01).mean()), 3) for b in BUDGETS},
        "within1_worst": {str(b): round(float((worst[:, b - 1] <= 0.01).mean()), 3) for b in BUDGETS},
        "median_regret": {str(b): round(float(np.median(mean[:, b - 1])), 4) for b in BUDGETS},
        "mean_regret": {str(b): round(float(mean[:, b - 1].mean()), 4) for b in BUDGETS},
    }


def paired(ours: Sequence[Run], other: Sequence[Run]) -> dict[str, Any]:
    """Mean of ours - other with its 95 % t interval, per budget; worse where the interval lies above zero."""
    out = {}
    for b in BUDGETS:
        difference = np.array([a.trace[b - 1][0] - c.trace[b - 1][0] for a, c in zip(ours, other, strict=True)])
        half = float(stats.t.ppf(0.975, len(difference) - 1) * stats.sem(difference)) if np.ptp(difference) > 0 else 0.0
        centre = float(difference.mean())
        out[str(b)] = {"difference": round(centre, 4), "low": round(centre - half, 4), "high": round(centre + half, 4)}
        out[str(b)]["worse"] = bool(centre - half > 0)
    return out


def stop_summary(runs: Sequence[Run]) -> dict[str, Any]:
    fired = [run for run in runs if run.stopped is not None]
    return {
        "fired": round(len(fired) / len(runs), 3),
        "median_launches": float(np.median([run.stopped for run in fired])) if fired else None,
        "right": round(float(sum(run.right for run in fired) / len(fired)), 3) if fired else None,
    }


def benchmark(families: Sequence[str], methods: Sequence[str], problems: int, jobs: int) -> dict[str, Any]:
    out: dict[str, Any] = {"problems": problems, "families": {}}
    stopping: list[Run] = []
    with ProcessPoolExecutor(jobs) as pool:
        for family in families:
            runs = {m: list(pool.map(one, [(family, m, i) for i in range(problems)], chunksize=2)) for m in methods}
            row: dict[str, Any] = {"built_on": family in BUILT_ON, **{m: summary(r) for m, r in runs.items()}}
            row["stop_rule"] = stop_summary(runs["ours"])
            if "tpe_canonical" in runs:
                row["against_tpe_canonical"] = paired(runs["ours"], runs["tpe_canonical"])
            stopping += runs["ours"]
            out["families"][family] = row
            show(family, row, methods)
    return {**out, "stop_rule": stop_summary(stopping)}


def show(family: str, row: dict[str, Any], methods: Sequence[str]) -> None:
    """One family's lines of the table, on stderr so that stdout ends with the JSON."""
    head = "  ".join(f"{f'after {b}':>13}" for b in BUDGETS)
    lines = [f"{family + (' (built on)' if row['built_on'] else ''):24}{head}   share within 1 %, median regret"]
    for m in methods:
        pairs = [(row[m]["within1"][str(b)], row[m]["median_regret"][str(b)]) for b in BUDGETS]
        lines.append(f"  {m:22}" + "  ".join(f"{w:>5.0%} {r:>6.1%} " for w, r in pairs).rstrip())
    worst = "  ".join(f"{row['ours']['within1_worst'][str(b)]:>5.0%}        " for b in BUDGETS)
    lines.append(f"  {'ours, worst objective':22}{worst}".rstrip())
    worse = [b for b, p in row.get("against_tpe_canonical", {}).items() if p["worse"]]
    rule = row["stop_rule"]
    if rule["fired"]:
        lines.append(
            f"  stop rule fired in {rule['fired']:.0%}, after {rule['median_launches']:.0f} launches (median), right "
            f"in {rule['right']:.0%}; worse than TPE canonical after: {', '.join(worse) or 'none'}"
        )
    sys.stderr.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="few problems, four methods; under five minutes on 2 cores")
    parser.add_argument("--json", action="store_true", help="print one JSON document last, on stdout")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "gp"], help="ours is always run")
    parser.add_argument("--problems", type=int, help="per family (default 100, fast 12)")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    methods = list(args.methods or (FAST_METHODS if args.fast else METHODS))
    if not args.fast and not args.methods and find_spec("torch"):
        methods.append("gp")
    methods = list(dict.fromkeys(["ours", *methods]))
    result = benchmark(args.families, methods, args.problems or (12 if args.fast else 100), args.jobs)
    if args.json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
