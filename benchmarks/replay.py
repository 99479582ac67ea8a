"""Published groups of measurements replayed as truth: how often is a wrong winner named, by us and by one run each?

The table (SpecForge's SpecBundle, MIT licence: 10 targets, up to 7 datasets, 5 configurations each) gives one
throughput per configuration; these are taken as the truth and measured again with single runs varying by ``CV``.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from worlds import Bench, World, confirm, search

from sweep.analysis import AnalysisSettings, StudyAnalysis, analyse_figures, extract
from sweep.model import Objective, Role, Stage

SPECBUNDLE = Path(__file__).parent / "data" / "specbundle.csv"
SETTINGS = AnalysisSettings(metrics=("output_throughput",))
Group = tuple[float, list[tuple[float, float]]]  # baseline tok/s, (tok/s, accept length) of each configuration
CV = 0.025


def groups(path: Path) -> list[Group]:
    """(baseline tok/s, [(arm tok/s, accept length)]) of every group measured together."""
    found: defaultdict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["target"], row["dataset"], row["batch_size"], row["draft"]].append(row)
    return [
        (float(rows[0]["baseline_tok_s"]), [(float(r["spec_tok_s"]), float(r["accept_length"])) for r in rows])
        for rows in found.values()
    ]


def replay(group: Group, seed: int) -> tuple[bool, bool, bool]:
    """(ours wrong, ours tie, naive wrong): the group's numbers taken as truth, single runs varying by ``CV``.

    Half of that variance belongs to the launch, half to the block.
    """
    baseline, arms = group
    part = CV / math.sqrt(2)
    gains = tuple(math.log(speed / baseline) for speed, _ in arms)
    bench = Bench(
        World(seed=seed, log_gain=gains, concurrency=8, launch_sd=part, noise_sd=part, tails=False, bad_blocks=0.0)
    )
    objective = Objective("output_throughput", 8, True)
    search(bench)
    naive_arm, _ = one_run(bench)
    found = analysis_of(bench, objective)
    confirm(bench, found.to_confirm(objective, 2))
    ranking = analysis_of(bench, objective).ranking[objective.key]
    first = [r.trial for r in ranking if r.rank == 1]
    best = int(np.argmax(gains))
    return best not in first, len(first) > 1, naive_arm != best


def one_run(bench: Bench) -> tuple[int, float]:
    """The highest throughput of one block each."""
    speeds = {
        launch.trial: launch.blocks[0].output_tokens / launch.blocks[0].elapsed_s
        for launch in bench.launches
        if launch.role is Role.CANDIDATE and launch.stage is Stage.SEARCH
    }
    trial = max(speeds, key=lambda t: speeds[t])
    return int(trial or 0), speeds[trial]


def analysis_of(bench: Bench, objective: Objective) -> StudyAnalysis:
    figures = [extract(launch, ("output_throughput",)) for launch in bench.launches]
    return analyse_figures(figures, bench.configs(), [objective], SETTINGS)
