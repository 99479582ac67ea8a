"""What a launch measures, from the workload."""

from __future__ import annotations

import pytest

from sweep.config import Overrides, load_space
from sweep.model import Stage
from sweep.planning import make_plan


@pytest.mark.parametrize(
    ("levels", "warmed"), [("[1, 4, 48, 16]", [48, 16, 4]), ("[1]", [1]), ("[8]", [8]), ("[2, 1]", [2])]
)
def test_every_concurrency_is_warmed_up_the_widest_first(levels: str, warmed: list[int]) -> None:
    sets = (f"workload.concurrency={levels}", "workload.repeats=2", "objectives=[output_throughput]")
    plan = make_plan(load_space("smoke", Overrides(sets=sets)), Stage.SEARCH)
    assert [block.concurrency for block in plan.warm] == warmed
    assert all(block.round == 0 for block in plan.warm)
    assert len(plan.blocks) == 2 * len(levels.split(","))
