"""`sweep start --url` against real simulated server processes: measured, never launched, never ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.engines.sglang import SglangEngine
from launchers.engines.simulated import profile_text
from sweep.attached import Attached
from sweep.errors import UsageError

SERVER = Path(__file__).parents[2] / "launchers" / "simulated" / "server.py"
QUICK = ("--set", "workload.per_category=1", "--set", "workload.concurrency=[1]", "--set", "workload.max_tokens=16")
TREE = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/eagle3",
    "--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8",
)  # fmt: skip


def serve(folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], str]:
    """A ready simulated server of the quick profile and its URL."""
    folder.mkdir()
    (folder / "profile.json").write_text(profile_text("tiny"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, str(SERVER), "--profile", str(folder / "profile.json"), "--gpu-state", str(folder / "gpus"),
        "--model-path", "/models/target", "--host", "127.0.0.1", "--port", str(port), *flags,
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    deadline = time.monotonic() + 30
    while "ready to roll" not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return process, f"http://127.0.0.1:{port}"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URLs of (baseline, speculative); both must still run at the end."""
    baseline, first = serve(tmp_path / "baseline")
    tree, second = serve(tmp_path / "tree", *TREE)
    try:
        yield first, second
        assert baseline.poll() is None, "a server that is not ours was ended"
        assert tree.poll() is None, "a server that is not ours was ended"
    finally:
        for process in (baseline, tree):
            process.terminate()
            process.wait()


def start(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweep", "start", *options, "--db", f"sqlite:///{tmp_path / 'sweep.db'}"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)


def test_two_running_servers_are_compared(tmp_path: Path, servers: tuple[str, str]):
    baseline, tree = servers
    done = start(tmp_path, "--url", tree, "--baseline-url", baseline, "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    best = answer["best"][0]
    assert best["effective"]["num_draft_tokens"] == 8
    assert best["gain"]["basis"] == "alternate"
    assert best["gain"]["low"] < best["gain"]["estimate"] < best["gain"]["high"]
    assert best["accept_length"] > 1.05
    assert answer["baseline"]["by_objective"]["output_throughput@1"] > 0


def test_who_asked_is_told_at_the_end(
    tmp_path: Path, servers: tuple[str, str], webhook: tuple[str, list[bytes]]
) -> None:
    url, bodies = webhook
    listeners = ("--webhook", url, "--on-finish", 'cat > told.json; echo "$SWEEP_STUDY is $SWEEP_STATE"')
    done = start(tmp_path, "--url", servers[0], "--name", "mine", "--json", *listeners, *QUICK)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert json.loads((tmp_path / "told.json").read_text()) == answer
    assert [json.loads(body) for body in bodies] == [answer]
    assert "mine is finished" in done.stderr


def test_who_asked_is_told_why_nothing_was_measured(tmp_path: Path, webhook: tuple[str, list[bytes]]) -> None:
    url, bodies = webhook
    done = start(tmp_path, "--url", "http://127.0.0.1:9", "--name", "mine", "--webhook", url, *QUICK)
    assert done.returncode == 7
    (told,) = map(json.loads, bodies)
    assert (told["study"], told["state"]) == ("mine", "stopped")
    assert told["error"] in done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:9", "take http://HOST:PORT"),
        ("http://[::1", "take http://HOST:PORT"),
        ("http://127.0.0.1:port", "take http://HOST:PORT"),
        ("http://me:secret@127.0.0.1:9", "leave login and query out"),
        ("http://127.0.0.1:9/?key=secret", "leave login and query out"),
    ],
)
def test_a_url_that_may_not_be_stored_or_is_none(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Attached.ask(SglangEngine(), url, None)
    assert "secret" not in str(caught.value)


def test_a_single_server_has_figures_and_no_gain(tmp_path: Path, servers: tuple[str, str]):
    baseline, _ = servers
    done = start(tmp_path, "--url", baseline, "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["best"] == []
    assert answer["baseline"]["by_objective"]["output_throughput@1"] > 0


def test_a_speculating_baseline_and_equal_servers_are_refused(tmp_path: Path, servers: tuple[str, str]):
    baseline, tree = servers
    swapped = start(tmp_path, "--url", baseline, "--baseline-url", tree, *QUICK)
    assert swapped.returncode == 7
    assert "the baseline speculates" in swapped.stderr
    same = start(tmp_path, "--url", baseline, "--baseline-url", baseline, *QUICK)
    assert same.returncode == 7
    assert "same configuration" in same.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--url", "http://127.0.0.1:9"), 7, "does not say what it runs"),
        (("--url", "127.0.0.1:9"), 2, "take http://HOST:PORT"),
        (("--baseline-url", "http://127.0.0.1:9"), 2, "--baseline-url goes with --url"),
        ((), 2, "SPACE is missing"),
        (("--url", "http://127.0.0.1:9", "--simulate"), 2, "give one of them"),
    ],
)
def test_words_for_what_cannot_be_measured(tmp_path: Path, options: tuple[str, ...], code: int, words: str):
    done = start(tmp_path, *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
