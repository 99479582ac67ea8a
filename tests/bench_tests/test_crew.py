"""A block by several client processes: the same load, one clock, one order, and nothing left behind.

Longer than 300 lines on purpose: every way in which a member of the crew can fail is tried on one crew.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from sweep.bench import crew, health
from sweep.bench.client import run_block
from sweep.bench.frames import receive, send
from sweep.bench.http import Target
from sweep.bench.parts import Part, next_processes, processes_for, whole
from sweep.model import BlockResult, BlockSpec, ClientHealth, Prompt, RequestRecord, Stage

ROOT = Path(__file__).parents[2]


MARK = f"CREW_TEST={os.getpid()}".encode()  # other runs of these tests have client processes of their own


def workers() -> set[int]:
    """Pids of this run's client processes that live now (zombies are gone)."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            line, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if b"sweep.bench.worker" in line and MARK in environment:
            found.add(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv(*MARK.decode().split("="))
    before = workers()
    yield
    gone_by = time.monotonic() + 5
    while (left := workers() - before) and time.monotonic() < gone_by:
        time.sleep(0.02)
    assert not left


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def served(block: BlockResult) -> bool:
    """Everything was answered; that a busy machine made the client late is judged elsewhere."""
    return all(r.ok for r in block.requests) and (block.invalid is None or health.LIMIT in block.invalid)


# ------------------------------------------------------------------ the same load as one process


def test_three_processes_send_what_one_sends(server, make_spec):
    server.step_s = 0.03
    texts = [f"t{i}" for i in range(24)]
    spec = make_spec(*texts, concurrency=6, temperature=0.5, seed=40)
    one = run_block(server.target, spec)
    alone, server.requests = server.requests, []
    most, server.most_in_flight = server.most_in_flight, 0
    three = run_block(server.target, spec, processes=3)

    assert served(one)
    assert served(three)
    assert 3 < server.most_in_flight <= 6  # the slots are split, neither multiplied nor given to one process
    assert most <= 6
    # Every prompt once, with the body it has with one process: the seed follows the prompt's place.
    bodies = [{r.text: r.body for r in requests} for requests in (alone, server.requests)]
    assert len(server.requests) == 24
    assert bodies[0] == bodies[1]
    # The rows stand in the order of the prompts and say the same of each.
    fields = ("index", "prompt_id", "output_tokens", "verify_steps", "chunks")
    said = [[[getattr(row, name) for name in fields] for row in block.requests] for block in (one, three)]
    assert said[0] == said[1]
    assert three.client.chunks == one.client.chunks
    assert three.output_tokens == one.output_tokens
    assert min(one.elapsed_s, three.elapsed_s) >= 0.5  # four waves of five steps, of 0.03 s each: no faster than that
    # Prompts are taken in order whichever process sends them: no slot runs far ahead.
    order = sorted(three.requests, key=lambda r: r.sent_s)
    assert all(abs(place - row.index) < 12 for place, row in enumerate(order))
    # One clock: the first six began together.
    assert 0 <= order[0].sent_s <= order[5].sent_s < 1.0
    assert (one.client.processes, one.client.by_process) == (1, ())
    assert three.client.processes == len(three.client.by_process) == 3
    assert sum(share["requests"] for share in three.client.by_process) == 24
    assert all(share["requests"] > 0 for share in three.client.by_process)
    assert three.client.lag_p99_s == max(share["lag_p99_s"] for share in three.client.by_process)


def test_an_open_loop_is_thinned_not_repeated(server, make_spec):
    spec = make_spec(*[f"t{i}" for i in range(20)], request_rate=20.0, seed=5)
    draw = random.Random(5)
    due = list(accumulate(draw.expovariate(20.0) for _ in range(20)))
    one = run_block(server.target, spec)
    two = run_block(server.target, spec, processes=2)
    for block in (one, two):
        # The same arrivals, each by one of the two: never early, and late only as far as the machine is busy.
        assert served(block)
        late = [r.sent_s - at for r, at in zip(block.requests, due, strict=True)]
        assert -0.001 < min(late) <= max(late) < 0.5
    assert sorted(share["requests"] for share in two.client.by_process) == [10, 10]
    assert len(server.requests) == 40


def test_a_fast_server_is_read_by_two_and_all_is_served():
    command = [sys.executable, str(ROOT / "benchmarks" / "client.py"), "--serve", "--chunks", "200"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        target = Target(f"http://127.0.0.1:{int(server.stdout.readline())}")
        prompts = tuple(Prompt(str(i), "code", ({"role": "user", "content": "x"},)) for i in range(40))
        block = run_block(target, BlockSpec(Stage.SEARCH, 16, 0, prompts, max_tokens=200), processes=2)
        assert [r.index for r in block.requests if r.ok] == list(range(40))
        assert {r.chunks for r in block.requests} == {200}
        assert block.client.chunks == 8000
        assert [share["requests"] > 0 for share in block.client.by_process] == [True, True]
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def test_the_key_travels_but_is_not_shown(server, make_spec):
    server.api_key = "s3cret-key"
    seen: list[bytes] = []
    spec = make_spec("a", "b", "c", "d", concurrency=2)
    server.step_s = 0.1
    results: list[BlockResult] = []
    thread = threading.Thread(target=lambda: results.append(run_block(server.target, spec, processes=2)))
    before = workers()
    thread.start()
    wait_for(lambda: server.requests)
    for pid in workers() - before:
        seen += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    thread.join(20)
    assert served(results[0])
    assert len(seen) == 4
    assert not any(b"s3cret-key" in text for text in seen)


# ------------------------------------------------------------------ ends


def start(server, spec, cancel=None) -> tuple[threading.Thread, list[BlockResult], set[int]]:
    results: list[BlockResult] = []
    before = workers()
    thread = threading.Thread(target=lambda: results.append(run_block(server.target, spec, processes=2, cancel=cancel)))
    thread.start()
    wait_for(lambda: server.in_flight == 2)
    return thread, results, workers() - before


def test_cancel_ends_every_process_soon(server, make_spec):
    server.faults = dict.fromkeys(["a", "b"], "stall")
    cancel = threading.Event()
    thread, results, pids = start(server, make_spec("a", "b", "c", "d", concurrency=2), cancel)
    assert len(pids) == 2
    cancel.set()
    thread.join(10)
    (block,) = results
    assert block.invalid == "cancelled after 2 of 4 requests"
    assert [r.error for r in block.requests] == ["cancelled", "cancelled"]


def test_what_was_cancelled_before_it_began_is_not_begun(make_spec, monkeypatch):
    """A process that is ready after the cancel, and hears nothing: it is waited for as after any other cancel."""
    monkeypatch.setattr(crew, "_END_S", 2.0)
    deaf = (
        "import sys, time\n"
        "from sweep.bench.frames import send\n"
        "send(sys.stdout.buffer, ('ready', None))\n"
        "time.sleep(60)\n"
    )
    cancel = threading.Event()
    cancel.set()
    told: list[str] = []

    async def conduct():
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        member = crew._Member(0, await asyncio.create_subprocess_exec(sys.executable, "-c", deaf, **pipes))
        monkeypatch.setattr(member, "tell", lambda kind, value=None: told.append(kind))
        try:
            return await asyncio.wait_for(crew._conduct([member], make_spec("a"), cancel), 15), member.ready.is_set()
        finally:
            await member.end()

    (_, parts, lost), ready = asyncio.run(conduct())
    assert (parts, lost, told, ready) == ([], None, ["cancel"], True)


def test_processes_that_cannot_be_started_make_the_block_invalid(server, make_spec, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    block = run_block(server.target, make_spec("a", "b", concurrency=2), processes=2)
    assert block.invalid is not None
    assert block.invalid.startswith("client process 1 of 2 could not be started: ")
    assert (block.requests, block.stalled, block.client.processes) == ((), False, 2)


def test_a_process_that_is_killed_makes_the_block_invalid_and_takes_the_others_along(server, make_spec):
    server.faults = dict.fromkeys(["a", "b"], "stall")
    thread, results, pids = start(server, make_spec("a", "b", concurrency=2))
    os.kill(min(pids), signal.SIGKILL)
    thread.join(10)
    (block,) = results
    assert block.invalid is not None
    assert "of 2 was lost (exit status -9)" in block.invalid
    assert health.LIMIT not in block.invalid  # more processes would not help
    assert block.client.processes == 2
    assert len(block.requests) == 1  # what the other one had


def test_a_server_that_hangs_is_found_though_no_process_sees_all_of_it(server, make_spec):
    server.faults = dict.fromkeys(["a", "b"], "stall")
    began = time.monotonic()
    block = run_block(server.target, make_spec("a", "b", concurrency=2, stall_s=0.4, timeout_s=60.0), processes=2)
    assert time.monotonic() - began < 20
    assert block.stalled
    assert all("stalled: no token on any stream for 0.4 s" in (r.error or "") for r in block.requests)
    # One stream that stands still beside others that move is no hang: its own deadline ends it.
    server.faults, server.step_s = {"b": "stall"}, 0.15
    beside = make_spec("a", "b", "c", "d", "e", "f", concurrency=2, stall_s=2.0, timeout_s=2.8)
    block = run_block(server.target, beside, processes=2)
    assert not block.stalled
    assert [r.ok for r in block.requests] == [True, False, True, True, True, True]


def test_processes_end_when_their_parent_is_killed(server, make_spec, tmp_path):
    server.faults = dict.fromkeys(["a", "b"], "stall")
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from sweep.bench.client import run_block\n"
        "from sweep.bench.http import Target\n"
        "from sweep.model import BlockSpec, Prompt, Stage\n"
        "prompts = tuple(Prompt(t, 'code', ({'role': 'user', 'content': t},)) for t in 'ab')\n"
        "run_block(Target(sys.argv[1]), BlockSpec(Stage.SEARCH, 2, 0, prompts, 64), processes=2)\n"
    )
    before = workers()
    parent = subprocess.Popen([sys.executable, str(script), server.url])
    wait_for(lambda: server.in_flight == 2)
    assert len(workers() - before) == 2
    parent.kill()
    parent.wait()
    wait_for(lambda: workers() == before, 5)


def test_a_defect_in_a_process_is_raised_with_its_traceback(server, make_spec):
    spec = replace(make_spec("a", "b", concurrency=2), temperature="hot")
    with pytest.raises(RuntimeError, match=r"client process \d of 2 failed:\n(?s:.*)Traceback"):
        run_block(server.target, spec, processes=2)


def test_a_part_of_megabytes_comes_through():
    ids = tuple(range(300_000))

    async def over_a_pipe():
        out, into = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb")
        )
        with os.fdopen(into, "wb") as pipe:
            writing = asyncio.create_task(asyncio.to_thread(send, pipe, ("part", ids)))
            received = await receive(reader)
            await writing
        with pytest.raises(asyncio.IncompleteReadError):  # the other end is gone
            await receive(reader)
        transport.close()
        return received

    assert asyncio.run(over_a_pipe()) == ("part", ids)


def test_one_listener_only(server, make_spec):
    with pytest.raises(ValueError, match="one process only"):
        run_block(server.target, make_spec("a"), processes=2, on_request=lambda done: None)


# ------------------------------------------------------------------ how many, and merging


def warm(cpu_share: float, elapsed_s: float = 2.0) -> BlockResult:
    return BlockResult(Stage.SEARCH, 64, 0, "p", 0.0, elapsed_s, (), ClientHealth(0.0, 0.0, cpu_share, 100))


@pytest.mark.parametrize(
    ("stated", "seen", "expected"),
    [
        (None, None, 1),
        (None, warm(0.1), 1),
        (None, warm(0.5), 1),
        (None, warm(0.51), 2),
        (None, warm(0.99), 2),
        (None, warm(0.99, elapsed_s=0.1), 1),  # too short to say anything
        (None, warm(2.6), 6),
        (None, warm(90.0), 8),  # as many as there are cores
        (3, None, 3),
        (3, warm(0.99), 3),  # stated, or found before: the same for every arm
        (1, warm(0.99), 1),
        (20, None, 8),
    ],
)
def test_how_many_processes(monkeypatch, make_spec, stated, seen, expected):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    spec = make_spec(*[f"t{i}" for i in range(70)], concurrency=64, client_processes=stated)
    assert processes_for(spec, seen) == expected
    assert processes_for(replace(spec, concurrency=1), seen) == 1  # one request at a time is one process's work


LATE = f"{health.CLIENT_LIMIT}: its event loop woke 9.0 ms late"


@pytest.mark.parametrize(
    ("processes", "cpu_share", "invalid", "expected"),
    [
        (1, 0.95, LATE, 2),
        (2, 0.30, LATE, 4),
        (1, 0.05, LATE, 1),  # late without work: the machine is busy with something else
        (2, 0.95, None, 2),
        (1, 0.95, f"{health.PATH_LIMIT}: it carries 9 chunks/s", 1),
        (2, 0.95, "9 of 12 requests succeeded", 2),
    ],
)
def test_more_processes_only_where_the_client_itself_was_the_limit(processes, cpu_share, invalid, expected):
    assert next_processes(ClientHealth(0.0, 0.0, cpu_share, 9, processes=processes), invalid) == expected


def test_parts_are_merged_by_the_worst_of_them(make_spec):
    def part(rows, lag, share) -> Part:
        return Part(tuple(rows), lag / 10, lag, share, 0.001 + lag, False, False)

    rows = [RequestRecord(i, f"p{i}", "code", 0.1 * i, 0.1, 1.0 + i, output_tokens=8, chunks=4) for i in range(4)]
    spec = make_spec("a", "b", "c", "d", concurrency=2)
    parts = [part(rows[1::2], 0.002, 0.3), part(rows[0::2], 0.004, 0.2)]
    of_two = {"started_at": 5.0, "prompt_format": "plain_text", "path_capacity": None, "processes": 2}
    fine = whole(spec, parts, **of_two)
    assert fine.invalid is None
    assert [r.index for r in fine.requests] == [0, 1, 2, 3]
    assert fine.elapsed_s == 4.0
    assert (fine.client.lag_p99_s, fine.client.cpu_share, fine.client.chunks) == (0.004, 0.3, 16)
    assert fine.client.rtt_s == pytest.approx(0.004)
    # One late process of two is a late client, though the other was in time.
    late = whole(spec, [parts[0], part(rows[0::2], 0.2, 0.2)], **of_two)
    assert late.invalid is not None
    assert "the client was the limit" in late.invalid
    assert json.loads(json.dumps(late.client.by_process))[1]["lag_p99_s"] == 0.2
    # Whoever is lost, the number asked for stays: the next block of the level is to have as many.
    for left in ([], parts[:1]):
        short = whole(spec, left, **of_two, lost="client process 2 of 2 was lost (exit status -9)")
        assert short.invalid == "client process 2 of 2 was lost (exit status -9)"
        assert next_processes(short.client, short.invalid) == short.client.processes == 2
