"""The commands of docs/operations.md for a host without this tool."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, ended, gone, launch, log_until, ours, wait_for

from launchers.hosts.local import LocalSettings, LocalTransport

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def commands() -> str:
    """The page's shell fence that looks for our marker."""
    fences = [part.partition("```")[0] for part in PAGE.read_text().split("```sh\n")[1:]]
    (fence,) = [fence for fence in fences if "SPECSWEEP_MARKER" in fence]
    return fence


def the_loop() -> str:
    """Of these commands the one that shows every process with our marker."""
    _, head, rest = commands().partition("for p in")
    return head + rest.partition("done\n")[0] + "done\n"


def shell(text: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=30, **options)


def test_what_the_page_says_to_do_without_this_tool(make_servers: Make, tmp_path: Path) -> None:
    servers = make_servers(LocalTransport(LocalSettings("here")))
    servers.prepare()
    note = tmp_path / "pid"
    server = servers.start(launch("--escape", "session", "--pid-file", str(note)), "1")
    log_until(servers, server, b"ready")
    child = int(wait_for(lambda: note.exists() and note.read_text()))
    listed = shell(the_loop()).stdout
    mine = [line.split(" ", 2) for line in listed.splitlines() if server.marker in line]
    assert {int(pid) for pid, _, _ in mine} >= {server.pid, child}
    assert {marker for _, marker, _ in mine} == {f"SPECSWEEP_MARKER={server.marker}"}
    look = next(line for line in commands().splitlines() if line.startswith("ps "))
    (guard,) = [line for line in shell(look).stdout.splitlines() if str(tmp_path / "base") in line]
    recorded = json.loads(Path(server.run_dir, "state.json").read_text())["supervisor"]["pid"]
    assert int(guard.split()[0]) == recorded
    assert shell(f"kill {recorded}").returncode == 0
    assert ended(servers, server).reason == "stopped"
    wait_for(lambda: gone(child) and gone(recorded))
    assert ours(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_another_users_processes_are_passed_over_in_silence() -> None:
    done = shell(the_loop(), user=65534, group=65534, extra_groups=[])
    assert done.stderr == ""
