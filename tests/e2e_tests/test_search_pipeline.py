"""The search through the whole pipeline, once: it ends by itself, soon, and with the right configuration.

`python benchmarks/pipeline.py` does so for five seeds; one takes about a minute, and wants a quiet machine: launches
that stray by more than is stated make the search longer.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmark_scripts import benchmark

pytestmark = [pytest.mark.long, pytest.mark.clock, pytest.mark.ray]


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    return benchmark("pipeline")


def test_ends_by_its_own_rule_within_one_per_cent_of_the_best(pipeline: ModuleType, tmp_path: Path) -> None:
    found = pipeline.run(5, tmp_path)
    assert found.ended == "decided"
    assert found.launches["search"] <= 12
    assert found.regret <= 0.01
    assert found.reported_gain == pytest.approx(found.true_gain, abs=0.15)


def test_a_tolerance_of_null_goes_on_to_the_budget(pipeline: ModuleType, tmp_path: Path) -> None:
    """The stop rule is what ends the other one."""
    measurement = {"calibrate_launches": 1, "engine_default": False, "confirm_top": 0}
    found = pipeline.run(5, tmp_path, budget={"trials": 14, "regret": None}, measurement=measurement)
    assert (found.ended, found.launches["search"]) == ("budget", 14)
