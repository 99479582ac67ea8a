"""The HTTP surface, compared with what a real SGLang answered."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from launchers.simulated import server as simulated

SEVENTEEN = "h200-llama8b"
QUICK = 0.05

NATIVE_META = {
    "id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "reasoning_tokens",
    "completion_tokens", "cached_tokens", "cached_tokens_details", "dp_rank",
}  # fmt: skip
SPEC_META = {
    "spec_accept_rate", "spec_accept_length", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_verify_ct",
    "spec_accepted_drafts", "spec_proposed_drafts", "spec_correct_drafts_histogram", "spec_accept_histogram",
}  # fmt: skip


def test_native_stream_is_cumulative_with_counters_at_the_end(launch: Any, eagle3: Any) -> None:
    server = launch(*eagle3(3, 4, 8)).ready()
    sampling = {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}
    events = server.events("/generate", {"text": "stream me", "sampling_params": sampling})
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts[0] == 1
    assert counts[-1] == 48
    assert max(b - a for a, b in pairwise(counts)) > 1
    for event in events:
        assert len(event["output_ids"]) == event["meta_info"]["completion_tokens"]
        assert simulated.decode(event["output_ids"]) == event["text"]
        assert events[-1]["text"].startswith(event["text"])
    assert all(set(event["meta_info"]) == NATIVE_META for event in events[:-1])
    meta = events[-1]["meta_info"]
    assert set(meta) == NATIVE_META | SPEC_META | {"e2e_latency"}
    assert meta["finish_reason"] == {"type": "length", "length": 48}
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"]
    correct = sum(j * n for j, n in enumerate(meta["spec_correct_drafts_histogram"]))
    assert correct == meta["spec_num_correct_drafts"]
    assert meta["spec_num_proposed_drafts"] == meta["spec_verify_ct"] * 7
    assert meta["spec_accept_length"] == 48 / meta["spec_verify_ct"]


def test_answers_are_the_same_on_every_arm_and_stop_by_themselves(launch: Any, eagle3: Any) -> None:
    plain, spec = launch().ready(), launch(*eagle3(3, 1, 4)).ready()
    one, two = (
        plain.generate("the same prompt", max_new_tokens=500),
        spec.generate("the same prompt", max_new_tokens=500),
    )
    assert one["text"] == two["text"]
    assert one["output_ids"] == two["output_ids"]
    assert one["output_ids"][-1] == simulated.EOS
    assert one["meta_info"]["finish_reason"] == {"type": "stop", "matched": simulated.EOS}
    assert 40 <= one["meta_info"]["completion_tokens"] <= 120
    assert not set(one["meta_info"]) & SPEC_META
    again = plain.generate("the same prompt", max_new_tokens=500)
    assert again["meta_info"]["cached_tokens"] == again["meta_info"]["prompt_tokens"] - 1
    assert plain.request("POST", "/flush_cache")[0] == 200
    assert plain.generate("the same prompt")["meta_info"]["cached_tokens"] == 0


def test_chat_shapes(launch: Any, eagle3: Any) -> None:
    server = launch(*eagle3(3, 1, 4)).ready()
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    whole = server.json("POST", "/v1/chat/completions", body)
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["completion_tokens"] == 12
    assert whole["choices"][0]["finish_reason"] == "length"
    events = server.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[0]["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    without = server.events("/v1/chat/completions", body)
    assert not any("usage" in event for event in without)
    done = server.json("POST", "/v1/completions", {"prompt": "once", "temperature": 0})
    assert done["object"] == "text_completion"
    assert done["usage"]["completion_tokens"] == 16


def test_tokenize_gives_the_prompt_that_generate_understands(launch: Any) -> None:
    server = launch().ready()
    messages = [{"role": "user", "content": "Größe: 12 €?"}]
    ids = server.json("POST", "/v1/tokenize", {"messages": messages})["tokens"]
    assert server.json("POST", "/tokenize", {"prompt": "abc def"})["count"] == 2
    text = server.json("POST", "/detokenize", {"tokens": ids})["text"]
    assert text == "<|im_start|>user\nGröße: 12 €?<|im_end|>\n<|im_start|>assistant\n"
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 9}}
    native = server.json("POST", "/generate", body)
    chat = server.json("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 9})
    assert native["text"] == chat["choices"][0]["message"]["content"]
    assert native["meta_info"]["prompt_tokens"] == len(ids)
    body["input_ids"] = [*ids, *native["output_ids"][:4]]
    assert server.json("POST", "/generate", body)["output_ids"][:5] == native["output_ids"][4:]


def test_versions_differ(launch: Any) -> None:
    old, new = launch(profile=SEVENTEEN, scale=QUICK).ready(), launch().ready()
    assert old.request("GET", "/ready") == (404, b'{"detail":"Not Found"}')
    assert new.request("GET", "/ready")[0] == 200
    assert old.request("GET", "/get_load")[0] == 200
    assert new.request("GET", "/get_load")[0] == 404
    bad = {"text": "x", "sampling_params": {"max_newtokens": 3}}
    assert old.request("POST", "/generate", bad) == (500, b"Internal Server Error")
    status, data = new.request("POST", "/generate", bad)
    assert status == 400
    assert b"max_newtokens" in data
    assert old.json("GET", "/server_info")["version"] == "0.5.17"
    assert "server_args=ServerArgs(model_path=" in old.text()
    assert "server_args={'model_path':" in new.text()


def test_server_info_shows_what_runs(launch: Any, eagle3: Any) -> None:
    server = launch(*eagle3(3, 1, 8), "--decode-log-interval", "5").ready()
    info = server.json("GET", "/server_info")
    assert info["speculative_num_draft_tokens"] == 4
    assert info["simulated"] == {"profile": "tiny", "time_scale": 1.0}
    assert "avg_spec_accept_length" not in info["internal_states"][0]
    server.generate(max_new_tokens=64, ignore_eos=True)
    info = server.json("GET", "/get_server_info")
    assert 1.0 < info["internal_states"][0]["avg_spec_accept_length"] < 4.0
    assert "accept len: " in server.text()
    assert server.json("GET", "/model_info")["architectures"] == ["LlamaForCausalLM"]
    assert server.json("GET", "/v1/models")["data"][0]["id"] == "/models/target"


def test_api_key_and_open_paths(launch: Any, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("api_key: sesame\n")
    server = launch("--config", str(config), "--enable-metrics", env={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"})
    server.ready()
    assert server.request("GET", "/server_info") == (401, b'{"error":"Unauthorized"}')
    assert server.request("GET", "/server_info", headers={"Authorization": "Bearer sesame"})[0] == 200
    assert server.request("GET", "/server_info", headers={"Authorization": "sesame"})[0] == 401
    for path in ("/health", "/ready", "/metrics"):
        assert server.request("GET", path)[0] == 200
    assert b'sglang:spec_num_steps{engine_type="unified"' in server.request("GET", "/metrics")[1]


def test_health_costs_a_second_and_metrics_are_off(launch: Any) -> None:
    server = launch(scale=0.3).ready()
    begin = time.monotonic()
    assert server.request("GET", "/health") == (200, b"")
    assert time.monotonic() - begin >= 0.3
    assert server.request("GET", "/metrics")[0] == 404


def test_too_long_and_malformed(launch: Any) -> None:
    server = launch("--context-length", "100").ready()
    status, data = server.request("POST", "/generate", {"input_ids": [5] * 120})
    message = "The input (120 tokens) is longer than the model's context length (100 tokens)."
    assert (status, json.loads(data)) == (400, {"error": {"message": message}})
    assert server.request("POST", "/generate", {})[0] == 400
    assert server.request("POST", "/v1/chat/completions", {"messages": []})[0] == 400
    assert server.request("GET", "/generate")[0] == 405
    assert server.request("GET", "/nowhere")[0] == 404
    assert server.json("POST", "/set_internal_state", {"server_args": {"speculative_num_steps": 2}}) == {
        "updated": False
    }


def test_queue_flush_refused_and_abort(launch: Any) -> None:
    import threading

    server = launch("--max-running-requests", "1", scale=4.0).ready()
    answers: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda i=i: answers.append(server.generate(f"p{i}", max_new_tokens=100, ignore_eos=True))
        )
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 5
    while server.json("GET", "/v1/loads")["loads"][0]["num_waiting_reqs"] != 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert server.json("GET", "/v1/loads")["loads"][0]["num_running_reqs"] == 1
    assert server.request("POST", "/flush_cache")[0] == 400
    assert server.request("POST", "/abort_request", {"abort_all": True})[0] == 200
    for thread in threads:
        thread.join(5)
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort", "abort"]


@pytest.mark.parametrize("near", [True, False])
def test_first_differing_token_can_be_judged(launch: Any, eagle3: Any, tmp_path: Path, near: bool) -> None:
    from launchers.simulated import truth

    spec = dict(truth.load("tiny"), near_ties=1.0 if near else 0.0)
    profile = tmp_path / "ties.json"
    profile.write_text(json.dumps(spec))
    sim = {"failures": [] if near else [{"kind": "wrong_output"}]}
    plain, drafting = launch(profile=profile).ready(), launch(*eagle3(3, 1, 4), profile=profile, sim=sim).ready()
    prompt = simulated.encode(simulated.chat_prompt([{"role": "user", "content": "judge me"}]))
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 100, "ignore_eos": True}}
    one = plain.json("POST", "/generate", body)["output_ids"]
    two = drafting.json("POST", "/generate", body)["output_ids"]
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    assert at >= 20
    ask = {
        "input_ids": prompt + one[:at],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 5,
    }
    top = plain.json("POST", "/generate", ask)["meta_info"]["output_top_logprobs"][0]
    scores = {token: value for value, token, _ in top}
    assert max(scores, key=lambda token: scores[token]) == one[at]
    if near:
        assert scores[one[at]] - scores[two[at]] < 0.05
    else:
        assert two[at] not in scores
