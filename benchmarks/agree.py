"""Our client against SGLang's own (``sglang.benchmark.serving``) on one running server, in turn.

::

    python benchmarks/agree.py URL --tokenizer FOLDER [--engine COMMAND] > answer.json

Same token ids, order, limits, ``ignore_eos`` and temperature; the prefix cache is flushed before each run. Runs
alternate ours, theirs, theirs, ours. SGLang's client runs in a process of its own, in the Python that holds SGLang
(``--engine``: its command, split as a shell would), which is this file once more with ``--theirs``; its imports are
paid once.

Python's garbage collector can halt a server for tenths of a second, in whichever client's run it falls: ``--freeze-gc``
calls SGLang's ``/freeze_gc`` after the warm-up pair.

A server that sends a chunk a token keeps both clients busier than the GPU at high loads: start it with
``--stream-interval 16``, which both then get.

SGLang's window runs from the first send until its closing ``/server_info`` is answered; that call is timed and taken
off (``theirs``; ``theirs_as_printed`` leaves it in). Ours runs from the first send to the last chunk.

Prints one JSON object: per concurrency the pairs (tok/s, mean TTFT and TPOT in seconds) and, of the ratio ours ÷
theirs of output throughput, the geometric mean with its 95 % t interval over the pairs. Exit 1 where an interval is
not inside ±2 %.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

BOUND = 0.02


# ---------------------------------------------------------------------------------------------- SGLang's client


def theirs(url: str, tokenizer: str) -> None:
    """Serve runs of SGLang's client: a JSON line {prompts, max_tokens, concurrency} in, one with its result out."""
    out, sys.stdout = sys.stdout, sys.stderr  # its report is not ours to read
    from sglang.benchmark import serving  # type: ignore[import-not-found]  # it lives in the engine's Python only

    taken: list[Any] = []
    serving.run_benchmark = taken.append  # its own parser fills in every default, and then calls this
    sys.argv = ["serving", "--backend", "sglang", "--base-url", url, "--tokenizer", tokenizer, "--output-file",
                "/dev/null", "--disable-tqdm", "--temperature", "0"]  # fmt: skip
    serving.cli_main()
    defaults = taken[0]
    defaults.plot_throughput = False
    serving.set_global_args(defaults)
    serving.set_ulimit()
    words = serving.get_tokenizer(tokenizer)
    closing: list[float] = []
    get = serving.requests.get

    def timed_get(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        answer = get(*args, **kwargs)
        closing.append(time.perf_counter() - begun)
        return answer

    serving.requests.get = timed_get
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        rows = [serving.DatasetRow(ids, len(ids), asked["max_tokens"]) for ids in asked["prompts"]]
        closing.clear()
        result = asyncio.run(
            serving.benchmark(
                backend="sglang", api_url=f"{url}/generate", base_url=url, model_id="default", tokenizer=words,
                input_requests=rows, request_rate=float("inf"), max_concurrency=asked["concurrency"],
                disable_tqdm=True, lora_names=[], lora_request_distribution=None, lora_zipf_alpha=None,
                extra_request_body={}, profile=False, flush_cache=True, warmup_requests=1,
            )
        )  # fmt: skip
        answer = {
            "tokens": result["total_output_tokens"],
            "completed": result["completed"],
            "duration_s": result["duration"],
            "closing_s": closing[0],  # the second call comes after the window
            "ttft_s": result["mean_ttft_ms"] / 1000,
            "tpot_s": result["mean_tpot_ms"] / 1000,
        }
        print(json.dumps(answer), file=out, flush=True)


class Theirs:
    """The process above."""

    def __init__(self, engine: Sequence[str], url: str, tokenizer: str) -> None:
        self._process = subprocess.Popen(
            [*engine, __file__, url, "--tokenizer", tokenizer, "--theirs"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"SGLang's client ended with {self._process.wait()}; its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int, concurrency: int) -> dict[str, float]:
        assert self._process.stdin is not None
        asked = {"prompts": [list(ids) for ids in prompts], "max_tokens": max_tokens, "concurrency": concurrency}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        got = self._answer()
        if got["completed"] != len(prompts):
            raise SystemExit(f"SGLang's client completed {got['completed']} of {len(prompts)} requests")
        return {
            "tok_s": got["tokens"] / (got["duration_s"] - got["closing_s"]),
            "tok_s_as_printed": got["tokens"] / got["duration_s"],
            "closing_s": got["closing_s"],
            "tokens": got["tokens"],
            "ttft_s": got["ttft_s"],
            "tpot_s": got["tpot_s"],
        }

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


# ---------------------------------------------------------------------------------------------- ours, and the two


def ours(target: Any, spec: Any, prepared: Any) -> dict[str, float]:
    """One block, measured again where it came back invalid; exits where the third did."""
    from sweep.bench.client import run_block
    from sweep.bench.probe import warm_up

    for attempt in range(3):
        # what SGLang's client does before a run: one request alone, the cache flushed, a second of rest
        warm_up(target, spec, passes=0, prepared=prepared)
        post(f"{target.base_url}/flush_cache")
        time.sleep(1.0)  # the same rest before ours as before theirs
        block = run_block(target, spec, prepared=prepared)
        if block.invalid is None:
            break
        print(f"attempt {attempt + 1}: {block.invalid}", file=sys.stderr)
    else:
        raise SystemExit(f"our block is invalid: {block.invalid}")
    rows = [(r.output_tokens or 0, r.ttft_s or 0.0, r.end_s - r.sent_s) for r in block.requests]
    return {
        "tok_s": sum(tokens for tokens, _, _ in rows) / block.elapsed_s,
        "tokens": sum(tokens for tokens, _, _ in rows),
        "ttft_s": statistics.fmean(ttft for _, ttft, _ in rows),
        "tpot_s": statistics.fmean((total - ttft) / (tokens - 1) for tokens, ttft, total in rows),
    }


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30):
        pass


def ratio(pairs: Sequence[dict[str, dict[str, float]]], key: str = "tok_s") -> dict[str, float]:
    """Geometric mean of ours ÷ theirs with its 95 % t interval over the pairs (at least two)."""
    from scipy.stats import t

    logs = [math.log(pair["ours"]["tok_s"] / pair["theirs"][key]) for pair in pairs]
    mean, n = statistics.fmean(logs), len(logs)
    half = float(t.ppf(0.975, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    return {"estimate": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    from sweep.bench.http import Target
    from sweep.bench.prepare import prepare
    from sweep.bench.workload import load_prompts
    from sweep.model import BlockSpec, Stage

    target = Target(options.url)
    chosen = load_prompts("builtin").for_stage(Stage.SEARCH, 1, 2)
    prepared = prepare(target, chosen)
    levels: list[dict[str, Any]] = []
    client = Theirs(shlex.split(options.engine), options.url, options.tokenizer)
    with contextlib.closing(client):
        for level, (concurrency, max_tokens) in enumerate(zip(options.concurrency, options.max_tokens, strict=True)):
            count = options.alone if concurrency == 1 else options.waves * concurrency
            prompts = tuple(chosen[i % len(chosen)] for i in range(count))
            spec = BlockSpec(Stage.SEARCH, concurrency, 0, prompts, max_tokens, ignore_eos=True, stall_s=60.0)
            sources = [[int(token) for token in prepared.sources[prompt.id]] for prompt in prompts]
            pairs = []
            for turn in range(-1, options.pairs):
                pair: dict[str, dict[str, float]] = {}
                for side in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
                    if side == "ours":
                        pair[side] = ours(target, spec, prepared)
                    else:
                        pair[side] = client.run(sources, max_tokens, concurrency)
                if turn < 0 and level == 0 and options.freeze_gc:
                    post(f"{target.base_url}/freeze_gc")
                if turn >= 0:  # the pair before the first is warm-up
                    pairs.append(pair)
                    print(json.dumps({"concurrency": concurrency, **pair}), file=sys.stderr, flush=True)
            found = {"concurrency": concurrency, "requests": count, "max_tokens": max_tokens, "ratio": ratio(pairs),
                     "ratio_as_printed": ratio(pairs, "tok_s_as_printed"), "pairs": pairs}  # fmt: skip
            levels.append(found)
            for key in ("tok_s", "ttft_s", "tpot_s"):
                means = [statistics.fmean(pair[side][key] for pair in pairs) for side in ("ours", "theirs")]
                print(f"concurrency {concurrency} {key}: ours {means[0]:.4f}, theirs {means[1]:.4f}", file=sys.stderr)
            print(f"concurrency {concurrency} ours / theirs: {found['ratio']}", file=sys.stderr, flush=True)
    return {"name": options.name, "levels": levels}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--tokenizer", required=True, help="the model's folder or hub name, for SGLang's client")
    parser.add_argument("--engine", default=sys.executable, help="command of the Python that holds SGLang")
    parser.add_argument("--name", default="", help="what runs there, for the answer")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--alone", type=int, default=4, help="requests of a run at concurrency 1")
    parser.add_argument("--waves", type=int, default=2, help="requests of a run above 1, in units of the concurrency")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[512, 768], help="of a request, by concurrency")
    parser.add_argument("--freeze-gc", action="store_true", help="ask the server for it once it is warm")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.url = options.url.rstrip("/")
    if options.theirs:
        theirs(options.url, options.tokenizer)
        return 0
    answer = compare(options)
    json.dump(answer, sys.stdout, indent=1)
    print()
    ratios = [level["ratio"] for level in answer["levels"]]
    return 0 if all(found["low"] >= 1 - BOUND and found["high"] <= 1 + BOUND for found in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
