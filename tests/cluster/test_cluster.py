"""Studies on a Ray cluster that is there already: who lives where, what is refused, and a node that is lost."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_helpers import Cluster, Driver, wait_for
from sshd import Sshd

NOWHERE = "nowhere.invalid"  # no SSH can reach it


def test_an_owner_lives_on_the_node_that_is_its_host(cluster: Cluster, driver: Driver) -> None:
    """The node says by a resource that it is gpu-a: the launches are local there, though the YAML says SSH."""
    node = cluster.add("gpu-a", **{"specsweep-host:gpu-a": 1.0})
    driver.write([{"name": "gpu-a", "host": NOWHERE, "gpus": 1}])
    out, _ = driver.run("start", "space.yaml", "--json")
    assert json.loads(out)["counts"] == {"complete": 3}
    facts = json.loads(driver.query("SELECT facts FROM hosts")[0][0])
    assert facts["kind"] == "local"
    folders = {row[0] for row in driver.query("SELECT run_dir FROM launches")}
    assert folders
    assert all(folder.startswith(f"{node.home}/.specsweep/") for folder in folders), "started by that very node"
    wait_for(lambda: not [pid for pid in node.pids() if b"SPECSWEEP_MARKER=" in environ(pid)], 20)
    node.end()


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_lost_node_costs_its_host_and_no_trial(cluster: Cluster, driver: Driver) -> None:
    """Its processes die with it; the trial it had is tried again on the other host, and the study says so."""
    lost = cluster.add("gpu-c", **{"specsweep-host:gpu-c": 1.0})
    kept = cluster.add("gpu-d", **{"specsweep-host:gpu-d": 1.0})
    driver.write(
        [{"name": "gpu-c", "host": NOWHERE, "gpus": 1}, {"name": "gpu-d", "host": NOWHERE, "gpus": 1}],
        simulate={"profile": "tiny", "time_scale": 8.0},
    )
    process = driver.spawn("start", "space.yaml", "--json")
    try:
        measuring = (
            "SELECT 1 FROM events e JOIN launches l ON l.id = json_extract(e.detail, '$.launch') "
            "WHERE e.kind = 'block' AND l.host = 'gpu-c' AND l.trial_id NOT NULL"
        )
        wait_for(lambda: driver.query(measuring) or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()
        lost.end()
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err[-3000:]
    assert json.loads(out)["counts"] == {"complete": 3}
    states = dict(driver.query("SELECT name, state FROM hosts"))
    assert states == {"gpu-c": "set_aside", "gpu-d": "idle"}
    assert driver.query("SELECT count(*) FROM launches WHERE reason = 'host_lost' AND host = 'gpu-c'") == [(1,)]
    attempts: list[tuple[Any, ...]] = driver.query("SELECT attempt, host FROM trials WHERE attempt > 1")
    assert attempts == [(2, "gpu-d")]
    wait_for(lambda: not [pid for pid in kept.pids() if b"SPECSWEEP_MARKER=" in environ(pid)], 20)
    kept.end()


def test_a_host_that_is_no_node_is_reached_by_ssh(
    cluster: Cluster, driver: Driver, sshd_factory: Callable[..., Sshd], tmp_path: Path
) -> None:
    """From whatever node its owner lives on, with the SSH configuration of that node's user. A node was lost just now,
    and for half a minute Ray goes on placing owners there."""
    server = sshd_factory("gpu-b")
    shutil.copy(server.client_config, cluster.nodes[0].home / "ssh_config")
    host = {"name": "gpu-b", "ssh": "gpu-b", "gpus": 1, "base_dir": str(tmp_path / "far"), "python": sys.executable}
    driver.write([host], budget={"trials": 1})
    driver.run("start", "space.yaml", "--json")
    assert driver.query("SELECT verdict FROM trials") == [("complete",)]
    assert json.loads(driver.query("SELECT facts FROM hosts")[0][0])["kind"] == "ssh"


@pytest.mark.parametrize(
    ("backlog", "words"), [(None, "no Ray cluster at {}"), (128, "something listens at {}, but no Ray head answered")]
)
def test_nobody_there(driver: Driver, backlog: int | None, words: str) -> None:
    """Neither for `start` nor for `resume`: a port that nobody has, and one whose owner never says a word."""
    driver.write([{"name": "here", "kind": "local", "gpus": 1}])
    here = "127.0.0.2"  # for 127.0.0.1 Ray puts the machine's own address
    with socket.create_server((here, 0), backlog=backlog) as server:
        address = f"{here}:{server.getsockname()[1]}"
        if backlog is None:
            server.close()
        for command in (("start", "space.yaml"), ("resume",)):
            begun = time.monotonic()
            _, err = driver.run(*command, exit_code=7, RAY_ADDRESS=address)
            assert time.monotonic() - begun < 30
            assert words.format(address) in err
            assert "Traceback" not in err


@pytest.mark.parametrize(("token", "words"), [("f" * 48, "token is missing or incorrect"), ("", "no token to show")])
def test_wrong_token(driver: Driver, token: str, words: str) -> None:
    driver.write([{"name": "here", "kind": "local", "gpus": 1}])
    begun = time.monotonic()
    _, err = driver.run("start", "space.yaml", exit_code=7, RAY_AUTH_TOKEN=token)
    assert time.monotonic() - begun < 20
    assert words in err
    assert "Check the token: RAY_AUTH_TOKEN" in err
    assert "Traceback" not in err


def test_other_versions_are_named(driver: Driver) -> None:
    """A driver that believes it is another Ray, against the real cluster."""
    driver.write([{"name": "here", "kind": "local", "gpus": 1}])
    lie = "import ray\nray.__version__ = '2.59.0'"
    _, err = driver.run("start", "space.yaml", exit_code=7, code=lie)
    assert "Version mismatch" in err
    assert "Ray: 2.59.0" in err
    assert "Traceback" not in err


def test_a_local_host_is_the_controllers_machine(cluster: Cluster, driver: Driver) -> None:
    """Not that of whichever node has room: the owner lives on the node the controller joined."""
    driver.write([{"name": "here", "kind": "local", "gpus": 1}], budget={"trials": 1})
    driver.run("start", "space.yaml", "--json")
    folders = {row[0] for row in driver.query("SELECT run_dir FROM launches")}
    assert all(folder.startswith(f"{cluster.nodes[0].home}/") for folder in folders)
