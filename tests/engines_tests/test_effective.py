"""Asked against effective, on recorded answers: exact, coerced by a known rewrite, or a mismatch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launchers.engines.effective import effective, pin_conflicts, read_server_info
from sweep.model import ArmConfig, Drafter

FOLDER = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "http"
DRAFTERS = {"trained": Drafter("trained", "/models/drafter/"), "other": Drafter("other", "/models/other")}


def _info(name: str) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((FOLDER / f"{name}.server_info.json").read_text())
    return info


def _changed(name: str, **changes: Any) -> dict[str, Any]:
    """The recording with values changed in both places where a server reports them."""
    info = _info(name)
    for place in (info, *info["internal_states"]):
        place.update(changes)
    return info


TREE = ArmConfig("EAGLE3", "trained", 3, 4, 8)


@pytest.mark.parametrize(
    ("recording", "arm"),
    [
        ("baseline", ArmConfig()),
        ("eagle3_steps3_topk1", ArmConfig("EAGLE3", "trained", 3, 1, 4)),
        ("eagle3_steps3_topk4_draft8", TREE),
        ("eagle3_drafter_as_EAGLE", ArmConfig("EAGLE", "trained", 3, 1, 4)),
    ],
)
def test_exact(recording: str, arm: ArmConfig) -> None:
    found = effective(_info(recording), arm, DRAFTERS, {})
    assert found.status == "exact"
    assert found.config == arm
    assert found.version == "0.5.17"
    assert found.pins["attention_backend"] == "triton"
    assert found.pins["page_size"] == 1
    assert found.pins["max_running_requests"] == 48
    assert found.pins["cuda_graph_bs_decode"] == [1, 2, 4, 8, 16, 24, 32, 48]


def test_topk_1_rewrites_the_draft_tokens() -> None:
    found = effective(_info("draft_tokens_adjusted_topk1"), ArmConfig("EAGLE3", "trained", 3, 1, 8), DRAFTERS, {})
    assert found.status == "coerced"
    (difference,) = found.differences
    assert (difference.key, difference.asked, difference.effective) == ("num_draft_tokens", 8, 4)
    assert difference.rule == "topk1_draft_tokens"
    assert found.config.num_draft_tokens == 4


def test_the_engines_own_choice_is_read_and_is_no_difference() -> None:
    info = _changed(
        "eagle3_steps3_topk4_draft8",
        speculative_num_steps=5, speculative_eagle_topk=4, speculative_num_draft_tokens=8,
    )  # fmt: skip
    found = effective(info, ArmConfig("EAGLE3", "trained"), DRAFTERS, {})
    assert found.status == "exact"
    assert found.config == ArmConfig("EAGLE3", "trained", 5, 4, 8)


@pytest.mark.parametrize(
    ("changes", "key", "effective_value"),
    [
        ({"speculative_num_draft_tokens": 16}, "num_draft_tokens", 16),
        ({"speculative_num_steps": 2}, "num_steps", 2),
        ({"speculative_eagle_topk": None}, "topk", None),
        ({"speculative_algorithm": "EAGLE"}, "algorithm", "EAGLE"),
        ({"speculative_draft_model_path": "/models/other"}, "draft_model", "other"),
        ({"speculative_draft_model_path": "/elsewhere"}, "draft_model", "/elsewhere"),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, "cuda_graph", False),
    ],
)
def test_an_unexplained_difference_is_a_mismatch(changes: dict[str, Any], key: str, effective_value: Any) -> None:
    found = effective(_changed("eagle3_steps3_topk4_draft8", **changes), TREE, DRAFTERS, {})
    assert found.status == "mismatch"
    (difference,) = [d for d in found.differences if d.rule is None]
    assert (difference.key, difference.effective) == (key, effective_value)


def test_speculation_that_was_switched_off_is_a_mismatch() -> None:
    found = effective(_info("baseline"), TREE, DRAFTERS, {})
    assert found.status == "mismatch"
    assert found.config == ArmConfig()


def test_speculation_nobody_asked_for_is_a_mismatch() -> None:
    found = effective(_info("eagle3_steps3_topk1"), ArmConfig(), DRAFTERS, {})
    assert found.status == "mismatch"


def test_nothing_is_invented_where_the_server_says_nothing() -> None:
    found = effective({"version": "0.5.17"}, TREE, DRAFTERS, {})
    assert found.status == "mismatch"
    assert found.config == ArmConfig()
    assert found.pins == {}


@pytest.mark.parametrize(
    ("arm", "changes", "rules"),
    [
        (ArmConfig("NEXTN", "trained", 3, 4, 8), {"speculative_algorithm": "EAGLE"}, {"algorithm_alias"}),
        (
            ArmConfig("NGRAM", None, 3, 4, 8),
            {
                "speculative_algorithm": "NGRAM", "speculative_draft_model_path": None,
                "speculative_eagle_topk": 10, "speculative_num_steps": 0,
            },
            {"ngram_breadth"},
        ),
        (
            ArmConfig("DFLASH", "trained", 3, 4, 8),
            {"speculative_algorithm": "DFLASH", "speculative_eagle_topk": 1, "speculative_num_steps": 1},
            {"chain_only"},
        ),
    ],
)  # fmt: skip
def test_known_rewrites(arm: ArmConfig, changes: dict[str, Any], rules: set[str]) -> None:
    found = effective(_changed("eagle3_steps3_topk4_draft8", **changes), arm, DRAFTERS, {})
    assert found.status == "coerced"
    assert {d.rule for d in found.differences} == rules


def test_a_target_that_drafts_with_its_own_layers_needs_no_drafter() -> None:
    info = _changed("eagle3_steps3_topk1", speculative_algorithm="EAGLE")
    info = {**info, "speculative_draft_model_path": info["model_path"]}
    info["internal_states"][0]["speculative_draft_model_path"] = info["model_path"]
    found = effective(info, ArmConfig("NEXTN", None, 3, 1, 4), DRAFTERS, {})
    assert found.status == "coerced"
    assert found.config == ArmConfig("EAGLE", None, 3, 1, 4)


def test_graphs_off_is_read_back() -> None:
    info = _changed("baseline", cuda_graph_config={"decode": {"backend": "disabled", "bs": [1]}})
    assert effective(info, ArmConfig(cuda_graph=False), {}, {}).status == "exact"
    old = {k: v for k, v in _info("baseline").items() if k not in ("cuda_graph_config", "internal_states")}
    assert effective({**old, "disable_cuda_graph": True}, ArmConfig(cuda_graph=False), {}, {}).status == "exact"


def test_the_schedulers_own_state_overrides_the_start_up_value() -> None:
    info = _info("eagle3_steps3_topk4_draft8")
    info["internal_states"][0]["speculative_accept_threshold_single"] = 0.5
    info["internal_states"][0]["max_running_requests"] = 7
    arm = replace(TREE, extra=(("speculative-accept-threshold-single", 0.5),))
    found = effective(info, arm, DRAFTERS, {})
    assert found.status == "exact"
    assert found.pins["max_running_requests"] == 7


def test_adaptive_speculation_keeps_its_start_up_steps() -> None:
    info = _changed("eagle3_steps3_topk1", speculative_adaptive=True)
    info["internal_states"][0]["speculative_num_steps"] = 1
    arm = ArmConfig("EAGLE3", "trained", 3, 1, 4, extra=(("speculative-adaptive", True),))
    assert effective(info, arm, DRAFTERS, {}).status == "exact"
    refused = effective(_changed("eagle3_steps3_topk1", speculative_adaptive=False), arm, DRAFTERS, {})
    assert [d.rule for d in refused.differences] == ["adaptive_refused"]


def test_extra_axes_are_read_back_by_their_key() -> None:
    arm = replace(TREE, extra=(("speculative-attention-mode", "prefill"), ("stream-interval", 1)))
    assert effective(_info("eagle3_steps3_topk4_draft8"), arm, DRAFTERS, {}).config == arm
    other = replace(TREE, extra=(("speculative-attention-mode", "decode"),))
    found = effective(_info("eagle3_steps3_topk4_draft8"), other, DRAFTERS, {})
    assert found.status == "mismatch"
    assert dict(found.config.extra) == {"speculative-attention-mode": "prefill"}


def test_pins_against_what_was_given() -> None:
    given = {"page_size": 1, "tp": 1, "cuda-graph-bs": (1, 2, 4, 8, 16, 24, 32, 48), "mem-fraction-static": 0.3}
    assert effective(_info("baseline"), ArmConfig(), {}, given).status == "exact"
    found = effective(_info("baseline"), ArmConfig(), {}, {**given, "max-running-requests": 64})
    (difference,) = found.differences
    assert (difference.key, difference.asked, difference.effective) == ("max-running-requests", 64, 48)
    assert found.status == "mismatch"
    # What is an axis of the arm is judged there, once.
    arm = ArmConfig(extra=(("max-running-requests", 48),))
    assert effective(_info("baseline"), arm, {}, {**given, "max-running-requests": 64}).status == "exact"


def test_arms_with_other_pins_may_not_be_compared() -> None:
    baseline = effective(_info("baseline"), ArmConfig(), {}, {})
    candidate = effective(_info("eagle3_steps3_topk4_draft8"), TREE, DRAFTERS, {})
    assert pin_conflicts(baseline, candidate) == ()
    other = effective(_changed("eagle3_steps3_topk4_draft8", attention_backend="fa3"), TREE, DRAFTERS, {})
    assert [d.key for d in pin_conflicts(baseline, other)] == ["attention_backend"]
    axis = replace(TREE, extra=(("attention-backend", "fa3"),))
    meant = effective(_changed("eagle3_steps3_topk4_draft8", attention_backend="fa3"), axis, DRAFTERS, {})
    assert pin_conflicts(baseline, meant) == ()


def test_answers_that_are_none() -> None:
    def http(answers: dict[str, tuple[int, bytes]]) -> Any:
        return lambda method, path, json=None: answers.get(path, (404, b"no"))

    assert read_server_info(http({"/server_info": (200, b'{"a": 1}')})) == {"a": 1}
    assert read_server_info(http({"/get_server_info": (200, b'{"a": 2}')})) == {"a": 2}
    for answer in ((500, b"boom"), (200, b"<html>"), (200, b"[1]"), (200, b'{"a": 1')):
        with pytest.raises(RuntimeError, match="/server_info answered"):
            read_server_info(http({"/server_info": answer}))
