"""Drafter checks: what the first verify steps, the log and config.json say."""

from __future__ import annotations

import pytest

from launchers.engines.probing import (
    ENOUGH_STEPS,
    INEFFECTIVE_BELOW,
    MISMATCHED_BELOW,
    ModelFacts,
    facts_from_log,
    model_facts,
    probe_diagnosis,
    with_config,
)
from sweep.model import ArmConfig, Phase, Verdict

TARGET = ModelFacts("LlamaForCausalLM", vocab_size=128256, max_positions=8192)
EAGLE3_HEAD = ModelFacts("LlamaForCausalLMEagle3", vocab_size=128256, max_positions=2048)
EAGLE_HEAD = ModelFacts("LlamaForCausalLMEagle", vocab_size=128256)


def _arm(algorithm: str, drafter: str | None = "head") -> ArmConfig:
    return ArmConfig(algorithm, drafter, 3, 1, 4)


def test_facts_of_a_config() -> None:
    facts = model_facts(
        {
            "architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 49152,
            "draft_vocab_size": 8192, "max_position_embeddings": 8192,
        }
    )  # fmt: skip
    assert facts == ModelFacts("LlamaForCausalLMEagle3", 49152, 8192)
    assert facts.eagle3
    assert not TARGET.eagle3


def test_facts_of_a_multimodal_and_of_an_empty_config() -> None:
    facts = model_facts({"architectures": ["FooVL"], "text_config": {"vocab_size": 163840}})
    assert facts.vocab_size == 163840
    assert model_facts({}) == ModelFacts("")


def test_the_log_says_what_was_loaded_and_the_config_its_sizes() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32000}
    assert with_config(None, None) is None
    assert with_config(TARGET, None) is TARGET
    assert with_config(None, config) == ModelFacts("LlamaForCausalLM", vocab_size=32000)
    assert with_config(ModelFacts("LlamaForCausalLMEagle3"), config) == ModelFacts(
        "LlamaForCausalLMEagle3", vocab_size=32000
    )


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
