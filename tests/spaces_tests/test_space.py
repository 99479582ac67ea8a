"""Enumeration: distinct canonical configurations, duplicates, and why the rest cannot be served.

A little over 300 lines on purpose: one function is tested, case by case.
"""

from __future__ import annotations

from collections import Counter

import pytest

from search_spaces import rules
from search_spaces.rules import Infeasible
from search_spaces.space import SearchSpace
from sweep.config import StudySpec, load_space, load_text, shipped, simulated
from sweep.errors import ConfigError
from sweep.model import ArmConfig

HEAD = "name: s\nmodel: {path: /m}\n"


def spec_of(space: str, rest: str = "") -> StudySpec:
    return load_text(f"{HEAD}space: {{{space}}}\n{rest}\n")


def space_of(space: str, rest: str = "", **options: str) -> SearchSpace:
    return SearchSpace.from_spec(spec_of(space, rest), **options)  # type: ignore[arg-type]  # keywords of a test


def test_topk_1_fixes_the_draft_tokens_and_duplicates_collapse() -> None:
    space = space_of(
        "algorithm: [EAGLE3], draft_model: [/d/a], num_steps: [1, 3], topk: [1], num_draft_tokens: [4, 8, null]"
    )
    assert space.candidates == (ArmConfig("EAGLE3", "a", 1, 1, 2), ArmConfig("EAGLE3", "a", 3, 1, 4))
    assert space.duplicates == 4
    assert space.infeasible == ()


def test_counts_add_up_and_every_infeasible_one_has_a_reason() -> None:
    space = space_of(
        "algorithm: [EAGLE3, NGRAM], draft_model: [/d/a, /d/b], num_steps: [1, 2, null], topk: [1, 4], "
        "num_draft_tokens: [4, 16], cuda_graph: [true, false]"
    )
    assert len(space.candidates) + space.duplicates + len(space.infeasible) == 2 * 2 * 3 * 2 * 2 * 2
    assert all(why.reason and why.rule for _, why in space.infeasible)
    # per drafter and graph setting: 1 step x topk 4 x 16 tokens is too large; without steps: 2 x 2 incomplete
    assert Counter(why.rule for _, why in space.infeasible) == {"oversize_tree": 4, "incomplete_triple": 16}
    asked, why = next(item for item in space.infeasible if item[1].rule == "oversize_tree")
    assert (asked.num_steps, asked.topk, asked.num_draft_tokens) == (1, 4, 16)
    assert "at most 5" in why.reason


@pytest.mark.parametrize(("steps", "topk", "largest"), [(1, 4, 5), (3, 2, 11), (2, 4, 21), (5, 8, 265), (3, 1, 4)])
def test_the_largest_tree_is_served_and_one_more_is_not(steps: int, topk: int, largest: int) -> None:
    assert rules.max_draft_tokens(steps, topk) == largest
    assert isinstance(rules.resolve("EAGLE3", steps, topk, largest), rules.Resolved)
    answer = rules.resolve("EAGLE3", steps, topk, largest + 1)
    if topk == 1:  # a chain is rewritten, never refused
        assert isinstance(answer, rules.Resolved)
        assert answer.rewrites[0] == "topk1_draft_tokens"
    else:
        assert isinstance(answer, Infeasible)
        assert answer.rule == "oversize_tree"


@pytest.mark.parametrize(("steps", "topk"), [(2, 2), (3, 4), (5, 4)])
def test_a_tree_has_room_for_one_path_to_its_deepest_step(steps: int, topk: int) -> None:
    """5/4/4 killed SGLang 0.5.17's scheduler on its first request; 3/4/4 and 2/4/4 were served."""
    assert isinstance(rules.resolve("EAGLE3", steps, topk, steps + 1), rules.Resolved)
    answer = rules.resolve("EAGLE3", steps, topk, steps)
    assert isinstance(answer, Infeasible)
    assert answer.rule == "undersize_tree"
    assert f"at least {steps + 1}" in answer.reason


def test_no_tree_is_above_the_kernels_cap() -> None:
    assert isinstance(rules.resolve("EAGLE3", 20, 8, 1024), rules.Resolved)
    answer = rules.resolve("EAGLE3", 20, 8, 1025)
    assert isinstance(answer, Infeasible)
    assert "1024" in answer.reason
    assert isinstance(rules.resolve("EAGLE3", 1023, 1), rules.Resolved)
    assert isinstance(rules.resolve("EAGLE3", 1024, 1), Infeasible)


def test_ngram_takes_no_drafter_and_derives_steps_and_topk() -> None:
    space = space_of(
        "algorithm: [ngram], draft_model: [/d/a, /d/b], num_steps: [1, 2], topk: [1, 4], num_draft_tokens: [8, 12]"
    )
    assert space.candidates == (ArmConfig("NGRAM", None, 0, 10, 8), ArmConfig("NGRAM", None, 1, 10, 12))
    assert space.duplicates == 14
    narrow = space_of("algorithm: [NGRAM], num_draft_tokens: [8], args: {speculative-ngram-max-bfs-breadth: [4]}")
    assert narrow.candidates[0].topk == 4
    assert narrow.candidates[0].num_steps == 2


def test_ngram_flags_do_not_multiply_other_algorithms() -> None:
    space = space_of(
        "algorithm: [EAGLE, NGRAM], num_steps: [3], topk: [1], num_draft_tokens: [4], "
        "args: {speculative-ngram-max-bfs-breadth: [1, 10]}"
    )
    assert Counter(arm.algorithm for arm in space.candidates) == {"EAGLE": 1, "NGRAM": 2}


def test_names_are_case_insensitive_and_nextn_is_eagle() -> None:
    space = space_of("algorithm: [NEXTN, eagle, Eagle], num_steps: [3], topk: [1], num_draft_tokens: [4]")
    assert space.candidates == (ArmConfig("EAGLE", None, 3, 1, 4),)
    assert space.duplicates == 2


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE", "DFLASH"])
def test_a_missing_draft_model_is_said(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"{algorithm} needs a draft model"):
        space_of(f"algorithm: [{algorithm}], num_steps: [3], topk: [1], num_draft_tokens: [4]")


@pytest.mark.parametrize(
    ("args", "topk", "rule"),
    [
        ("page-size: 16, attention-backend: torch_native", 4, "backend_cannot_draft"),
        ("page-size: 16, attention-backend: fa4", 4, "paged_tree"),
        ("page-size: 16, attention-backend: fa4", 1, None),
        ("page-size: 16, attention-backend: triton", 4, None),
        ("page-size: 1, attention-backend: fa4", 4, None),
        ("attention-backend: flashmla", 4, "backend_chains_only"),
        ("attention-backend: flashmla", 1, None),
        ("attention-backend: triton, decode-attention-backend: trtllm_mha", 4, "backend_chains_only"),
        ("attention-backend: triton, prefill-attention-backend: trtllm_mha", 1, None),
        ("attention-backend: flex_attention", 1, "backend_no_speculation"),
        ("page-size: 16", 4, None),  # SGLang's own choice takes it
    ],
)
def test_backends_and_pages(args: str, topk: int, rule: str | None) -> None:
    spec = spec_of(
        f"algorithm: [EAGLE], num_steps: [3], topk: [{topk}], num_draft_tokens: [4]", f"server: {{args: {{{args}}}}}"
    )
    space = SearchSpace.from_spec(spec, allow_empty=True)
    assert [why.rule for _, why in space.infeasible] == ([rule] if rule else [])


def test_flashinfer_drafts_chains_only_for_multi_head_latent_attention() -> None:
    wide = "algorithm: [EAGLE], num_steps: [3], topk: [4], num_draft_tokens: [8]"
    pins = "server: {args: {attention-backend: flashinfer}}"
    assert space_of(wide, pins, model_arch="LlamaForCausalLM").candidates
    with pytest.raises(ConfigError, match="takes topk 1 only for this model's attention"):
        space_of(wide, pins, model_arch="DeepseekV3ForCausalLM")


def test_ngram_pages_need_flashinfer() -> None:
    for backend, served in (("triton", False), ("flashinfer", True)):
        pins = f"server: {{args: {{page-size: 16, attention-backend: {backend}}}}}"
        spec = spec_of("algorithm: [NGRAM], num_draft_tokens: [8]", pins)
        assert bool(SearchSpace.from_spec(spec, allow_empty=True).candidates) == served


def test_an_axis_of_more_gpus_than_a_host_has_is_infeasible() -> None:
    spec = spec_of(
        "algorithm: [EAGLE], num_steps: [3], topk: [1], num_draft_tokens: [4], args: {tp-size: [1, 2]}",
        "hosts: [{ssh: a, gpus: 2}, {ssh: b, gpus: 2}]",
    )
    assert len(SearchSpace.from_spec(spec).candidates) == 2
    small = spec.model_copy(update={"hosts": (spec.hosts[0].model_copy(update={"gpus": (0,)}),)})
    space = SearchSpace.from_spec(small)
    assert len(space.candidates) == 1
    assert space.infeasible[0][1].reason == "tp-size x pp-size takes 2 GPUs and a host has 1"


def test_block_algorithms_force_steps_and_topk() -> None:
    space = space_of(
        "algorithm: [DFLASH], draft_model: [/d/a], num_steps: [1, 3], topk: [1, 4], num_draft_tokens: [8, 16]"
    )
    assert space.candidates == (ArmConfig("DFLASH", "a", 1, 1, 8), ArmConfig("DFLASH", "a", 1, 1, 16))
    assert space.duplicates == 6


def test_versions() -> None:
    assert rules.table("0.5.17").version == "0.5.17"
    assert rules.table("0.5.19.post1").version == "0.5.17"
    assert rules.table("0.6.0").version == "0.5.23"
    assert rules.table("0.4.9").version == "0.5.17"
    assert rules.table().version == "0.5.23"
    old, new = (rules.resolve("UNO", 3, 1, 4, version=version) for version in ("0.5.17", "0.5.23"))
    assert isinstance(old, Infeasible)
    assert isinstance(new, Infeasible)
    assert (old.rule, new.rule) == ("unknown_algorithm", "unsupported_algorithm")


def test_the_automatic_choice_depends_on_the_architecture() -> None:
    def numbers(algorithm: str, arch: str | None) -> tuple[int | None, int | None, int | None]:
        answer = rules.resolve(algorithm, model_arch=arch)
        assert isinstance(answer, rules.Resolved)
        return answer.num_steps, answer.topk, answer.num_draft_tokens

    assert numbers("EAGLE3", "LlamaForCausalLM") == (5, 4, 8)
    assert numbers("EAGLE3", "Qwen3ForCausalLM") == (3, 1, 4)
    assert numbers("STANDALONE", "LlamaForCausalLM") == (3, 1, 4)
    assert numbers("EAGLE3", None) == (None, None, None)


def test_the_automatic_choice_is_no_candidate() -> None:
    with pytest.raises(ConfigError, match="the engine's own choice is a reference"):
        space_of("algorithm: [EAGLE3], draft_model: [/d/a]")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "sm90"),
        ("NVIDIA H100 80GB HBM3", "sm90"),
        ("NVIDIA A100-SXM4-80GB", "sm80"),
        ("NVIDIA B200", "sm100"),
        ("NVIDIA L40S", "sm89"),
        ("NVIDIA GeForce RTX 4090", "sm89"),
        ("NVIDIA GeForce RTX 5090", "sm120"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm120"),
        ("NVIDIA RTX 6000 Ada Generation", "sm89"),
        ("Tesla T4", None),
        (None, None),
    ],
)
def test_gpu_kinds(name: str | None, kind: str | None) -> None:
    assert rules.gpu_kind(name) == kind


def test_canonical_is_what_enumeration_gives() -> None:
    space = space_of(
        "algorithm: [EAGLE3], draft_model: [/d/a], num_steps: [1, 3], topk: [1, 4], num_draft_tokens: [8], "
        "args: {speculative-attention-mode: [prefill, decode]}"
    )
    chosen = {name: values[-1] for name, values in space.axes.items()}
    found = space.canonical(chosen)
    assert found == ArmConfig("EAGLE3", "a", 3, 4, 8, True, (("speculative-attention-mode", "decode"),))
    assert found in space.candidates
    assert isinstance(space.canonical({**chosen, "num_steps": 1}), Infeasible)


def test_known_good_comes_in_its_own_order_and_must_be_servable() -> None:
    axes = "algorithm: [EAGLE3], draft_model: [/d/a], num_steps: [1, 3], topk: [1, 4], num_draft_tokens: [8]"
    known = "known_good: [{algorithm: EAGLE3, num_steps: 3, topk: 4}, {algorithm: EAGLE3, num_steps: 1, topk: 1}]"
    space = space_of(axes, known)
    assert space.known_good == (ArmConfig("EAGLE3", "a", 3, 4, 8), ArmConfig("EAGLE3", "a", 1, 1, 2))
    with pytest.raises(ConfigError, match="known_good: EAGLE3 a 1/4/8 cannot be served: 8 draft tokens are more"):
        space_of(axes, "known_good: [{algorithm: EAGLE3, num_steps: 1, topk: 4}]")


def test_the_order_is_stable_and_the_fingerprint_follows_the_space() -> None:
    axes = "algorithm: [EAGLE], num_steps: [1, 3], topk: [1, 4], num_draft_tokens: [4, 5]"
    assert space_of(axes).candidates == space_of(axes).candidates
    assert space_of(axes).fingerprint == space_of(axes).fingerprint
    assert space_of(axes).fingerprint != space_of(axes.replace("4, 5", "4")).fingerprint
    assert space_of(axes).fingerprint != space_of(axes, "server: {args: {page-size: 16}}").fingerprint


def test_a_hundred_thousand_combinations_are_all_accounted_for() -> None:
    spec = spec_of(
        "algorithm: [EAGLE3], draft_model: [/d/a, /d/b], num_steps: {low: 1, high: 12}, topk: {low: 1, high: 8}, "
        "num_draft_tokens: {low: 2, high: 64}, cuda_graph: [true, false], "
        "args: {attention-backend: [triton, fa3, flashinfer, aiter]}"
    )
    space = SearchSpace.from_spec(spec)
    assert len(space.candidates) + space.duplicates + len(space.infeasible) == 2 * 12 * 8 * 63 * 2 * 4
    assert len(set(space.candidates)) == len(space.candidates)


def test_a_space_that_is_too_large_is_refused() -> None:
    axes = ", ".join(f"{name}: {{low: 2, high: 200}}" for name in ("num_steps", "topk", "num_draft_tokens"))
    with pytest.raises(ConfigError, match="the space has 7880599 combinations"):
        space_of(f"algorithm: [EAGLE], {axes}")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_space_loads_simulates_and_has_candidates(name: str) -> None:
    spec = load_space(name)
    for version in ("0.5.17", "0.5.23"):
        space = SearchSpace.from_spec(spec, version)
        assert space.candidates
        assert set(space.known_good) <= set(space.candidates)
    twin = simulated(spec)
    assert twin.budget.trials is not None
    assert twin.budget.trials <= 8


def test_the_story_is_told_in_order() -> None:
    spec = load_space("kimi_k25_eagle3")
    assert spec.budget.trials == 5
    assert spec.gpus_per_arm == 8
    assert [arm.label() for arm in SearchSpace.from_spec(spec).known_good] == [
        "EAGLE k25-custom 3/4/16, no graphs",
        "EAGLE3 k25-custom 3/4/16, no graphs",
        "EAGLE3 aq-medai 3/4/16, no graphs",
        "EAGLE3 k25-custom 3/4/16",
        "EAGLE3 k25-custom 3/4/5",
    ]


def test_the_smoke_space_is_smaller_than_its_budget() -> None:
    spec = load_space("smoke")
    assert spec.budget.trials is not None
    assert len(SearchSpace.from_spec(spec).candidates) < spec.budget.trials
    assert len(spec.hosts) == 1


def test_the_real_gpu_space_has_enough_arms() -> None:
    spec = load_space("h200_smollm2_eagle3")
    space = SearchSpace.from_spec(spec, "0.5.17", "sm90", "LlamaForCausalLM")
    assert len(space.candidates) >= 12
    assert spec.workload.concurrency == (1, 8, 32)
    assert {arm.cuda_graph for arm in space.known_good} == {True, False}
