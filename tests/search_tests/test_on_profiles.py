"""The search against the simulator's noise-free truth: fitted to real tables, not the cost model's own form."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from launchers.simulated import truth
from sweep.model import ArmConfig, Objective, Verdict
from sweep.search.proposer import Proposer
from sweep.search.view import Observation, Told

PROFILE = truth.load("h200-llama8b")
OBJECTIVES = [Objective("output_throughput", 1, True)]


@cache
def speed_and_histogram(config: ArmConfig) -> tuple[float, float, tuple[int, ...]]:
    arm = truth.arm_model(PROFILE, config)
    survival = np.mean([arm.survival(c) for c in truth.main_categories(PROFILE)], axis=0)
    reach = np.concatenate([[1.0], survival])
    length = 1.0 + float(survival.sum())
    counts = np.round(4000 * np.append(reach[:-1] - reach[1:], reach[-1]))
    return length / arm.step_s(1), length, tuple(int(c) for c in counts)


@pytest.mark.parametrize("seed", range(5))
def test_within_one_per_cent_of_the_true_best_when_it_stops_by_itself(spaces, seed):
    space = spaces(
        draft_model=("eagle3-head", "other"),
        num_steps=tuple(range(1, 9)),
        num_draft_tokens=(2, 4, 6, 8, 16, 32, 48, 64),
    )
    proposer = Proposer(space, OBJECTIVES, sampler="model", seed=seed, tolerance=0.01)
    rng, history = np.random.default_rng([seed, 11]), []
    while (proposal := proposer.propose(history)) is not None:
        assert len(history) < 20
        speed, length, histogram = speed_and_histogram(proposal.config)
        shown = speed * float(np.exp(0.01 * rng.standard_normal()))
        seen = {1: Observation(shown, length, histogram)}
        values = {OBJECTIVES[0].key: shown}
        history.append(Told(proposal.config, proposal.config, Verdict.COMPLETE, values, observations=seen))
    best = max(speed_and_histogram(c)[0] for c in space.candidates)
    assert proposer.decided(history)
    assert speed_and_histogram(proposer.recommend(history)[0])[0] >= 0.99 * best
