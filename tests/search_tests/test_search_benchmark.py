"""A slice of benchmarks/search.py with bounds, so that a change that makes the search worse is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search.py"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result():
    argv = [sys.executable, str(SCRIPT), "--json", "--problems", "4", "--methods", "tpe_canonical"]
    done = subprocess.run(
        [*argv, "--families", "product", "memory_cliff"], capture_output=True, text=True, timeout=170, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_ours_is_near_the_best_after_eight_launches_where_tpe_is_not(result):
    product = result["families"]["product"]
    assert product["built_on"] is True
    assert product["ours"]["within1"]["8"] >= 0.5
    assert product["ours"]["median_regret"]["8"] <= 0.01
    assert product["tpe_canonical"]["median_regret"]["8"] > 0.03


def test_a_family_the_model_was_not_built_on(result):
    cliff = result["families"]["memory_cliff"]
    assert cliff["built_on"] is False
    assert cliff["ours"]["median_regret"]["12"] <= 0.02
    assert not any(budget["worse"] for budget in cliff["against_tpe_canonical"].values())


def test_the_stop_rule_fires_and_is_mostly_right(result):
    rule = result["families"]["product"]["stop_rule"]
    assert rule["fired"] >= 0.5
    assert rule["median_launches"] <= 20
    assert rule["right"] >= 0.5
