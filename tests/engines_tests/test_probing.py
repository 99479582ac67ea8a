"""Drafter checks: from config.json before a launch, from the first verify steps after it."""

from __future__ import annotations

import pytest

from launchers.engines.probing import (
    ENOUGH_STEPS,
    INEFFECTIVE_BELOW,
    MISMATCHED_BELOW,
    ModelFacts,
    facts_from_log,
    model_facts,
    preflight,
    probe_diagnosis,
)
from sweep.model import ArmConfig, Phase, Verdict

TARGET = ModelFacts("LlamaForCausalLM", hidden_size=4096, vocab_size=128256, max_positions=8192)
EAGLE3_HEAD = ModelFacts("LlamaForCausalLMEagle3", hidden_size=4096, vocab_size=128256, max_positions=2048)
EAGLE_HEAD = ModelFacts("LlamaForCausalLMEagle", hidden_size=4096, vocab_size=128256)


def _arm(algorithm: str, drafter: str | None = "head") -> ArmConfig:
    return ArmConfig(algorithm, drafter, 3, 1, 4)


def test_facts_of_a_config() -> None:
    facts = model_facts(
        {
            "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 576, "vocab_size": 49152,
            "draft_vocab_size": 8192, "max_position_embeddings": 8192,
        }
    )  # fmt: skip
    assert facts == ModelFacts("LlamaForCausalLMEagle3", 576, None, 49152, 8192, 8192)
    assert facts.eagle3
    assert facts.eagle
    assert not TARGET.eagle3
    assert not TARGET.eagle


def test_facts_of_a_multimodal_and_of_an_empty_config() -> None:
    facts = model_facts({"architectures": ["FooVL"], "text_config": {"hidden_size": 7168, "vocab_size": 163840}})
    assert (facts.hidden_size, facts.vocab_size) == (7168, 163840)
    assert model_facts({}) == ModelFacts("")


@pytest.mark.parametrize(
    ("algorithm", "target", "drafter", "verdict", "reason", "advice"),
    [
        ("EAGLE", TARGET, EAGLE3_HEAD, Verdict.DRAFTER_INEFFECTIVE, "algorithm_mismatch", "use EAGLE3"),
        ("eagle", None, EAGLE3_HEAD, Verdict.DRAFTER_INEFFECTIVE, "algorithm_mismatch", "use EAGLE3"),
        ("EAGLE3", TARGET, EAGLE_HEAD, Verdict.LAUNCH_CONFIG_ERROR, "algorithm_mismatch", "Use EAGLE."),
        ("EAGLE3", TARGET, TARGET, Verdict.LAUNCH_CONFIG_ERROR, "algorithm_mismatch", "STANDALONE"),
        (
            "STANDALONE", TARGET, ModelFacts("LlamaForCausalLM", vocab_size=32000), Verdict.LAUNCH_CONFIG_ERROR,
            "draft_target_mismatch", "one vocabulary",
        ),
        (
            "EAGLE3", TARGET, ModelFacts("LlamaForCausalLMEagle3", hidden_size=5120), Verdict.LAUNCH_CONFIG_ERROR,
            "draft_target_mismatch", "another target",
        ),
    ],
)  # fmt: skip
def test_preflight_refuses(
    algorithm: str, target: ModelFacts | None, drafter: ModelFacts, verdict: Verdict, reason: str, advice: str
) -> None:
    found = preflight(_arm(algorithm), target, drafter)
    assert found is not None
    assert (found.verdict, found.reason, found.phase) == (verdict, reason, Phase.CONFIG)
    assert advice in found.advice
    assert found.evidence


@pytest.mark.parametrize(
    ("arm", "target", "drafter"),
    [
        (_arm("EAGLE3"), TARGET, EAGLE3_HEAD),
        (_arm("EAGLE"), TARGET, EAGLE_HEAD),
        (_arm("STANDALONE"), TARGET, ModelFacts("LlamaForCausalLM", vocab_size=128256)),
        (
            _arm("EAGLE3"), TARGET,
            ModelFacts("LlamaForCausalLMEagle3", hidden_size=6144, target_hidden_size=4096, vocab_size=128256),
        ),
        (_arm("EAGLE3"), None, None),  # nothing could be read: nothing is claimed
        (_arm("NEXTN", None), ModelFacts("DeepseekV3ForCausalLM"), None),
        (_arm("NGRAM", None), TARGET, None),
        (ArmConfig(), TARGET, None),
    ],
)  # fmt: skip
def test_preflight_lets_pass(arm: ArmConfig, target: ModelFacts | None, drafter: ModelFacts | None) -> None:
    assert preflight(arm, target, drafter) is None


def test_a_missing_drafter_is_refused_unless_the_target_brings_its_own_layers() -> None:
    found = preflight(_arm("EAGLE3", None), TARGET, None)
    assert found is not None
    assert (found.verdict, found.reason) == (Verdict.LAUNCH_CONFIG_ERROR, "draft_path_missing")
    assert preflight(_arm("EAGLE", None), ModelFacts("Glm4MoeForCausalLM"), None) is None


@pytest.mark.parametrize("accept_length", [1.0, 1.005, 1.037, INEFFECTIVE_BELOW - 0.001])
def test_a_useless_drafter(accept_length: float) -> None:
    found = probe_diagnosis(accept_length, ENOUGH_STEPS, _arm("EAGLE3"), EAGLE3_HEAD, TARGET)
    assert found is not None
    assert (found.verdict, found.phase, found.reason) == (Verdict.DRAFTER_INEFFECTIVE, Phase.PROBE, "never_accepted")
    assert f"{accept_length:.3f}" in found.evidence
    assert "window of 2048 tokens" in found.advice


@pytest.mark.parametrize(("accept_length", "steps"), [(1.05, 50), (2.1, 500), (1.0, ENOUGH_STEPS - 1), (1.2, 10)])
def test_a_drafter_that_works_or_too_little_seen(accept_length: float, steps: int) -> None:
    assert probe_diagnosis(accept_length, steps, _arm("EAGLE3"), EAGLE3_HEAD, TARGET) is None


def test_a_head_of_the_wrong_kind_that_works_all_the_same_is_left_alone() -> None:
    assert probe_diagnosis(MISMATCHED_BELOW, 60, _arm("EAGLE"), EAGLE3_HEAD, TARGET) is None
    assert probe_diagnosis(1.05, 60, _arm("EAGLE"), EAGLE_HEAD, TARGET) is None


@pytest.mark.parametrize("accept_length", [1.0, 1.05, MISMATCHED_BELOW - 0.001])
def test_the_wrong_algorithm_is_said_in_words(accept_length: float) -> None:
    found = probe_diagnosis(accept_length, 60, _arm("EAGLE"), EAGLE3_HEAD, TARGET)
    assert found is not None
    assert found.verdict is Verdict.DRAFTER_INEFFECTIVE
    assert found.reason == "algorithm_mismatch"
    assert "EAGLE3 head" in found.advice
    assert "served as EAGLE: use EAGLE3" in found.advice


@pytest.mark.parametrize(
    ("arm", "drafter", "reason", "words"),
    [
        (_arm("EAGLE"), TARGET, "target_as_drafter", "its own drafter"),
        (
            _arm("EAGLE3"),
            ModelFacts("LlamaForCausalLMEagle3", vocab_size=32000),
            "draft_target_mismatch",
            "vocabularies",
        ),
        (_arm("NGRAM", None), None, "no_repetition", "repeated text"),
        (_arm("EAGLE"), None, "never_accepted", "an EAGLE3 head needs EAGLE3"),
    ],
)
def test_other_causes(arm: ArmConfig, drafter: ModelFacts | None, reason: str, words: str) -> None:
    found = probe_diagnosis(1.0, 300, arm, drafter, TARGET)
    assert found is not None
    assert (found.verdict, found.reason) == (Verdict.DRAFTER_INEFFECTIVE, reason)
    assert words in found.advice


def test_no_counters_is_not_an_accept_length_of_one() -> None:
    for steps in (0, 300):
        found = probe_diagnosis(None, steps, _arm("EAGLE3"), EAGLE3_HEAD, TARGET)
        assert found is not None
        assert (found.verdict, found.reason) == (Verdict.MEASUREMENT_INVALID, "no_accept_counters")
    assert probe_diagnosis(None, 0, ArmConfig()) is None


def test_facts_from_the_servers_log() -> None:
    lines = [
        "[2026-01-01 00:00:00] Load weight end. elapsed=0.25 s, type=LlamaForCausalLM, avail mem=126.88 GB",
        "[2026-01-01 00:00:00 TP0] Load weight end. elapsed=0.03 s, type=LlamaForCausalLMEagle3, avail mem=125.14 GB",
    ]
    target, drafter = facts_from_log(lines)
    assert target == ModelFacts("LlamaForCausalLM")
    assert drafter == ModelFacts("LlamaForCausalLMEagle3")
    assert facts_from_log(lines[:1]) == (target, None)
    assert facts_from_log([]) == (None, None)
