"""The search through the whole pipeline, once: it ends by itself, soon, and with the right configuration.

`python benchmarks/pipeline.py` does so for five seeds; one takes about a minute, too long for `make test`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.ray]
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "pipeline.py"


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_pipeline", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
