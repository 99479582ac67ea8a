"""What can go wrong while a study runs: a server's failures, a stolen port, a full disk. Each has words and an end."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_helpers import User, wait_for
from inline import Study, space

from sweep.errors import StoreError
from sweep.model import Verdict


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "private"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def here(base: Path) -> list[dict[str, Any]]:
    return [{"name": "here", "kind": "local", "gpus": [0], "base_dir": str(base)}]


def failing(kind: str, draft_tokens: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "when": {"num_draft_tokens": draft_tokens}, **more}


def running(base: Path) -> list[str]:
    """Processes whose servers' files lie below ``base``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"SPECSWEEP_BASE={base}".encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
    return found


def test_each_failure_has_its_verdict_and_the_good_arm_its_gain(tmp_path: Path) -> None:
    failures = [
        failing("exit_at_start", 6),
        failing("crash_after_tokens", 8, tokens=20),
        failing("hang_at_capture", 10),
        failing("oom_at_capture", 12),
    ]
    study = Study(tmp_path, space(here(tmp_path / "base"), sim={"failures": failures}, tokens=(6, 8, 10, 12), stall=3))
    assert study.run() == "finished"
    verdicts = {label: trial.verdict for label, trial in study.trials().items()}
    assert verdicts == {
        "3/1/4": Verdict.COMPLETE,
        "3/4/6": Verdict.CRASHED,
        "3/4/8": Verdict.CRASHED,
        "3/4/10": Verdict.LAUNCH_TIMEOUT,
        "3/4/12": Verdict.LAUNCH_OOM,
    }
    for label, trial in study.trials().items():
        assert bool(trial.values) == (label == "3/1/4")
        if trial.verdict is not Verdict.COMPLETE:
            assert trial.phase is not None
            assert trial.evidence
            assert trial.advice
    assert "simulated failure: exit at start" in (study.trials()["3/4/6"].evidence or "")
    assert running(tmp_path / "base") == []


def test_a_port_that_is_stolen_while_weights_load_costs_one_attempt(tmp_path: Path) -> None:
    """The server says that its address is in use; that is the surroundings' fault, and the arm is tried again."""
    base = tmp_path / "base"
    stolen: list[socket.socket] = []

    def thief() -> None:
        def port_of_a_candidate() -> int | None:
            for path in base.glob("*/runs/*/state.json"):
                with contextlib.suppress(OSError, ValueError, LookupError):
                    state = json.loads(path.read_text())
                    if "--speculative-algorithm" in state["argv"] and not state.get("finished"):
                        return int(state["port"])
            return None

        port = wait_for(port_of_a_candidate, 30.0)
        stolen.append(socket.create_server(("127.0.0.1", port)))

    thread = threading.Thread(target=thief)
    thread.start()
    study = Study(tmp_path, space(here(base), tokens=(4,)))
    try:
        assert study.run() == "finished"
    finally:
        thread.join()
        for taken in stolen:
            taken.close()
    assert study.status()["counts"] == {"complete": 2}
    reasons = [(launch.verdict, launch.reason) for launch in study.store.launches(study.row.id)]
    assert (Verdict.INFRA_ERROR, "port_in_use") in reasons
    assert sum(trial.attempt for trial in study.trials().values()) == 3


def test_a_stop_that_cannot_be_verified_is_seen_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server lives on, and its lease with it: the next launch is not made beside it."""
    from launchers.servers import HostServers
    from sweep.errors import HostError

    real, real_start = HostServers.stop, HostServers.start
    calls: list[str] = []
    beside: list[int] = []

    def stop(self: HostServers, server: Any, *, grace_s: float = 15.0) -> Any:
        calls.append(server.launch_id)
        if len(calls) == 1:
            raise HostError("here: the connection broke")
        return real(self, server, grace_s=grace_s)

    def start(self: HostServers, *args: Any) -> Any:
        beside.append(len(self.ps()))
        return real_start(self, *args)

    monkeypatch.setattr(HostServers, "stop", stop)
    monkeypatch.setattr(HostServers, "start", start)
    study = Study(tmp_path, space(here(tmp_path / "base"), tokens=(4,)))
    assert study.run() == "finished"
    events = study.store.events(study.row.id, kind="unclean_stop")
    assert [event.detail["why"] for event in events] == ["the stop was not verified: here: the connection broke"]
    assert any("the connection broke" in line for line in study.lines)
    assert len(beside) >= 4
    assert set(beside) == {0}
    assert study.status()["counts"] == {"complete": 2}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_the_study_with_nothing_running(tmp_path: Path, small_disk: Path) -> None:
    base = tmp_path / "base"
    study = Study(small_disk, space(here(base), tokens=(4, 6, 8)))
    filled = small_disk / "ballast"

    def fill() -> None:
        wait_for(lambda: study.store.events(study.row.id, kind="block"), 30.0)
        with contextlib.suppress(OSError), filled.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(b"0" * 4096)

    thread = threading.Thread(target=fill)
    thread.start()
    with pytest.raises(StoreError) as raised:
        study.run()
    thread.join()
    assert raised.value.exit_code == 3
    assert "full" in str(raised.value)
    wait_for(lambda: running(base) == [], 5.0)
    filled.unlink()
    assert study.run() == "finished"
    assert study.status()["counts"] == {"complete": 4}


def test_a_ray_address_where_nobody_is_ends_at_once(user: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    user.more_env["RAY_ADDRESS"] = address
    begun = time.monotonic()
    done = user.run("start", "smoke", "--simulate", exit_code=7)
    assert time.monotonic() - begun < 30
    assert address in done.stderr
    assert "RAY_ADDRESS" in done.stderr
    assert user.json("status")["state"] == "stopped"


@pytest.mark.parametrize(
    ("vocabulary", "reason", "words"),
    [(32000, "draft_target_mismatch", "The vocabularies differ"), (128256, "never_accepted", "window of 2048 tokens")],
)
def test_why_a_drafter_is_useless_is_read_from_the_models_on_the_host(
    tmp_path: Path, vocabulary: int, reason: str, words: str
) -> None:
    configs = {
        "model": {"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "max_position_embeddings": 131072},
        "head": {"architectures": ["X"], "vocab_size": vocabulary, "max_position_embeddings": 2048},
    }
    text = space(here(tmp_path / "base"), sim={"failures": [{"kind": "accept_length_one"}]}, tokens=(4,))
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        text = text.replace(f"path: org/{name}", f"path: {tmp_path / name}")
    study = Study(tmp_path, text)
    study.run()
    trial = study.trials()["3/1/4"]
    assert (trial.verdict, trial.reason) == (Verdict.DRAFTER_INEFFECTIVE, reason)
    assert words in (trial.advice or "")
