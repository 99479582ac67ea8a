"""Words, corrections, ranks and ties."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.analysis import AnalysisSettings
from sweep.analysis.compare import Reporter, holm
from sweep.model import Comparison, Stage
from tests.analysis_tests.made import ARMS, AT_8, Night, load_block


def rounds(speed: float, **more: object) -> list:  # type: ignore[type-arg]  # BlockResult
    return [load_block(speed, k, **more) for k in range(3)]


def test_holm_steps_down_and_leaves_what_was_not_measured_out() -> None:
    p = np.array([0.01, np.nan, 0.04, 0.03])
    adjusted = p * holm(p)
    assert adjusted[[0, 2, 3]] == pytest.approx([0.03, 0.06, 0.06])
    assert np.isnan(adjusted[1])
    # 0.04 comes after 0.03 * 2: it is multiplied by more than its place, so that their order stays
    assert holm(p)[[0, 2, 3]] == pytest.approx([3.0, 1.5, 2.0])
    assert holm(np.array([0.0, 0.5])) == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("gain", "p", "word"),
    [
        (0.05, 0.001, Comparison.FASTER),
        (-0.05, 0.001, Comparison.SLOWER),
        (0.05, 0.2, Comparison.TIE),  # not shown
        (0.008, 0.001, Comparison.TIE),  # shown, and too small to matter
    ],
)
def test_words(gain: float, p: float, word: Comparison) -> None:
    assert Reporter("output_throughput", 8, None, AnalysisSettings(), None).compare(gain, p) is word


def study(speeds: dict[int, float], seed: int = 0, noise: float = 0.004) -> Night:
    rng = np.random.default_rng(seed)

    def jitter(speed: float) -> float:
        return speed * float(np.exp(rng.normal(0, noise)))

    night = Night()
    for _ in range(2):
        night.add(None, rounds(jitter(800.0)))
    for number, (trial, speed) in enumerate(speeds.items()):
        if number and number % 3 == 0:
            night.add(None, rounds(jitter(800.0)))
        night.add(trial, rounds(jitter(speed)))
    night.add(None, rounds(jitter(800.0)))
    return night


def test_arms_that_cannot_be_told_apart_share_a_rank_and_the_cheaper_stands_first() -> None:
    # ARMS[k] drafts 2 + k tokens: the cheaper of the two leaders is 3, though 7 measured higher.
    found = study({7: 961.0, 3: 960.0, 5: 860.0, 9: 700.0}).analyse()
    ranking = found.ranking[AT_8.key]
    assert [(r.rank, r.trial, r.tie_size) for r in ranking] == [(1, 3, 2), (1, 7, 2), (3, 5, 1), (4, 9, 1)]
    assert [r.result.comparison for r in ranking] == [
        Comparison.FASTER,
        Comparison.FASTER,
        Comparison.FASTER,
        Comparison.SLOWER,
    ]
    assert ARMS[3].cost < ARMS[7].cost
    assert found.to_confirm(AT_8, 1) == (7,)  # what is confirmed is what most likely leads
    assert found.unconfirmed[AT_8.key] == (3, 7)


def test_a_clear_leader_is_not_called_a_tie() -> None:
    found = study({1: 850.0, 2: 980.0, 4: 830.0}).analyse()
    first = found.ranking[AT_8.key][0]
    assert (first.trial, first.tie_size) == (2, 1)


def test_confirmed_arms_lead_their_tie() -> None:
    night = study({3: 960.0, 7: 961.0})
    for trial, speed in ((None, 800.0), (7, 960.0), (7, 961.0), (None, 801.0)):
        night.add(trial, rounds(speed, prompts_hash="fresh"), stage=Stage.CONFIRM, pair=1)
    found = night.analyse()
    assert [(r.rank, r.trial, r.confirmed) for r in found.ranking[AT_8.key]] == [(1, 7, True), (1, 3, False)]
    assert set(found.to_confirm(AT_8, 2)) == {3, 7}  # by the search, so that a resumed confirm stage chooses the same
    assert found.unconfirmed[AT_8.key] == (3,)


def test_one_arm_of_thirty_by_chance_is_not_faster() -> None:
    """The same gain and noise: enough for one comparison, not for one among twelve."""
    few = study({0: 821.0}, noise=0.006, seed=3)
    many = study({0: 821.0, **dict.fromkeys(range(1, 12), 800.0)}, noise=0.006, seed=3)
    alone = few.analyse().find(0, "output_throughput", 8)
    crowd = many.analyse().find(0, "output_throughput", 8)
    assert alone is not None
    assert crowd is not None
    assert crowd.p_adjusted is not None
    assert crowd.gain is not None
    assert crowd.log_se is not None
    raw = abs(np.log1p(crowd.gain.estimate)) / crowd.log_se
    assert raw > 1.5
    assert crowd.comparison is Comparison.TIE
    assert crowd.p_adjusted > 5 * 0.01


def test_a_tie_that_its_own_interval_denies_carries_the_one_that_decided() -> None:
    speeds = {0: 824.0, **dict.fromkeys(range(1, 12), 800.0)}
    found = study(speeds, noise=0.004, seed=3).analyse()
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.comparison is Comparison.TIE
    assert row.gain.low > 0  # by itself it would be faster
    assert row.tie is not None
    assert (row.tie.reason, row.tie.comparisons) == ("correction", 12)
    assert row.tie.low < 0 < row.tie.high
    assert row.tie.low < row.gain.low
    assert row.tie.high > row.gain.high
    (kept,) = [t for t in found.as_dict()["ties"] if t["trial"] == 0 and t["category"] is None]
    assert (kept["reason"], kept["low"]) == ("correction", row.tie.low)
    # one that is called what its interval says needs no reason
    alone = study({0: 848.0}, noise=0.004, seed=3).analyse().find(0, "output_throughput", 8)
    assert alone is not None
    assert alone.comparison is Comparison.FASTER
    assert alone.tie is None
    # what includes 0 by itself needs none either
    assert all(r.tie is None for r in found.gains if r.gain is not None and r.gain.low <= 0 <= r.gain.high)


def test_a_gain_that_is_shown_but_too_small_says_so() -> None:
    found = study({0: 806.4}, noise=0.0).analyse(settings=AnalysisSettings(prior_sd=0.0005, metrics=()))
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.gain.low > 0
    assert row.comparison is Comparison.TIE
    assert row.tie is not None
    assert (row.tie.reason, row.tie.low, row.tie.high) == ("tie_band", -0.01, 0.01)
    assert "because gains within -1.0 % to +1.0 % count as equal" in found.sentences[0]


def test_no_effect_names_nobody() -> None:
    found = study(dict.fromkeys(range(10), 800.0), noise=0.01, seed=11).analyse()
    assert {r.result.comparison for r in found.ranking[AT_8.key]} == {Comparison.TIE}
    assert {r.rank for r in found.ranking[AT_8.key]} == {1}
    assert "nothing is shown to beat the baseline" in found.sentences[0]
