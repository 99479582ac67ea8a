"""What is proposed, in which order, and what never again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import pytest

from sweep.errors import UsageError
from sweep.model import ArmConfig, Objective, Verdict
from sweep.search.known import MAX_ATTEMPTS, MAX_LAUNCHES, Known
from sweep.search.proposer import SMALL, Proposer, default_sampler
from sweep.search.view import Origin, SpaceView, Told

SAMPLERS = ("model", "tpe", "random", "grid", "nsga2")
KEY = "output_throughput@1"


def proposer(space, truths, sampler="model", **more):
    return Proposer(space, truths().objectives, sampler=sampler, seed=5, tolerance=more.pop("tolerance", None), **more)


def test_known_good_come_first_in_their_order_and_only_once(space, truths, arm):
    first, second = arm(3, 4, 16), arm(3, 4, 8, "b")
    p = proposer(space, truths, known_good=[first, second, first])
    asked = []
    history: list[Told] = []
    for _ in range(3):
        proposal = p.propose(history)
        asked.append((proposal.config, proposal.origin))
        history.append(truths().told(proposal.config))
    assert asked[:2] == [(first, Origin.KNOWN_GOOD), (second, Origin.KNOWN_GOOD)]
    assert asked[2][1] is Origin.SEED


def test_a_known_good_whose_effective_form_ran_is_not_launched_again(space, truths, arm):
    asked, ran = arm(3, 4, 16), arm(3, 1, 4)
    p = proposer(space, truths, known_good=[ran])
    history = [Told(asked, ran, Verdict.COMPLETE, {KEY: 1.0})]
    assert p.propose(history).origin is not Origin.KNOWN_GOOD
    assert p.propose([Told(asked, None, Verdict.COMPLETE, {KEY: 1.0})]).config == ran


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_walked_through_and_then_ends(spaces, truths, sampler):
    small = spaces(num_steps=(1, 2), topk=(1, 4), num_draft_tokens=(2, 4), cuda_graph=(True,))
    p, truth, history = proposer(small, truths, sampler), truths(noise=0.01), []
    while (proposal := p.propose(history)) is not None:
        history.append(truth.told(proposal.config, len(history)))
        assert len(history) <= MAX_LAUNCHES * len(small.candidates)
    launches = Counter(t.config for t in history)
    assert set(launches) == set(small.candidates)
    # The cost model measures near-ties again; the others launch a configuration once.
    assert max(launches.values()) == (MAX_LAUNCHES if sampler == "model" else 1)


def tied(truths, arm, gap: float) -> tuple[list[Told], ArmConfig]:
    """Three arms, the second slower than the first by ``gap``, the third by 40 %."""
    truth, speeds = truths(), {arm(3, 1, 4): 1.0, arm(4, 1, 5): 1.0 - gap, arm(1, 1, 2): 0.6}
    rows = []
    for config, factor in speeds.items():
        told = truth.told(config)
        shown = 100.0 * factor
        step = replace(told.observations[1], throughput=shown)
        rows.append(replace(told, values={KEY: shown}, observations={1: step}))
    return rows, arm(1, 1, 2)


def test_a_near_tie_is_measured_again_and_a_hopeless_arm_is_not(spaces, truths, arm):
    rows, hopeless = tied(truths, arm, 0.01)
    small = SpaceView(tuple(t.config for t in rows), {"num_steps": (1, 3, 4)}, lambda p: None)
    p = proposer(small, truths, budget=2)
    proposal = p.propose(rows)
    assert proposal.config != hopeless
    assert proposal.why.startswith("measured again: ")
    assert "%" in proposal.why
    # Taken by a running trial, the other of the two is next.
    other = p.propose([*rows, Told(proposal.config)])
    assert other.config not in (hopeless, proposal.config)


def test_what_is_decided_is_not_measured_again(truths, arm):
    rows, _ = tied(truths, arm, 0.3)
    rows += [replace(rows[0])]
    small = SpaceView(tuple(dict.fromkeys(t.config for t in rows)), {"num_steps": (1, 3, 4)}, lambda p: None)
    assert proposer(small, truths, tolerance=0.01, budget=1).propose(rows) is None
    near, _ = tied(truths, arm, 0.01)
    assert proposer(small, truths, tolerance=0.001, budget=1).propose([*near, near[0]]) is not None


def test_a_configuration_is_measured_no_more_than_so_often(truths, arm):
    config, other = arm(3, 1, 4), arm(4, 1, 5)
    told = truths().told(config)
    assert Known([told]).again() == [config]
    assert Known([told] * MAX_LAUNCHES).again() == []
    assert Known([told, Told(config)]).again() == []
    # Once it ran, a launch that fails counts like any other, or one that always fails would be proposed for ever.
    for verdict in (Verdict.CRASHED, Verdict.MEASUREMENT_INVALID, Verdict.INFRA_ERROR):
        failed = Told(config, None, verdict)
        assert Known([told, *[failed] * (MAX_LAUNCHES - 2)]).again() == [config]
        assert Known([told, *[failed] * (MAX_LAUNCHES - 1)]).again() == []
    assert Known([Told(other, None, Verdict.LAUNCH_OOM)]).again() == []


def test_a_space_the_budget_covers_is_enumerated_and_a_larger_one_is_not(spaces, truths):
    small = spaces(num_steps=(1, 2), topk=(1,), cuda_graph=(True,))
    covered = proposer(small, truths, budget=len(small.candidates), tolerance=0.5)
    history: list[Told] = []
    while (proposal := covered.propose(history)) is not None:
        assert proposal.origin is Origin.ENUMERATED
        history.append(truths().told(proposal.config))
    assert [t.config for t in history] == list(small.candidates)
    assert not covered.decided(history)
    short = proposer(small, truths, budget=len(small.candidates) - 1)
    assert short.propose([]).origin is Origin.SEED


def test_the_model_recommends_of_a_space_measured_whole_too(spaces, truths):
    """Not the highest figure: the third best of seven chains, whose launch showed a little more than the best one's."""
    chains, truth = spaces(draft_model=("a",), topk=(1,), cuda_graph=(True,)), truths()
    rows = [truth.told(config) for config in chains.candidates]
    best, lucky = max(chains.candidates, key=truth.speed), chains.candidates[4]
    shown = 1.01 * truth.speed(best)
    step = replace(rows[4].observations[1], throughput=shown)
    rows[4] = replace(rows[4], values={KEY: shown}, observations={1: step})
    whole = {s: proposer(chains, truths, s, budget=len(rows)) for s in ("model", "tpe")}
    assert all(p.enumerates for p in whole.values())
    assert {s: p.recommend(rows) for s, p in whole.items()} == {"model": [best], "tpe": [lucky]}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_study_proposes_what_an_uninterrupted_one_would(space, truths, sampler):
    truth = truths(noise=0.02)

    def run(fresh: bool) -> list[ArmConfig]:
        p, history = proposer(space, truths, sampler), []
        for number in range(9):
            p = proposer(space, truths, sampler) if fresh else p
            history.append(truth.told(p.propose(history).config, number))
        return [t.config for t in history]

    assert run(fresh=True) == run(fresh=False)


def test_another_seed_draws_otherwise(space, truths):
    objectives = truths().objectives
    draws = {Proposer(space, objectives, sampler="random", seed=s).propose([]).config for s in range(8)}
    assert len(draws) > 4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parallel_hosts_get_different_configurations(space, truths, sampler):
    p, history = proposer(space, truths, sampler), []
    for number in range(4):
        history.append(truths().told(p.propose(history).config, number))
    running = []
    for _ in range(4):
        proposal = p.propose([*history, *running])
        running.append(Told(proposal.config))
    asked = [t.config for t in [*history, *running]]
    assert len(set(asked)) == len(asked)


def test_out_of_memory_excludes_what_dominates_it_and_nothing_else(space, arm):
    known = Known([Told(arm(3, 4, 16), None, Verdict.LAUNCH_OOM, dominates=("num_draft_tokens",))])
    assert known.excluded(arm(3, 4, 32)) is not None
    assert known.excluded(arm(3, 4, 8)) is None
    assert known.excluded(arm(4, 4, 32)) is None
    assert known.excluded(arm(3, 4, 32, "b")) is None
    assert arm(3, 4, 16) not in known.open(space.candidates)
    assert Known([Told(arm(3, 4, 16), None, Verdict.LAUNCH_OOM)]).excluded(arm(3, 4, 32)) is None


def test_several_dominating_fields_must_each_be_no_smaller(arm):
    known = Known([Told(arm(3, 4, 16), None, Verdict.LAUNCH_OOM, dominates=("num_draft_tokens", "topk"))])
    assert known.excluded(arm(3, 8, 32)) is not None
    assert known.excluded(arm(3, 2, 32)) is None


def test_a_drafter_that_never_accepts_is_dropped_with_all_its_configurations(space, truths, arm):
    history = [Told(arm(3, 4, 16), None, Verdict.DRAFTER_INEFFECTIVE)]
    left = Known(history).open(space.candidates)
    assert left
    assert {c.draft_model for c in left} == {"b"}
    assert proposer(space, truths, known_good=[arm(2, 4, 8)]).propose(history).config.draft_model == "b"
    crashed = [Told(arm(3, 4, 16), None, Verdict.CRASHED)]
    assert {c.draft_model for c in Known(crashed).open(space.candidates)} == {"a", "b"}


def test_a_cause_in_the_draft_model_rules_out_everything_with_it(space, arm):
    broken = Told(arm(3, 4, 16), None, Verdict.LAUNCH_CONFIG_ERROR, dominates=("algorithm", "draft_model"))
    known = Known([broken])
    assert {c.draft_model for c in known.open(space.candidates)} == {"b"}
    assert "draft model" in (known.excluded(arm(1, 1, 2)) or "")
    assert known.excluded(arm(3, 4, 32, "b")) is None


@pytest.mark.parametrize("verdict", [Verdict.INFRA_ERROR, Verdict.CANCELLED, Verdict.MEASUREMENT_INVALID])
def test_trouble_of_the_surroundings_leaves_a_configuration_open_until_it_repeats(space, truths, arm, verdict):
    config = arm(3, 4, 16)
    rows = [Told(config, None, verdict)] * (MAX_ATTEMPTS - 1)
    p = proposer(space, truths, known_good=[config])
    assert p.propose(rows).config == config
    assert p.propose([*rows, rows[0]]).config != config


def test_samplers_by_name(space, spaces, truths):
    assert default_sampler(space) == "model"
    flags = SpaceView((ArmConfig(extra=(("x", 1),)), ArmConfig(extra=(("x", 2),))), {"x": (1, 2)}, lambda p: None)
    assert default_sampler(flags) == "tpe"
    with pytest.raises(UsageError, match=r"unknown sampler 'bayes'.*nsga2"):
        proposer(space, truths, "bayes")


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed, so gp works")
def test_gp_without_torch_says_what_is_missing(space, truths):
    with pytest.raises(UsageError, match="gp needs torch"):
        proposer(space, truths, "gp").propose([])


def rows(arm):
    return [
        Told(arm(3, 4, 16), arm(3, 4, 16), Verdict.COMPLETE, {KEY: 90.0}, {KEY: 1.5}, {"ttft_p99 < 200 ms": -20.0}),
        Told(arm(2, 1, 3), arm(2, 1, 3), Verdict.COMPLETE, {KEY: 70.0}),
        Told(arm(5, 8, 32), None, Verdict.LAUNCH_OOM),
        Told(arm(4, 8, 32), None, Verdict.INFRA_ERROR),
        Told(arm(3, 4, 8)),
        Told(arm(3, 2, 4), arm(3, 2, 4), Verdict.COMPLETE, {KEY: math.nan}),
    ]


def test_the_study_tells_each_verdict_as_it_should(space, truths, arm):
    trials = proposer(space, truths).study(rows(arm)).get_trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "RUNNING", "PRUNED"]
    assert trials[0].value == 90.0
    assert trials[0].constraints == {"launched": 0.0, "ttft_p99 < 200 ms": -20.0}
    assert trials[0].user_attrs["stderr"] == {KEY: 1.5}
    assert trials[0].params["num_draft_tokens"] == 16
    assert trials[2].constraints == {"launched": 1.0}
    assert all(t.values is None for t in trials[2:])
    assert trials[5].constraints == {"launched": 0.0}


def test_samplers_that_read_only_complete_trials_get_a_marked_placeholder(space, truths, arm):
    from sweep.search.study import PLACEHOLDER, build

    trials = build(rows(arm), space, truths().objectives, complete_only=True).get_trials()
    stand_in = trials[2]
    assert (stand_in.state.name, stand_in.value) == ("COMPLETE", 70.0)
    assert stand_in.user_attrs[PLACEHOLDER] is True
    assert stand_in.constraints["launched"] > 0
    assert PLACEHOLDER not in trials[0].user_attrs
    assert trials[3].state.name == "FAIL"


def test_several_objectives_with_directions(space, truths):
    objectives = [Objective("output_throughput", 32, True), Objective("ttft_p50", 1, False)]
    study = Proposer(space, objectives, sampler="tpe").study([])
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_an_optuna_sampler_learns_where_it_is_good(space, truths, sampler):
    truth, history = truths(), []
    p = proposer(space, truths, sampler)
    for _ in range(40):
        history.append(truth.told(p.propose(history).config))
    early = sum(truth.speed(t.config) for t in history[:10])
    late = sum(truth.speed(t.config) for t in history[-10:])
    assert late > 1.1 * early


def test_without_a_budget_a_small_space_is_measured_once_and_whole(spaces, truths):
    small = spaces(num_steps=(1, 2, 3), topk=(1,), cuda_graph=(True,))
    assert 1 < len(small.candidates) <= SMALL
    p, history = proposer(small, truths, tolerance=0.01), []
    while (proposal := p.propose(history)) is not None:
        assert proposal.origin is Origin.ENUMERATED
        history.append(truths().told(proposal.config))
    assert [t.config for t in history] == list(small.candidates)
    large = spaces(num_steps=tuple(range(1, 9)), topk=(1,), cuda_graph=(True, False))
    assert len(large.candidates) > SMALL
    assert not proposer(large, truths).enumerates
