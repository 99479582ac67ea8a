"""The pipeline's search in virtual time: it ends by itself, soon, and right."""

from __future__ import annotations

import pytest

from tests.benchmark_scripts import benchmark


@pytest.mark.parametrize("seed", [1, 3, 5])  # the third's prompts are the hardest: it once took 13 to 21 launches
def test_a_search_of_780_ends_within_twelve_launches(seed: int) -> None:
    found = benchmark("pipeline_virtual").search((seed, 0), 0.013)
    assert 4 <= found.launches <= 12
    assert found.regret <= 0.01
