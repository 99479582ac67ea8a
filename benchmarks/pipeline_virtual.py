"""The search of ``pipeline.py`` alone, in virtual time: how many launches until it ends by itself, and was it right?

    python benchmarks/pipeline_virtual.py [--seeds 20] [--nights 5] [--noise 0.013] [--jobs 2]

Blocks come from the simulated server's own scheduler and draws on each seed's prompts; a launch's throughput strays by
``--noise`` (standard deviation of its logarithm: 0.013 is what the benchmark's profile states, launch and block
together). ``--nights`` draws of that noise for each seed. No processes: two studies take a second. Prints one line per
study and one over all.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import pipeline

from launchers.simulated import truth
from search_spaces.space import SearchSpace
from sweep.bench.workload import BUILTIN, load_prompts
from sweep.config import load_text
from sweep.model import ArmConfig, Objective, Stage, Verdict
from sweep.search.proposer import Proposer
from sweep.search.view import Observation, SpaceView, Told

GOAL = Objective("output_throughput", 1, True)
SECONDS = 60.0  # of every trial: launches take alike here
MOST = 40
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Search:
    """``regret``: shortfall of what it would keep from the best of the space, noise-free (fraction)."""

    seed: int
    night: int
    launches: int
    regret: float
    kept: str


@cache
def space() -> SearchSpace:
    return SearchSpace.from_spec(load_text(yaml.safe_dump({**pipeline.SPACE, "seed": 0})))


@cache
def best() -> float:
    return max(pipeline.true_throughput(config) for config in space().candidates)


def canonical(params: Mapping[str, Any]) -> ArmConfig | None:
    found = space().canonical(params)
    return found if isinstance(found, ArmConfig) else None


def shown(seed: int, config: ArmConfig) -> tuple[list[float], tuple[int, ...]]:
    """Noise-free seconds of each prompt, and the block's accept histogram."""
    chosen = load_prompts(BUILTIN, pipeline.CATEGORIES).for_stage(
        Stage.SEARCH, seed, pipeline.SPACE["workload"]["per_category"]
    )
    path = next((path for path in pipeline.DRAFTERS if Path(path).name == config.draft_model), None)
    prompts = [truth.TruePrompt(p.messages[-1]["content"], p.category, 100) for p in chosen]
    block = truth.simulate_block(
        pipeline.profile(), replace(config, draft_model=path), prompts, 1, pipeline.MAX_TOKENS, ignore_eos=True
    )
    return list(block.request_s), block.histogram


def search(job: tuple[int, int], noise: float) -> Search:
    seed, night = job
    view = SpaceView(candidates=tuple(space().candidates), axes=space().axes, canonical=canonical)
    proposer = Proposer(view, [GOAL], seed=seed, tolerance=TOLERANCE)
    baseline, _ = shown(seed, ArmConfig())
    level = pipeline.true_throughput(ArmConfig())
    rng = np.random.default_rng([seed, night])
    history: list[Told] = []
    while len(history) < MOST and (proposal := proposer.propose(history)) is not None:
        seconds, histogram = shown(seed, proposal.config)
        gain = statistics.fmean(math.log(b / c) for b, c in zip(baseline, seconds, strict=True))
        value = level * math.exp(gain + noise * rng.standard_normal())
        length = 1.0 + sum(k * n for k, n in enumerate(histogram)) / sum(histogram)
        history.append(
            Told(
                proposal.config, proposal.config, Verdict.COMPLETE, {GOAL.key: value}, stderr={GOAL.key: noise * value},
                observations={1: Observation(value, length, histogram)}, seconds=SECONDS,
            )
        )  # fmt: skip
    (kept,) = proposer.recommend(history)
    return Search(seed, night, len(history), 1.0 - pipeline.true_throughput(kept) / best(), kept.label())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.013)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    jobs = [(seed, night) for seed in range(1, asked.seeds + 1) for night in range(asked.nights)]
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = list(pool.map(partial(search, noise=asked.noise), jobs))
    for one in found:
        print(f"seed {one.seed:>2} night {one.night}: {one.launches:>2} launches, {one.kept}, regret {one.regret:.2%}")
    launches = [one.launches for one in found]
    print(
        f"{len(found)} studies: {min(launches)} to {max(launches)} launches (median {statistics.median(launches):g}), "
        f"{sum(n > 12 for n in launches)} over 12; {sum(one.regret <= TOLERANCE for one in found)} within 1 %"
    )


if __name__ == "__main__":
    main()
