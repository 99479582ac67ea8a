"""The simulator's clock does not bias what is measured: paired gains against truth at every recommended time scale."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from launchers.simulated import server as simulated
from launchers.simulated import truth
from sweep.model import BASELINE, ArmConfig

pytestmark = pytest.mark.clock
CATEGORIES = ("code", "math", "writing", "question_answering", "summarisation", "translation")
TEXTS = {f"A prompt of the {name} set, of some thirty characters": name for name in CATEGORIES}


class Client:
    """One keep-alive connection; the time from sending to the last chunk, as our benchmark takes it."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def time(self, text: str, tokens: int) -> tuple[float, dict[str, Any]]:
        ids = simulated.encode(simulated.chat_prompt([{"role": "user", "content": text}]))
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, "stream_interval": 8}
        body = json.dumps({"input_ids": ids, "stream": True, "sampling_params": sampling}).encode()
        head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        sent = time.perf_counter()
        self.writer.write(head + body)
        last, end = b"", sent
        while True:
            line = await self.reader.readline()
            if line.startswith(b"data: {"):
                last, end = line, time.perf_counter()
            elif line.startswith(b"0\r\n"):
                await self.reader.readline()
                return end - sent, json.loads(last[6:])


async def paired_logs(ports: tuple[int, int], tokens: int) -> list[float]:
    """Log ratio of the speeds of each prompt, the arm that goes first changing from prompt to prompt."""
    clients = [Client(port) for port in ports]
    for client in clients:
        await client.open()
        await client.time("warm-up", 16)
    logs = []
    for number, text in enumerate(TEXTS):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        seconds = {arm: (await clients[arm].time(text, tokens))[0] for arm in order}
        logs.append(math.log(seconds[0] / seconds[1]))
    for client in clients:
        await client.close()
    return logs


async def block_throughput(port: int, texts: list[str], concurrency: int, tokens: int) -> float:
    """Closed loop: output tokens of all requests over the time from the first send to the last chunk."""
    queue = iter(texts)
    clients = [Client(port) for _ in range(concurrency)]
    for client in clients:
        await client.open()

    async def work(client: Client) -> int:
        done = 0
        for text in queue:
            done += (await client.time(text, tokens))[1]["meta_info"]["completion_tokens"]
        return done

    begin = time.perf_counter()
    total = sum(await asyncio.gather(*map(work, clients)))
    seconds = time.perf_counter() - begin
    for client in clients:
        await client.close()
    return total / seconds


def prompts(texts: list[str]) -> list[truth.TruePrompt]:
    counts = [len(simulated.encode(simulated.chat_prompt([{"role": "user", "content": text}]))) for text in texts]
    return [truth.TruePrompt(t, TEXTS.get(t, "other"), n) for t, n in zip(texts, counts, strict=True)]


# profile, time scale, tokens per request, arm: every shipped scale, gains from a loss to a large win
CASES = [
    ("h200-llama8b", 0.5, 192, ArmConfig("EAGLE3", "my-eagle3", 5, 4, 16)),
    ("h200-smollm2", 1.0, 256, ArmConfig("EAGLE3", "my-eagle3", 3, 4, 8)),
    ("kimi-k25-8xgpu", 0.25, 128, ArmConfig("EAGLE3", "k25-custom", 3, 4, 5)),
]


def flags_of(config: ArmConfig) -> tuple[str, ...]:
    return (
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", f"/models/{config.draft_model}"),
        *("--speculative-num-steps", str(config.num_steps), "--speculative-eagle-topk", str(config.topk)),
        *("--speculative-num-draft-tokens", str(config.num_draft_tokens)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "scale", "tokens", "config"), CASES, ids=[case[0] for case in CASES])
def test_paired_gain_is_the_truth(
    launch: Any, tmp_path: Path, profile: str, scale: float, tokens: int, config: ArmConfig
) -> None:
    spec = truth.load(profile)
    assert spec["recommended"] == {"time_scale": scale, "max_tokens": tokens}
    table = tmp_path / "categories.json"
    table.write_text(json.dumps({hashlib.sha1(text.encode()).hexdigest(): name for text, name in TEXTS.items()}))
    own = ("--categories", str(table))
    plain = ("--tp-size", str(spec["gpu"]["count"]), "--attention-backend", "triton")
    base = launch(*plain, profile=profile, scale=scale, own=own, state=tmp_path / "a").ready()
    drafting = launch(*plain, *flags_of(config), profile=profile, scale=scale, own=own, state=tmp_path / "b").ready()
    measured = asyncio.run(paired_logs((base.port, drafting.port), tokens))
    blocks = [
        truth.simulate_block(spec, arm, prompts(list(TEXTS)), 1, tokens, ignore_eos=True) for arm in (BASELINE, config)
    ]
    logs = [math.log(fast / slow) for slow, fast in zip(blocks[0].speeds, blocks[1].speeds, strict=True)]
    # the median, so that a moment in which this machine was busy elsewhere does not count as the clock's error
    error = statistics.median(a - b for a, b in zip(measured, logs, strict=True))
    true = math.exp(statistics.mean(logs)) - 1.0
    assert math.exp(statistics.mean(logs) + error) - 1.0 == pytest.approx(true, abs=0.005)


@pytest.mark.slow
def test_throughput_under_load_is_the_truth(launch: Any, tmp_path: Path) -> None:
    spec, config = truth.load("h200-llama8b"), ArmConfig("EAGLE3", "my-eagle3", 3, 1, 4)
    texts = [f"Prompt number {i}" for i in range(24)]
    gains = []
    for arm, flags in ((BASELINE, ()), (config, flags_of(config))):
        server = launch("--attention-backend", "triton", *flags, profile="h200-llama8b", state=tmp_path / str(arm.key))
        server.ready()
        measured = asyncio.run(block_throughput(server.port, texts, 8, 192))
        true = truth.simulate_block(spec, arm, prompts(texts), 8, 192, ignore_eos=True).throughput
        assert measured == pytest.approx(true, rel=0.03)
        gains.append(measured / true)
    assert gains[1] / gains[0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("profile", "scale", "tokens", "config"), CASES, ids=[case[0] for case in CASES])
def test_draws_average_to_the_closed_form(profile: str, scale: float, tokens: int, config: ArmConfig) -> None:
    spec = truth.load(profile)
    many = [truth.TruePrompt(f"text {i}", "math", 40) for i in range(300)]
    blocks = [truth.simulate_block(spec, arm, many, 1, tokens, ignore_eos=True) for arm in (BASELINE, config)]
    logs = [math.log(fast / slow) for slow, fast in zip(blocks[0].speeds, blocks[1].speeds, strict=True)]
    expected = truth.gain(spec, config, 1, "math", prompt_tokens=40, output_tokens=tokens)
    assert math.exp(statistics.mean(logs)) - 1.0 == pytest.approx(expected, abs=0.003)
