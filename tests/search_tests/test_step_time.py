"""Step times with corners: the shapes that hardware has and a smooth form would miss."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.search.model import steptime
from sweep.search.model.fit import CostModel
from sweep.search.model.steptime import Form, forms


def roofline(config, level: int) -> float:
    flight = level * config.num_draft_tokens / 250.0
    return 0.7 + 0.9 * max(1.0, flight) + 0.06 * config.num_steps


def padded(config, level: int) -> float:
    whole = 2 ** int(np.ceil(np.log2(config.num_draft_tokens))) if config.cuda_graph else config.num_draft_tokens
    return (1.0 + 0.06 * config.num_steps + 0.02 * whole) * (1.0 if config.cuda_graph else 1.4)


def jump(config, level: int) -> float:
    late = 1.25 if config.num_draft_tokens > 16 else 1.0
    cost = 1.0 + 0.06 * config.num_steps + 0.004 * config.num_draft_tokens
    return cost * (late if config.cuda_graph else 1.4)


def plain(config, level: int) -> float:
    return (1.0 + 0.06 * config.num_steps + 0.006 * level**0.5 * config.num_draft_tokens) * (
        1.0 if config.cuda_graph else 1.4
    )


SEEN = ((7, 1, 8), (4, 8, 32), (7, 8, 64), (3, 4, 12), (3, 2, 6), (3, 4, 16), (2, 1, 3), (5, 4, 24), (4, 8, 48))
UNSEEN = ((3, 4, 8), (2, 4, 8), (4, 4, 16), (5, 8, 16), (4, 4, 12), (5, 8, 32), (4, 8, 24), (3, 2, 4))


def errors(spaces, truths, arm, step, levels, level) -> tuple[float, CostModel]:
    """Root mean square error of log step time at what was not seen."""

    class Shaped(truths):
        def step(self, config, level: int) -> float:
            return step(config, level)

    truth = Shaped(levels=levels)
    space = spaces(draft_model=("a",), num_draft_tokens=(2, 4, 6, 8, 12, 16, 24, 32, 48, 64))
    rows = [truth.told(arm(*numbers), i) for i, numbers in enumerate(SEEN)]
    model = CostModel(space.candidates, truth.objectives, rows)
    posterior = model.step_time(level)
    off = [posterior.mean[model.index[arm(*n)]] - np.log(step(arm(*n), level)) for n in UNSEEN]
    return float(np.sqrt(np.mean(np.square(off)))), model


@pytest.mark.parametrize(("step", "levels", "level"), [(roofline, (1, 32), 32), (padded, (1,), 1), (jump, (1,), 1)])
def test_a_corner_is_found_that_the_plain_form_smooths_away(spaces, truths, arm, monkeypatch, step, levels, level):
    ours, _ = errors(spaces, truths, arm, step, levels, level)
    monkeypatch.setattr(steptime, "forms", lambda flight, widest: [Form()])
    smooth, _ = errors(spaces, truths, arm, step, levels, level)
    assert ours < 0.03
    assert ours < 0.7 * smooth


def test_hypotheses_cost_nothing_where_there_is_no_corner(spaces, truths, arm, monkeypatch):
    ours, _ = errors(spaces, truths, arm, plain, (1, 8), 8)
    monkeypatch.setattr(steptime, "forms", lambda flight, widest: [Form()])
    smooth, _ = errors(spaces, truths, arm, plain, (1, 8), 8)
    assert ours < 0.02
    assert ours < smooth + 0.01


def test_only_corners_within_reach_are_considered():
    few = forms(flight=8.0, widest=8.0)
    assert few == [Form(log_prior=few[0].log_prior), Form(padded=True, log_prior=few[1].log_prior)]
    every = forms(flight=2048.0, widest=64.0)
    assert len(every) == (1 + len(steptime.RIDGES)) * (1 + len(steptime.JUMPS)) * 2
    for some in (few, every):
        assert sum(np.exp(form.log_prior) for form in some) == pytest.approx(1.0)
        assert (some[0].ridge, some[0].jump, some[0].padded) == (np.inf, np.inf, False)
