"""Failures: those of a recorded SGLang in its words, and those switched on by matching arm fields."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

OLD = "h200-llama8b"


def failing(kind: str, **more: Any) -> dict[str, Any]:
    return {"failures": [{"kind": kind, **more}]}


# ------------------------------------------------------------------------------------ by themselves, as recorded


def test_bad_flag(launch: Any) -> None:
    server = launch("--speculative-num-stepz", "3")
    assert server.exit() == 2
    assert server.text().startswith("usage: sglang serve [-h]")
    assert server.text().splitlines()[-1] == ("sglang serve: error: unrecognized arguments: --speculative-num-stepz 3")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--speculative-algorithm", "EAGEL3"), 1, "ValueError: Unknown speculative algorithm name: EAGEL3"),
        (
            ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/opt/no-such-drafter"),
            1,
            "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/opt/no-such-drafter'.",
        ),
        (("--mem-fraction-static", "0.001"), -9, "Loaded weights leave no GPU memory for the KV cache under"),
        (("--mem-fraction-static", "0.999"), -9, "CUBLAS_STATUS_ALLOC_FAILED when calling"),
        (("--mem-fraction-static", "0.0445"), -9, "Not enough memory. Please try to increase --mem-fraction-static."),
        (("--tp-size", "4"), -9, "CUDA error: invalid device ordinal"),
    ],
)
def test_launch_errors(launch: Any, flags: tuple[str, ...], code: int, words: str) -> None:
    server = launch(*flags)
    assert server.exit() == code
    assert words in server.text()
    if code == -9:
        assert "Received sigquit from a child process. It usually means the child failed." in server.text()


def test_trees_and_drafters_that_cannot_work(launch: Any, eagle3: Any) -> None:
    deep = launch(*eagle3(3, 4, 64), profile=OLD, scale=0.05)
    flat = launch(*eagle3(1, 4, 16))
    assert deep.exit() == -9
    assert "Capture cuda graph failed: selected index k out of range\nPossible solutions:" in deep.text()
    assert flat.exit() == -9
    assert "Uvicorn running on" in flat.text()  # the port had been open
    assert "RuntimeError: selected index k out of range" in flat.text()
    assert "fired up" not in flat.text()
    none = launch("--speculative-algorithm", "EAGLE3")
    assert none.exit() == -9
    assert "object has no attribute 'hot_token_id'" in none.text()
    native = launch(*eagle3(3, 4, 8), "--attention-backend", "torch_native")
    assert native.exit() == -9
    assert "EAGLE is not supported in decode attention backend torch_native" in native.text()
    launch(*eagle3(3, 4, 37), profile=OLD, scale=0.05).ready()  # the largest tree that holds


def test_eagle3_head_served_as_eagle_is_useless_but_runs(launch: Any) -> None:
    flags = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "/models/my-eagle3")
    server = launch(*flags).ready()
    meta = server.generate(max_new_tokens=100, ignore_eos=True)["meta_info"]
    assert 1.0 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] < 1.05
    assert "Traceback" not in server.text()
    right = launch("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "/models/my-eagle").ready()
    meta = right.generate(max_new_tokens=100, ignore_eos=True)["meta_info"]
    assert 1.0 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] > 1.5


def test_port_in_use_hangs_for_ever_and_keeps_the_memory(launch: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = launch(port=taken.getsockname()[1])
        server.wait_for("address already in use")
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        assert [path for path in server.state.glob("*.json") if path.stem.isdigit()]


def test_forced_accept_length(launch: Any, eagle3: Any) -> None:
    server = launch(*eagle3(3, 1, 4), env={"SGLANG_SIMULATE_ACC_LEN": "2.4"}).ready()
    meta = server.generate(max_new_tokens=400, ignore_eos=True)["meta_info"]
    assert 1.0 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] == pytest.approx(2.4, abs=0.05)


# ------------------------------------------------------------------------------------ on demand


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("oom_at_capture", -9, "Capture cuda graph failed: CUDA out of memory."),
        ("oom_at_weights", -9, "torch.OutOfMemoryError: CUDA out of memory."),
        ("exit_at_start", 1, "simulated failure: exit at start"),
    ],
)
def test_launch_failures_on_demand_match_the_arm(launch: Any, eagle3: Any, kind: str, code: int, words: str) -> None:
    sim = failing(kind, when={"num_draft_tokens": {"min": 8}, "topk": [4, 8]})
    hit, miss = launch(*eagle3(3, 4, 8), sim=sim), launch(*eagle3(3, 1, 4), sim=sim)
    assert hit.exit() == code
    assert words in hit.text()
    miss.ready()


def test_times_counts_over_launches_of_a_host(launch: Any, tmp_path: Path) -> None:
    state = tmp_path / "host"
    assert launch(sim=failing("exit_at_start", times=1), state=state).exit() == 1
    launch(sim=failing("exit_at_start", times=1), state=state).ready()


def test_hang_at_capture(launch: Any) -> None:
    server = launch(sim=failing("hang_at_capture"))
    server.wait_for("Capture target decode CUDA graph begin")
    time.sleep(0.3)
    assert server.process.poll() is None
    assert "CUDA graph end" not in server.text()
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.exit() == -15


def stream(server: Any, tokens: int = 60) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1.0)
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = json.dumps({"text": "x", "stream": True, "sampling_params": sampling})
    connection.request("POST", "/generate", body)
    return connection, connection.getresponse()


def until_silence(answer: http.client.HTTPResponse) -> bytes:
    """What comes until nothing more does for the connection's timeout."""
    data = b""
    try:
        while part := answer.read1(65536):
            data += part
    except TimeoutError:
        return data
    pytest.fail("the stream ended")


def test_crash_in_the_middle(launch: Any) -> None:
    server = launch(sim=failing("crash_after_tokens", tokens=20)).ready()
    connection, answer = stream(server)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        answer.read()
    connection.close()
    assert server.exit() == -9
    assert "an illegal memory access was encountered" in server.text()
    assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in server.text()


def test_no_tokens_though_healthy(launch: Any) -> None:
    server = launch(scale=0.05, sim=failing("no_tokens")).ready()
    assert server.request("GET", "/health")[0] == 200
    connection, answer = stream(server)
    with pytest.raises(TimeoutError):
        answer.read(1)
    connection.close()


@pytest.mark.parametrize("kind", ["stall", "truncated_json", "reset", "garbage_sse", "http_500"])
def test_broken_answers(launch: Any, kind: str) -> None:
    server = launch(sim=failing(kind, after_tokens=5, requests=1)).ready()
    connection, answer = stream(server)
    if kind == "http_500":
        assert (answer.status, answer.read()) == (500, b"Internal Server Error")
    elif kind == "garbage_sse":
        assert b"garbage" in answer.read()
    elif kind == "stall":
        data = until_silence(answer)
        assert b'"completion_tokens":' in data
        assert b'"completion_tokens":9' not in data
        assert b"[DONE]" not in data
    else:
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    connection.close()
    if kind != "stall":
        assert len(server.generate("second", max_new_tokens=9, ignore_eos=True)["output_ids"]) == 9  # the first only


def test_slow_first_request(launch: Any) -> None:
    server = launch(sim=failing("slow_first_request", seconds=0.5)).ready()
    times = []
    for _ in range(2):
        begin = time.monotonic()
        server.generate(max_new_tokens=4)
        times.append(time.monotonic() - begin)
    assert times[0] > 0.5 > times[1]


def test_logs_that_misbehave(launch: Any) -> None:
    flood = launch(sim=failing("log_flood", mb=3)).ready()
    end = time.monotonic() + 10
    while flood.log.stat().st_size < 3_000_000 and time.monotonic() < end:
        time.sleep(0.02)
    assert flood.log.stat().st_size >= 3_000_000
    flood.generate(max_new_tokens=4)
    joined = launch(sim=failing("no_newline"))
    joined.ready()
    assert "\n[" not in joined.text().partition("Init torch")[2]
    mute = launch(sim=failing("close_stdout")).ready()
    size = mute.log.stat().st_size
    assert mute.generate(max_new_tokens=4)["text"]
    assert mute.log.stat().st_size == size
