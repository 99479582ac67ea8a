# ruff: noqa: E501 - log lines are quoted as the server wrote them
"""The log reader on recorded logs of 0.5.17, the words of 0.5.23, and on logs that misbehave."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchers.engines.sglang import SglangEngine
from sweep.model import BASELINE, Phase
from sweep.seams import LogState

FOLDER = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "launch"
GRAPH_OFF = (
    "[2026-01-01 00:00:00] Decode batch, #running-req: 9, #token: 69, token usage: 0.00, cuda graph: False, "
    "gen throughput (token/s): 13.48, #queue-req: 0"
)


def _feed(lines: list[str]) -> list[LogState]:
    feed = SglangEngine().log_state()
    return [feed(line) for line in lines]


@pytest.mark.parametrize("name", ["baseline", "baseline_cuda_graph_off", "eagle3_steps3_topk4_draft8", "ngram_d8"])
def test_recorded_launch_goes_through_its_phases_to_ready(name: str) -> None:
    lines = (FOLDER / f"{name}.log").read_text(encoding="utf-8").split("\n")
    states = _feed(lines)
    seen = list(dict.fromkeys(state.phase for state in states))
    capture = [] if name == "baseline_cuda_graph_off" else [Phase.GRAPH_CAPTURE]
    assert seen == [Phase.START, Phase.CONFIG, Phase.WEIGHTS, Phase.KV_POOL, *capture, Phase.WARMUP, Phase.READY]
    first = next(i for i, state in enumerate(states) if state.ready)
    assert "fired up and ready" in lines[first]
    assert states[-1].fatal is None
    assert not states[-1].flags  # graphs on: decode says True; graphs off: that was asked for


def test_words_of_the_newer_version() -> None:
    lines = [
        "[2026-01-01 00:00:00] server_args={'model_path': '/m', 'cuda_graph_config': {'decode': {'backend': 'full'}}}",
        "[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=139.09 GB",
        "[2026-01-01 00:00:02 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, K size: 1 GB, V size: 1 GB",
        "[2026-01-01 00:00:03 DP0 TP0] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=8",
        "[2026-01-01 00:00:04.123 TP0] max_total_num_tokens=99, chunked_prefill_size=8192",
        "[2026-01-01 00:00:05] The server is fired up and ready to roll!",
        "[2026-01-01 00:00:06 TP0] Decode batch, #running-req: 1, #token: 9, accept len: 2.3, cuda graph: False, x: 1",
        "[2026-01-01 00:00:07 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9",
    ]
    states = _feed(lines)
    assert [state.phase for state in states[:6]] == [
        Phase.CONFIG, Phase.WEIGHTS, Phase.KV_POOL, Phase.GRAPH_CAPTURE, Phase.WARMUP, Phase.READY,
    ]  # fmt: skip
    assert [state.ready for state in states[:6]] == [False] * 5 + [True]
    assert set(states[-1].flags) == {"cuda_graph_off", "retractions"}
    assert "Retract requests" in states[-1].flags["retractions"]
    assert states[-1].flags["cuda_graph_off"].startswith("Decode batch")


@pytest.mark.parametrize(
    "args",
    [
        "server_args=ServerArgs(cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='disabled', max_bs=48",
        "server_args=ServerArgs(model_path='/m', disable_cuda_graph=True, x=1)",
        "server_args={'cuda_graph_backend_decode': 'disabled', 'x': 1}",
        "server_args={'cuda_graph_config': {'decode': {'backend': 'disabled', 'bs': [1]}}}",
    ],
)
def test_decode_without_graphs_is_remarkable_only_where_graphs_were_asked_for(args: str) -> None:
    assert not _feed([f"[2026-01-01 00:00:00] {args}", GRAPH_OFF])[-1].flags
    graphs_on = args.replace("disabled", "full").replace("=True", "=False")
    assert set(_feed([f"[2026-01-01 00:00:00] {graphs_on}", GRAPH_OFF])[-1].flags) == {"cuda_graph_off"}


def test_prefill_without_graphs_is_no_flag() -> None:
    line = "[2026-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, cuda graph: False, x: 1"
    assert not _feed([line])[-1].flags


@pytest.mark.parametrize("name", ["garbage_collection", "garbage_collection_frozen"])
def test_garbage_collection_of_a_running_server_is_neither_flag_nor_fault(name: str) -> None:
    """Nor does freezing it end the window of a block, or its words hide what ended a server afterwards."""
    ready = (FOLDER / "baseline.log").read_text(encoding="utf-8").splitlines()
    seen = (FOLDER.parent / "serving" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    assert any("GC in Tokenizer" in line or "GARBAGE COLLECTION" in line for line in seen)
    state = _feed([*ready, *seen])[-1]
    assert (state.phase, state.ready, dict(state.flags), state.fatal) == (Phase.READY, True, {}, None)
    kept = [line for line in seen if "Cache flushed" not in line]
    assert set(_feed([*ready, GRAPH_OFF, *kept])[-1].flags) == {"cuda_graph_off"}
    oom = (FOLDER.parent / "failures" / "mem_too_large.log").read_text(encoding="utf-8").splitlines()
    for lines, code, reason in ((seen, -9, "killed_silently"), ([*seen, *oom], 1, "oom_at_runtime")):
        found = SglangEngine().diagnose(
            [*ready, *lines], exit_code=code, phase=Phase.BENCHMARK, timed_out=False, arm=BASELINE
        )
        assert found.reason == reason


def test_a_flush_starts_a_new_window() -> None:
    states = _feed([GRAPH_OFF, "[2026-01-01 00:00:01] Cache flushed successfully!", GRAPH_OFF.replace("False", "True")])
    assert [sorted(state.flags) for state in states] == [["cuda_graph_off"], [], []]
    refused = _feed([GRAPH_OFF, "[2026-01-01 00:00:01] Cache not flushed because there are pending requests."])
    assert set(refused[-1].flags) == {"cuda_graph_off"}


def test_compiling_kernels_is_slow_and_not_a_hang() -> None:
    states = _feed(
        [
            "[2026-01-01 00:00:00] Load weight end. elapsed=1 s",
            "[2026-01-01 00:00:01] Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
            "DeepGEMM warmup:  12%|#  | 12/100",
            "[2026-01-01 00:20:00] Capture target decode CUDA graph begin. backend=full",
        ]
    )
    assert [state.slow_ok for state in states] == [False, True, True, False]


def test_words_inside_a_request_are_not_the_servers() -> None:
    request = (
        "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(text='[2026-01-01 00:00:00] The server is fired up and ready "
        "to roll! [2026-01-01 00:00:00] ERROR:    [Errno 98] error while attempting to bind on address')"
    )
    state = _feed([request, "a user said: The server is fired up and ready to roll!"])[-1]
    assert not state.ready
    assert state.fatal is None


def test_misbehaving_logs() -> None:
    lines = [
        "\ufffd\ufffd\x00\x1b[31m",
        "",
        "y" * 1_000_000,
        "  0%|  | 0/8 [00:00<?, ?it/s]\r100%|##| 8/8 [00:01<00:00,  7.49it/s]",
        "  0%|  | 0/8 [00:00<?, ?it/s][2026-01-01 00:00:04] max_total_num_tokens=99, x=1[2026-01-01 00:00:05] The server is "
        "fired up and ready to roll!\r",
    ]
    states = _feed(lines)
    assert not states[3].ready
    assert states[4].ready
