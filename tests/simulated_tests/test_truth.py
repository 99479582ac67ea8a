"""Profiles and their noise-free truth; effects as switches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from launchers.simulated import server as simulated
from launchers.simulated import truth
from sweep.errors import UsageError
from sweep.model import BASELINE, ArmConfig

# Medians of a measured table (tok/s): an 8B-shaped target on one H200 at concurrency 1, 4, 16, 32, 48.
LLAMA8B = {
    None: (214.1, 810.95, 3057.65, 5535.65, 7716.2),
    (3, 1, 4): (304.6, 1126.9, 3359.95, 4945.3, 5719.1),
    (3, 4, 8): (339.45, 1220.85, 3535.35, 4888.6, 5169.95),
    (5, 4, 16): (348.3, 1242.55, 3268.2, 3995.15, 4081.85),
}
LOADS = (1, 4, 16, 32, 48)
# Accept lengths that the recorded drafter served, by (steps, topk, draft tokens).
ACCEPT = {
    (1, 1, 2): 1.60, (2, 1, 3): 1.84, (3, 1, 4): 2.05, (5, 1, 6): 2.18, (1, 4, 4): 1.73, (3, 4, 4): 2.11,
    (2, 4, 8): 2.25, (3, 4, 8): 2.39, (5, 4, 8): 2.63, (3, 4, 16): 2.55, (5, 4, 16): 2.81,
}  # fmt: skip

# The same head on the built-in prompts, answers of at most 96 tokens (benchmarks/data/h200/smollm2.db.gz).
ACCEPT_SHORT = {
    (1, 1, 2): 1.52, (3, 1, 4): 1.90, (5, 1, 6): 1.93, (1, 4, 4): 1.68, (2, 4, 4): 1.87, (2, 4, 8): 2.06,
    (3, 4, 8): 2.23, (5, 4, 8): 2.28, (3, 4, 16): 2.47, (5, 4, 16): 2.48,
}  # fmt: skip


def eagle3(tree: tuple[int, int, int], drafter: str = "my-eagle3", graphs: bool = True) -> ArmConfig:
    return ArmConfig("EAGLE3", drafter, *tree, graphs)


def test_llama8b_is_within_eight_percent_everywhere() -> None:
    profile = truth.load("h200-llama8b")
    errors = [
        abs(truth.throughput(profile, eagle3(tree) if tree else BASELINE, load) / measured - 1.0)
        for tree, row in LLAMA8B.items()
        for load, measured in zip(LOADS, row, strict=True)
    ]
    assert len(errors) == 20
    assert max(errors) <= 0.08
    assert sorted(errors)[10] <= 0.03


@pytest.mark.parametrize("tree", [(3, 1, 4), (3, 4, 8), (5, 4, 16)])
def test_llama8b_crosses_between_16_and_32(tree: tuple[int, int, int]) -> None:
    profile = truth.load("h200-llama8b")
    assert truth.gain(profile, eagle3(tree), 16) > 0 > truth.gain(profile, eagle3(tree), 32)


@pytest.mark.parametrize(("name", "served"), [("h200-smollm2", ACCEPT_SHORT), ("h200-llama8b", ACCEPT)])
def test_accept_lengths(name: str, served: dict[tuple[int, int, int], float]) -> None:
    profile = truth.load(name)
    errors = [abs(truth.accept_length(profile, eagle3(tree)) / value - 1.0) for tree, value in served.items()]
    assert max(errors) <= 0.07
    assert sorted(errors)[5] <= 0.03


def test_smollm2_has_no_clear_winner() -> None:
    profile = truth.load("h200-smollm2")
    assert max(truth.gain(profile, eagle3(tree), 1) for tree in ACCEPT) < 0.05
    plain = truth.throughput(profile, ArmConfig(cuda_graph=False), 1)
    assert plain == pytest.approx(44.5, rel=0.1)


def test_kimi_story() -> None:
    profile = truth.load("kimi-k25-8xgpu")
    row5 = eagle3((3, 4, 5), "k25-custom")
    assert truth.throughput(profile, BASELINE, 1) == pytest.approx(90.0, rel=0.001)
    assert truth.gain(profile, row5, 1) == pytest.approx(-0.086, abs=0.001)
    assert truth.gain(profile, row5, 1, "code") == pytest.approx(0.13, abs=0.002)
    others = [truth.gain(profile, row5, 1, name) for name in truth.main_categories(profile) if name != "code"]
    assert len(others) == 5
    assert max(others) < 0
    assert truth.accept_length(profile, row5) == pytest.approx(2.1, abs=0.01)
    rows = {
        eagle3((3, 4, 16), "k25-custom", graphs=False): 53.2,
        eagle3((3, 4, 16), "aq-medai", graphs=False): 50.5,
        eagle3((3, 4, 16), "k25-custom"): 74.9,
    }
    for config, speed in rows.items():
        assert truth.throughput(profile, config, 1) == pytest.approx(speed, rel=0.002)
    wrong = ArmConfig("EAGLE", "k25-custom", 3, 4, 16, cuda_graph=False)
    assert truth.accept_length(profile, wrong) == pytest.approx(1.0, abs=0.02)
    assert truth.gain(profile, wrong, 1) < -0.5


def test_every_profile_says_how_it_was_made() -> None:
    assert truth.profile_names() == ["h200-llama8b", "h200-smollm2", "kimi-k25-8xgpu", "tiny"]
    for name in truth.profile_names():
        profile = truth.load(name)
        assert profile["name"] == name
        assert len(profile["fitted"]) > 60
        assert not profile["effects"]
        assert not profile["failures"]
    with pytest.raises(UsageError, match="h200-llama8b"):
        truth.load("h300")


def test_rewrites_reach_the_truth() -> None:
    profile = truth.load("tiny")
    asked, effective = eagle3((3, 1, 16)), eagle3((3, 1, 4))
    assert truth.throughput(profile, asked, 1) == truth.throughput(profile, effective, 1)
    with pytest.raises(simulated.ConfigError):
        truth.throughput(profile, ArmConfig("EAGLE3", "my-eagle3", 3), 1)


def test_more_depth_and_width_accept_more() -> None:
    profile = truth.load("h200-llama8b")
    lengths = [truth.accept_length(profile, eagle3(t)) for t in ((1, 1, 2), (2, 1, 3), (3, 1, 4), (5, 1, 6))]
    assert lengths == sorted(lengths)
    lengths = [truth.accept_length(profile, eagle3((3, 4, n))) for n in (4, 8, 16, 32)]
    assert lengths == sorted(lengths)
    assert truth.accept_length(profile, eagle3((3, 4, 37))) <= 4.0


def test_tree_widths_hold_all_nodes() -> None:
    assert simulated.tree_widths(3, 1, 4, 0.7) == [1.0, 1.0, 1.0]
    widths = simulated.tree_widths(3, 4, 16, 0.7)
    assert sum(widths) == pytest.approx(15.0)
    assert widths[0] <= 4.0


def test_expected_steps_without_acceptance_is_one_a_token() -> None:
    assert truth.expected_steps(100, ()) == 100.0
    assert truth.expected_steps(100, (1.0, 1.0)) == pytest.approx(34.0)
    assert truth.expected_steps(0, (0.5,)) == 0.0


def test_queue_lengthens_a_block() -> None:
    profile = truth.load("tiny")
    prompts = [truth.TruePrompt(f"p{i}", "code", 40) for i in range(16)]
    free = truth.simulate_block(profile, BASELINE, prompts, 8, 32, ignore_eos=True)
    tight = truth.simulate_block(profile, BASELINE, prompts, 8, 32, ignore_eos=True, max_running=2)
    assert tight.seconds > 2 * free.seconds
    assert sum(free.output_tokens) == 16 * 32


def effects(spec: object, **more: object) -> simulated.Effects:
    options = {"host": "a", "seed": "1", "scale": 1.0, "state": None, **more}
    return simulated.Effects(spec, **options)  # type: ignore[arg-type] # deliberately loose in a test


def test_effects_are_off_by_default_and_differ_by_seed_and_host(tmp_path: Path) -> None:
    plain = effects({})
    assert plain.step() == 1.0
    assert plain.request() == 1.0
    noisy = [effects({"launch_cv": 0.05}, seed=str(i)).step() for i in range(400)]
    mean = sum(noisy) / len(noisy)
    assert mean == pytest.approx(1.0, abs=0.01)
    assert math.sqrt(sum((x - mean) ** 2 for x in noisy) / len(noisy)) == pytest.approx(0.05, rel=0.15)
    assert effects({"host": {"b": 1.2}}, host="b").step() == 1.2
    assert effects({"host": {"b": 1.2}}).step() == 1.0
    block = effects({"block_cv": 0.05})
    first = block.step()
    block.new_block()
    assert block.step() != first
    tails = effects({"heavy_tail": {"probability": 0.1, "factor": 3.0}})
    assert sum(tails.request() == 3.0 for _ in range(1000)) == pytest.approx(100, abs=40)


def test_drift_goes_on_over_launches_in_simulated_time(tmp_path: Path) -> None:
    (tmp_path / "drift_epoch").write_text(repr(__import__("time").time() - 360.0))
    ramp = effects({"drift": {"kind": "ramp", "per_hour": 0.1}}, state=tmp_path, scale=0.1)
    assert ramp.step() == pytest.approx(math.exp(0.1), rel=0.001)  # 360 real seconds are one simulated hour
    step = {"kind": "step", "at_s": 3000.0, "factor": 1.3}
    assert effects({"drift": step}, state=tmp_path, scale=0.1).step() == 1.3
    assert effects({"drift": step}, state=tmp_path, scale=1.0).step() == 1.0
    saw = effects({"drift": {"kind": "sawtooth", "period_s": 480.0, "depth": 0.2}}, state=tmp_path, scale=1.0)
    assert saw.heat() == pytest.approx(0.75, abs=0.01)
    assert saw.step() == pytest.approx(1.15, abs=0.01)


def test_profiles_are_plain_json() -> None:
    for path in truth.PROFILES.glob("*.json"):
        assert json.loads(path.read_text())["speaks_as"] in ("0.5.17", "0.5.23")
