"""The cost model: what it learns from few launches, what it admits not to know, and when it says stop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sweep.model import Objective, Verdict
from sweep.search.known import Known
from sweep.search.model import acquisition
from sweep.search.model.fit import CostModel
from sweep.search.proposer import Proposer
from sweep.search.view import Observation, Origin, Told


def fit(space, truth, configs, **more):
    rows = [truth.told(c, i, **more) for i, c in enumerate(configs)]
    return CostModel(space.candidates, truth.objectives, rows)


def test_one_deep_chain_teaches_every_shallower_chain(space, truths, arm):
    truth = truths()
    model = fit(space, truth, [arm(7, 1, 8)])
    for steps in range(1, 7):
        i = model.index[arm(steps, 1, steps + 1)]
        error = model.accept_length.mean[i] - np.log(truth.length(arm(steps, 1, steps + 1)))
        assert abs(error) < 0.03
        assert abs(error) < 3 * np.sqrt(model.accept_length.var[i])
    wide, chain = model.index[arm(4, 8, 32)], model.index[arm(4, 1, 5)]
    assert model.accept_length.var[wide] > 1.5 * model.accept_length.var[chain]


def test_a_shallow_chain_does_not_teach_a_deeper_one_as_well(space, truths, arm):
    model = fit(space, truths(), [arm(2, 1, 3)])
    deep, seen = model.index[arm(7, 1, 8)], model.index[arm(2, 1, 3)]
    assert model.accept_length.var[deep] > 9 * model.accept_length.var[seen]


def test_accept_lengths_alone_teach_too(space, truths, arm):
    truth = truths()
    configs = [arm(7, 1, 8), arm(3, 1, 4), arm(1, 1, 2), arm(4, 8, 32)]
    model = fit(space, truth, configs, histogram=False)
    for config in (arm(5, 1, 6), arm(2, 1, 3), arm(3, 4, 16)):
        assert model.accept_length.mean[model.index[config]] == pytest.approx(np.log(truth.length(config)), abs=0.06)


def test_another_drafter_is_believed_like_the_first_until_it_is_seen(space, truths, arm):
    truth = truths(p0={"a": 0.8, "b": 0.45})
    chain_a, chain_b = arm(7, 1, 8), arm(7, 1, 8, "b")
    before = fit(space, truth, [chain_a])
    i = before.index[arm(3, 1, 4, "b")]
    assert before.accept_length.mean[i] == pytest.approx(np.log(truth.length(arm(3, 1, 4))), abs=0.15)
    after = fit(space, truth, [chain_a, chain_b])
    assert after.accept_length.mean[i] == pytest.approx(np.log(truth.length(arm(3, 1, 4, "b"))), abs=0.04)
    assert before.accept_length.var[i] > 9 * after.accept_length.var[i]


def test_throughput_of_what_was_never_launched(space, truths, arm):
    truth = truths()
    seen = [arm(7, 1, 8), arm(4, 8, 32, "b"), arm(2, 4, 8), arm(6, 4, 16), arm(3, 2, 4), arm(4, 4, 16, graph=False)]
    model = fit(space, truth, seen)
    outlook = model.throughput(1)
    error = np.array([outlook.mean[model.index[c]] - np.log(truth.speed(c)) for c in space.candidates])
    assert np.median(np.abs(error)) < 0.03
    assert np.mean(np.abs(error) < 2.5 * np.sqrt(outlook.var[: len(error)])) > 0.9


def test_concurrency_levels_share_strength(space, truths, arm):
    both, one = truths(levels=(1, 16)), truths(levels=(1,))
    rows = [both.told(c, i) for i, c in enumerate([arm(7, 1, 8), arm(4, 8, 32)])]
    more = [*rows, *(one.told(c, 5 + i) for i, c in enumerate([arm(2, 4, 8), arm(2, 4, 8, graph=False)]))]
    few, many = (CostModel(space.candidates, both.objectives, r).step_time(16) for r in (rows, more))
    index = CostModel(space.candidates, both.objectives, rows).index
    for config in (arm(2, 4, 8), arm(3, 4, 8), arm(5, 4, 16, graph=False)):
        assert many.var[index[config]] < 0.9 * few.var[index[config]]


def test_measurements_that_contradict_the_form_are_kept_and_reported(space, truths, arm):
    truth = truths()
    seen = [
        arm(s, k, d) for s, k, d in ((7, 1, 8), (4, 8, 32), (2, 4, 8), (3, 4, 16), (5, 4, 16), (6, 2, 8), (3, 2, 4))
    ]
    rows = [truth.told(c, i) for i, c in enumerate(seen)]

    def scaled(told: Told, factor: float) -> Told:
        speed = factor * (told.observations[1].throughput or 0.0)
        return replace(
            told,
            values={"output_throughput@1": speed},
            observations={1: replace(told.observations[1], throughput=speed)},
        )

    # Odd numbers of steps run at half speed: nothing the form can say.
    odd = [scaled(t, 0.5 if (t.config.num_steps or 0) % 2 else 1.0) for t in rows]
    model = CostModel(space.candidates, truth.objectives, odd)
    for told in odd:
        i = model.index[told.config]
        assert model.outlooks[0].mean[i] == pytest.approx(np.log(told.values["output_throughput@1"]), abs=0.12)
    honest = CostModel(space.candidates, truth.objectives, rows)
    assert model.misfit[1] > acquisition.MISFIT > honest.misfit[1]
    assert "stray from the cost model" in acquisition.why(model, 0, False)
    assert "stray from the cost model" not in acquisition.why(honest, 0, False)


def test_without_accept_counters_the_product_is_still_learnt(space, truths, arm):
    truth = truths()
    seen = [arm(7, 1, 8), arm(4, 8, 32), arm(2, 4, 8), arm(3, 4, 16)]
    rows = [replace(truth.told(c), observations={1: Observation(truth.speed(c))}) for c in seen]
    model = CostModel(space.candidates, truth.objectives, rows)
    for config in seen:
        assert model.outlooks[0].mean[model.index[config]] == pytest.approx(np.log(truth.speed(config)), abs=0.1)


def test_the_chance_of_launching_falls_with_size_after_a_failure_and_only_then(space, truths, arm):
    truth = truths()
    rows = [truth.told(arm(7, 1, 8)), truth.told(arm(2, 4, 8))]
    assert (CostModel(space.candidates, truth.objectives, rows).launches == 1.0).all()
    model = CostModel(space.candidates, truth.objectives, [*rows, Told(arm(5, 8, 32), None, Verdict.LAUNCH_OOM)])
    chance = {c: model.launches[model.index[c]] for c in space.candidates}
    assert chance[arm(5, 8, 32)] < 0.3
    assert chance[arm(6, 8, 32)] < chance[arm(4, 8, 16)] < chance[arm(2, 4, 4)]
    assert chance[arm(2, 4, 4)] > 0.8


def test_a_running_trial_lowers_what_is_left_to_learn_beside_it(space, truths, arm):
    truth = truths()
    rows = [truth.told(arm(7, 1, 8)), truth.told(arm(4, 8, 32))]
    idle = CostModel(space.candidates, truth.objectives, rows)
    busy = CostModel(space.candidates, truth.objectives, [*rows, Told(arm(3, 4, 16))])
    i = idle.index[arm(3, 4, 16)]
    assert busy.outlooks[0].var[i] < 0.5 * idle.outlooks[0].var[i]
    assert busy.outlooks[0].mean[i] == pytest.approx(idle.outlooks[0].mean[i], abs=0.05)


def test_a_dearer_launch_is_worth_less(space, truths, arm):
    truth = truths()
    rows = [truth.told(arm(7, 1, 8)), truth.told(arm(4, 8, 32, graph=False))]
    slow = [rows[0], replace(rows[1], seconds=4000.0)]
    model = CostModel(space.candidates, truth.objectives, slow)
    even = CostModel(space.candidates, truth.objectives, rows)
    off, on = model.index[arm(3, 4, 16, graph=False)], model.index[arm(3, 4, 16)]
    assert model.minutes[off] > model.minutes[on]
    assert even.minutes[off] == even.minutes[on]


def test_constraints_keep_a_fast_arm_from_being_recommended(space, truths, arm):
    truth = truths()
    fast, slow = arm(4, 8, 32), arm(2, 1, 3)
    assert truth.speed(fast) > truth.speed(slow)
    rows = [replace(truth.told(c), constraints={"ttft": margin}) for c, margin in ((fast, 30.0), (slow, -30.0))]
    p = Proposer(space, truth.objectives, sampler="model")
    assert p.recommend(rows) == [slow]
    assert p.recommend([truth.told(fast), truth.told(slow)]) == [fast]
    launches = CostModel(space.candidates, truth.objectives, rows).launches
    index = CostModel(space.candidates, truth.objectives, rows).index
    assert launches[index[fast]] < 0.5 < launches[index[slow]]


def test_a_metric_without_a_form_is_searched_too(space, truths):
    truth = truths()
    objective = Objective("tpot_p50", 1, False)
    p, history = Proposer(space, [objective], sampler="model", seed=2, tolerance=None), []
    for number in range(10):
        told = truth.told(p.propose(history).config, number)
        history.append(replace(told, values={objective.key: 1000.0 / truth.speed(told.config)}))
    best = max(truth.speed(c) for c in space.candidates)
    assert truth.speed(p.recommend(history)[0]) > 0.97 * best


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_found_and_the_search_ends_by_itself(space, truths, seed):
    truth = truths(noise=0.02)
    p, history = Proposer(space, truth.objectives, sampler="model", seed=seed, tolerance=0.01), []
    while (proposal := p.propose(history)) is not None:
        assert len(history) < 25
        assert proposal.origin in (Origin.SEED, Origin.SAMPLER)
        history.append(truth.told(proposal.config, 100 * seed + len(history)))
    assert Known(history).open(space.candidates)
    assert p.decided(history)
    assert p.remaining_regret(history) <= 0.01
    assert truth.speed(p.recommend(history)[0]) > 0.98 * max(truth.speed(c) for c in space.candidates)


def test_the_stop_rule_waits_for_known_good_seeds_and_doubt(space, truths, arm):
    truth = truths(noise=0.02)
    p, history = Proposer(space, truth.objectives, sampler="model", seed=1, tolerance=0.01), []
    while (proposal := p.propose(history)) is not None:
        history.append(truth.told(proposal.config, len(history)))
    assert p.decided(history)
    assert not p.decided(history[:2])
    assert p.remaining_regret([]) is None
    assert p.remaining_regret(history[:2]) > p.remaining_regret(history)
    waiting = Proposer(space, truth.objectives, sampler="model", seed=1, known_good=[arm(1, 8, 2, graph=False)])
    assert not waiting.decided(history)
    assert not Proposer(space, truth.objectives, sampler="model", seed=1, tolerance=None).decided(history)
    assert not Proposer(space, truth.objectives, sampler="tpe", seed=1).decided(history)


def test_two_loads_get_a_configuration_each(space, truths):
    truth = truths(levels=(1, 64), noise=0.01)
    p, history = Proposer(space, truth.objectives, sampler="model", seed=3, tolerance=None), []
    for number in range(12):
        history.append(truth.told(p.propose(history).config, number))
    for config, level in zip(p.recommend(history), truth.levels, strict=True):
        assert truth.speed(config, level) > 0.97 * max(truth.speed(c, level) for c in space.candidates)


def test_predictions_carry_intervals_that_widen_away_from_what_was_measured(space, truths, arm):
    truth = truths(levels=(1, 4))
    rows = [truth.told(c, i) for i, c in enumerate([arm(7, 1, 8), arm(4, 8, 32), arm(2, 4, 8), arm(3, 4, 16)])]
    p = Proposer(space, truth.objectives, sampler="model")
    near, other = p.predict(rows, [arm(3, 4, 8), arm(3, 4, 8, "b")], 1)
    assert near.low < truth.speed(arm(3, 4, 8)) < near.high
    assert near.mean == pytest.approx(truth.speed(arm(3, 4, 8)), rel=0.05)
    assert other.high / other.low > near.high / near.low
    [far] = p.predict(rows, [arm(3, 4, 8)], 16)
    assert far.low < truth.speed(arm(3, 4, 8), 16) < far.high
    assert far.high / far.low > near.high / near.low


def test_what_if_the_accept_length_were_another(space, truths, arm):
    truth = truths()
    config = arm(3, 4, 16)
    rows = [truth.told(c, i) for i, c in enumerate([arm(7, 1, 8), arm(4, 8, 32), config])]
    p = Proposer(space, truth.objectives, sampler="model")
    [two], [four] = (p.predict(rows, [config], 1, accept_length=a) for a in (2.0, 4.0))
    assert four.mean == pytest.approx(2 * two.mean)
    assert two.low < 2.0 / truth.step(config, 1) < two.high


def test_exploring_looks_at_the_least_known_near_the_best(space, truths, arm, monkeypatch):
    truth = truths(noise=0.02)
    rows = [truth.told(c, i) for i, c in enumerate([arm(7, 1, 8), arm(4, 8, 32, "b"), arm(3, 4, 16), arm(2, 4, 8)])]
    p = Proposer(space, truth.objectives, sampler="model", seed=4, tolerance=None)
    monkeypatch.setattr(acquisition, "EXPLORE", 1.0)
    proposal = p.propose(rows)
    assert proposal.why.startswith("exploring: ")
    model = CostModel(space.candidates, truth.objectives, rows)
    mean, best = model.outlooks[0].mean, max(model.outlooks[0].mean[i] for i in model.measured)
    assert mean[model.index[proposal.config]] >= best + np.log(0.9)
    assert not p.propose(rows[:-1]).why.startswith("exploring"), "three are too few"
    monkeypatch.setattr(acquisition, "EXPLORE", 0.0)
    assert not p.propose(rows).why.startswith("exploring")


def test_what_cannot_win_is_launched_for_others_and_says_so(space, truths, arm):
    truth, words = truths(noise=0.02), "launched for what it tells about others"
    rows = [truth.told(c, i) for i, c in enumerate([arm(7, 1, 8), arm(4, 8, 32, "b"), arm(3, 4, 16), arm(2, 4, 8)])]
    model = CostModel(space.candidates, truth.objectives, rows)
    outlook, best = model.outlooks[0], max(model.measured, key=lambda i: model.outlooks[0].mean[i])
    behind = (outlook.mean[best] - outlook.mean) / outlook.spread(best)
    new = [i for i in range(len(space.candidates)) if i not in model.measured]
    for chosen in (max(new, key=lambda i: behind[i]), min(new, key=lambda i: behind[i])):
        assert (words in acquisition.why(model, chosen, False)) is bool(behind[chosen] > acquisition.HOPELESS)
    assert max(behind[new]) > acquisition.HOPELESS > min(behind[new])


def test_of_several_objectives_it_speaks_of_the_one_that_matters(space, truths, arm):
    """At 64 at once a short chain leads by far, alone a deep tree."""
    truth = truths(levels=(1, 64), noise=0.01)
    seen = [arm(7, 1, 8), arm(4, 8, 32), arm(2, 1, 3), arm(5, 4, 16)]
    model = CostModel(space.candidates, truth.objectives, [truth.told(c, i) for i, c in enumerate(seen)])
    for config, key in ((arm(1, 1, 2), "output_throughput@64"), (arm(6, 8, 32), "output_throughput@1")):
        said = acquisition.why(model, model.index[config], False)
        assert f" in {key} over " in said
    alone = CostModel(space.candidates, truth.objectives[:1], [truth.told(c, i) for i, c in enumerate(seen)])
    assert " in output" not in acquisition.why(alone, alone.index[arm(6, 8, 32)], False)
    again = acquisition.why(model, model.index[arm(2, 1, 3)], False)
    assert again.startswith("measured again: expected ")


def test_a_proposal_says_what_is_expected_and_what_is_unsure(space, truths):
    truth = truths(noise=0.02)
    p, history = Proposer(space, truth.objectives, sampler="model", seed=4, tolerance=None), []
    for number in range(3):
        proposal = p.propose(history)
        history.append(truth.told(proposal.config, number))
    assert "expected" in proposal.why
    assert "uncertain" in proposal.why
    assert "%" in proposal.why
