"""Processes, signals and GPU memory as an operator sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SMI = Path(__file__).parents[2] / "launchers" / "simulated" / "nvidia_smi.py"


def smi(state: Path, *options: str) -> str:
    command = [sys.executable, str(SMI), "--state", str(state), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def apps(state: Path) -> list[list[str]]:
    out = smi(state, "--gpus", "2", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
    return [line.split(", ") for line in out.splitlines()]


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def gone(pid: int, timeout: float = 3.0) -> bool:
    end = time.monotonic() + timeout
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)


def test_children_have_sglangs_titles_and_keep_the_marker(launch: Any) -> None:
    server = launch("--tp-size", "2").ready()
    titles = sorted(cmdline(pid) for pid in server.children())
    assert titles == ["sglang::detokenizer", "sglang::scheduler_TP0", "sglang::scheduler_TP1"]
    for pid in server.children():
        assert b"MARKER=specsweep-test" in Path(f"/proc/{pid}/environ").read_bytes()
        assert Path(f"/proc/{pid}/comm").read_text().startswith("sglang::")


def test_without_spt_noenv_the_marker_is_lost(launch: Any) -> None:
    server = launch(env={"SPT_NOENV": ""}).ready()
    for pid in server.children():
        assert b"MARKER" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"MARKER" in Path(f"/proc/{server.process.pid}/environ").read_bytes()


def test_memory_is_shown_per_pid_while_alive(launch: Any) -> None:
    server = launch("--tp-size", "2", "--mem-fraction-static", "0.5").ready()
    rows = apps(server.state)
    schedulers = [pid for pid in server.children() if "scheduler" in cmdline(pid)]
    assert sorted(int(pid) for _, pid, _ in rows) == schedulers
    assert all(9_000 < int(mib) < 16_000 for _, _, mib in rows)
    used = smi(server.state, "--query-gpu=index,memory.used,name,uuid", "--format=csv,noheader,nounits")
    assert [line.split(", ")[0] for line in used.splitlines()] == ["0", "1"]
    assert used.splitlines()[0].split(", ")[1] == rows[0][2]
    os.kill(server.process.pid, signal.SIGKILL)
    server.exit()
    assert all(gone(pid, 0.5) for pid in schedulers)
    assert apps(server.state) == []


def test_cuda_visible_devices_choose_the_gpu(launch: Any) -> None:
    server = launch(env={"CUDA_VISIBLE_DEVICES": "1"}).ready()
    first, second = smi(server.state, "--gpus", "2", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()
    assert int(first) == 0 < int(second)


def test_a_second_server_finds_less_memory(launch: Any, tmp_path: Path) -> None:
    launch("--mem-fraction-static", "0.5", state=tmp_path / "host").ready()
    second = launch("--mem-fraction-static", "0.5", "--max-total-tokens", "2048", state=tmp_path / "host").ready()
    assert second.json("GET", "/server_info")["max_total_num_tokens"] == 2048
    assert "Load weight begin. avail mem=22.69 GB" not in second.text()


def test_sigterm_drains_then_ends_as_minus_nine(launch: Any) -> None:
    server = launch().ready()
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.exit() == -9
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in server.text()
    assert "Gracefully exiting... Remaining number of requests 0." in server.text()


def test_group_term_ends_everything(launch: Any) -> None:
    server = launch("--tp-size", "2").ready()
    children = server.children()
    os.killpg(server.process.pid, signal.SIGTERM)
    assert server.exit() == -9
    assert all(gone(pid) for pid in children)


def test_sigterm_during_load(launch: Any) -> None:
    server = launch(sim={"failures": [{"kind": "hang_at_load"}]})
    server.wait_for("Using default HuggingFace chat template")
    time.sleep(0.2)
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.exit() == -15


def test_a_dead_scheduler_takes_the_server_down(launch: Any) -> None:
    server = launch().ready()
    os.kill(next(pid for pid in server.children() if "scheduler" in cmdline(pid)), signal.SIGKILL)
    assert server.exit() == -9
    assert "crashed with exit code -9" in server.text()


def test_ignore_term(launch: Any) -> None:
    server = launch(sim={"failures": [{"kind": "ignore_term"}]}).ready()
    os.kill(server.process.pid, signal.SIGTERM)
    time.sleep(0.4)
    assert server.generate(max_new_tokens=4)["text"]


@pytest.mark.parametrize("kind", ["fork_away", "escape_session"])
def test_runaways_outlive_the_launcher_and_hold_memory(launch: Any, kind: str) -> None:
    server = launch(sim={"failures": [{"kind": kind}]}).ready()
    held = {int(pid) for _, pid, _ in apps(server.state)}
    (runaway,) = held - set(server.children())
    try:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.exit()
        time.sleep(0.1)
        if kind == "fork_away":  # still in the server's process group
            assert gone(runaway)
            assert apps(server.state) == []
        else:
            assert os.getsid(runaway) != server.process.pid
            assert [int(pid) for _, pid, _ in apps(server.state)] == [runaway]
            assert b"MARKER=specsweep-test" in Path(f"/proc/{runaway}/environ").read_bytes()
    finally:
        if not gone(runaway, 0.0):
            os.kill(runaway, signal.SIGKILL)


def test_unknown_field_is_refused_in_nvidia_smis_words(tmp_path: Path) -> None:
    command = [sys.executable, str(SMI), "--state", str(tmp_path), "--query-gpu=index,nonsense", "--format=csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'Field "nonsense" is not a valid field to query.' in done.stdout


def test_processes_start_quickly(launch: Any) -> None:
    begin = time.monotonic()
    server = launch("--tp-size", "2").ready()
    scaled = 6 * 0.02  # the tiny profile's phases
    assert time.monotonic() - begin - scaled < 1.0  # 0.25 s on an idle machine
    assert server.process.poll() is None
