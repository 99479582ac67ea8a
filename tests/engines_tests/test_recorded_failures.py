"""Eighteen recorded ends of a real SGLang 0.5.17: every one diagnosed, none taken for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launchers.engines.sglang import SglangEngine
from sweep.model import ArmConfig, Phase, Retry, Verdict
from sweep.seams import LogState

FOLDER = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "failures"
OUTCOMES: dict[str, dict[str, Any]] = json.loads((FOLDER / "outcomes.json").read_text())


def _lines(case: str) -> list[str]:
    return (FOLDER / f"{case}.log").read_text(encoding="utf-8").split("\n")


def _state(lines: list[str]) -> LogState:
    feed, state = SglangEngine().log_state(), LogState()
    for line in lines:
        state = feed(line)
    return state


def _arm(argv: list[str]) -> ArmConfig:
    def value(flag: str) -> str | None:
        return argv[argv.index(flag) + 1] if flag in argv else None

    def number(flag: str) -> int | None:
        text = value(flag)
        return int(text) if text else None

    return ArmConfig(
        value("--speculative-algorithm"),
        "drafter" if value("--speculative-draft-model-path") else None,
        number("--speculative-num-steps"),
        number("--speculative-eagle-topk"),
        number("--speculative-num-draft-tokens"),
    )


# case -> verdict, phase, reason, retry, words of the evidence, words of the advice
EXPECTED: dict[str, tuple[Verdict, Phase, str, Retry, str, str]] = {
    "bad_flag": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "bad_flag", Retry.NEVER,
        "unrecognized arguments: --speculative-num-stepz", "nearest: --speculative-num-steps",
    ),
    "bad_algorithm": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "unknown_algorithm", Retry.NEVER,
        "Unknown speculative algorithm name: EAGEL3", "nearest: EAGLE3",
    ),
    "only_steps_given": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "partial_tree", Retry.NEVER,
        "TypeError: '>' not supported", "num_steps, topk and num_draft_tokens together",
    ),
    "topk4_page16_torch_native": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "topk_refused", Retry.NEVER,
        "speculative_eagle_topk > 1 with page_size > 1", "page-size 1",
    ),
    "model_path_missing": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "model_not_found", Retry.NEVER,
        "/models/no-such-model", "target model's path does not exist",
    ),
    "draft_path_missing_dir": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.CONFIG, "drafter_not_found", Retry.NEVER,
        "/models/no-such-drafter", "drafter's path does not exist",
    ),
    "draft_path_not_given": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.KV_POOL, "draft_path_missing", Retry.NEVER,
        "has no attribute 'hot_token_id'", "Give a draft_model",
    ),
    "topk4_torch_native": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.KV_POOL, "backend_unsupported", Retry.NEVER,
        "not supported in decode attention backend torch_native", "attention-backend to triton",
    ),
    "mem_too_small": (
        Verdict.LAUNCH_OOM, Phase.KV_POOL, "mem_fraction_too_small", Retry.NEVER,
        "Loaded weights leave no GPU memory", "Raise mem-fraction-static above 0.004 (now 0.001)",
    ),
    "mem_too_large": (
        Verdict.LAUNCH_OOM, Phase.KV_POOL, "gpu_oom", Retry.NEVER,
        "CUBLAS_STATUS_ALLOC_FAILED", "Lower mem-fraction-static",
    ),
    "too_many_draft_tokens": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.GRAPH_CAPTURE, "tree_too_large", Retry.NEVER,
        "selected index k out of range", "num_draft_tokens may be at most 37",
    ),
    "too_many_draft_tokens_steps1": (
        Verdict.LAUNCH_CONFIG_ERROR, Phase.WARMUP, "tree_too_large", Retry.NEVER,
        "selected index k out of range", "num_draft_tokens may be at most 5",
    ),
    "port_in_use": (
        Verdict.INFRA_ERROR, Phase.WARMUP, "port_in_use", Retry.LATER, "[Errno 98]", "another free port",
    ),
    "sigterm": (
        Verdict.INFRA_ERROR, Phase.READY, "terminated_from_outside", Retry.LATER, "SIGTERM received", "from outside",
    ),
    "sigterm_during_load": (
        Verdict.INFRA_ERROR, Phase.WEIGHTS, "terminated_from_outside", Retry.LATER, "Load weight begin", "from outside",
    ),
    "sigkill": (
        Verdict.CRASHED, Phase.READY, "killed_silently", Retry.ONCE, "Prefill batch", "dmesg",
    ),
}  # fmt: skip
# These two run: nothing in their logs is a failure, and they ended because the recorder stopped them.
RUNNING = ("draft_tokens_adjusted_topk1", "eagle3_drafter_as_EAGLE")


def test_every_recording_has_its_expectation() -> None:
    assert set(EXPECTED) | set(RUNNING) == set(OUTCOMES)
    assert len(OUTCOMES) == 18


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_recorded_failure(case: str) -> None:
    lines, outcome = _lines(case), OUTCOMES[case]
    state = _state(lines)
    found = SglangEngine().diagnose(
        lines,
        exit_code=None if outcome["timed_out"] else outcome["exit_code"],
        phase=state.phase,
        timed_out=outcome["timed_out"],
        arm=_arm(outcome["argv"]),
    )
    verdict, phase, reason, retry, evidence, advice = EXPECTED[case]
    assert (found.verdict, found.phase, found.reason, found.retry) == (verdict, phase, reason, retry)
    assert evidence in found.evidence
    assert advice in found.advice
    assert found.log_tail


def test_an_open_port_is_not_readiness() -> None:
    lines = _lines("too_many_draft_tokens_steps1")
    assert any('"GET /model_info HTTP/1.1" 200' in line for line in lines)
    assert not _state(lines).ready


def test_a_taken_port_is_fatal_though_the_server_lives_on() -> None:
    state = _state(_lines("port_in_use"))
    assert state.fatal is not None
    assert "Errno 98" in state.fatal
    assert all(_state(_lines(case)).fatal is None for case in OUTCOMES if case != "port_in_use")


@pytest.mark.parametrize("case", RUNNING)
def test_a_running_server_is_ready_and_not_blamed(case: str) -> None:
    lines = _lines(case)
    assert _state(lines).ready
    found = SglangEngine().diagnose(lines, exit_code=-9, phase=Phase.READY, timed_out=False, arm=ArmConfig())
    assert (found.verdict, found.reason) == (Verdict.INFRA_ERROR, "terminated_from_outside")


def test_the_wrong_algorithm_is_named_from_the_servers_own_log() -> None:
    lines = _lines("eagle3_drafter_as_EAGLE")
    arm = _arm(OUTCOMES["eagle3_drafter_as_EAGLE"]["argv"])
    found = SglangEngine().probe_diagnosis(1.021, 300, arm, {}, log_lines=lines)
    assert found is not None
    assert (found.verdict, found.reason, found.phase) == (
        Verdict.DRAFTER_INEFFECTIVE, "algorithm_mismatch", Phase.PROBE,
    )  # fmt: skip
    assert "LlamaForCausalLMEagle3" in found.advice
    assert "served as EAGLE: use EAGLE3" in found.advice
    assert SglangEngine().probe_diagnosis(1.9, 300, arm, {}, log_lines=lines) is None
