"""Hosts that work together, and hosts that cannot be used: each says why, and the study goes on elsewhere or ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e_helpers import User
from inline import Study, foreign_gpu_process, gpu_state, space
from sshd import Sshd, free_port

from launchers import path_capacity
from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.locks import Owner, start_time, this_holder
from launchers.servers import HostServers
from sweep.bench import health
from sweep.errors import BusyError, HostError
from sweep.model import Verdict
from sweep.seams import HostTools

Make = Callable[..., Sshd]


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "private"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


def ssh_host(name: str, base: Path, **more: Any) -> dict[str, Any]:
    return {"name": name, "ssh": name, "gpus": [0], "python": sys.executable, "base_dir": str(base / name), **more}


def local_host(base: Path, name: str = "here") -> dict[str, Any]:
    return {"name": name, "kind": "local", "gpus": [0], "base_dir": str(base / name)}


def one_config(tmp_path: Path, servers: list[Sshd]) -> Path:
    """One ssh configuration that knows all these servers."""
    path = tmp_path / "ssh_config"
    path.write_text("\n".join(server.client_config.read_text().split("Host *")[0] for server in servers))
    known = "".join(server.known_hosts.read_text() for server in servers)
    (tmp_path / "known_hosts").write_text(known)
    with path.open("a") as config:
        config.write(f"\nHost *\n  UserKnownHostsFile {tmp_path / 'known_hosts'}\n  GlobalKnownHostsFile none\n")
    return path


@pytest.mark.ssh
@pytest.mark.ray
def test_two_hosts_are_busy_at_once_with_different_configurations(
    user: User, tmp_path: Path, sshd_factory: Make
) -> None:
    servers = [sshd_factory("gpu-a"), sshd_factory("gpu-b")]
    user.more_env["SWEEP_SSH_CONFIG"] = str(one_config(tmp_path, servers))
    base = user.home / "bases"
    yaml = user.home / "two.yaml"
    yaml.write_text(space([ssh_host("gpu-a", base), ssh_host("gpu-b", base)], tokens=(4, 6, 8, 12)))
    answer = user.json("start", str(yaml))
    assert answer["state"] == "finished"
    assert answer["counts"] == {"complete": 5}

    spans = user.query(
        "select l.host, a.key, l.started_at, l.ended_at from launches l join arms a on a.id = l.arm_id"
        " where l.trial_id is not null and l.verdict = 'complete'"
    )
    assert {host for host, *_ in spans} == {"gpu-a", "gpu-b"}
    assert len({key for _, key, *_ in spans}) == len(spans) == 5  # no configuration twice
    overlaps = [
        (a, b)
        for host_a, a, begin_a, end_a in spans
        for host_b, b, begin_b, end_b in spans
        if host_a < host_b and begin_a < end_b and begin_b < end_a
    ]
    assert overlaps
    assert not [row for row in user.query("select flags from trials") if "neighbours" in row[0]], (
        "machines of their own"
    )


@pytest.mark.ssh
def test_each_unusable_host_says_why_and_the_others_go_on(
    tmp_path: Path, sshd_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_key, unknown, no_python = sshd_factory("wrong-key"), sshd_factory("unknown"), sshd_factory("no-python")
    (wrong_key.folder / "authorized_keys").write_text("")
    unknown.known_hosts.write_text("")
    monkeypatch.setenv("SWEEP_SSH_CONFIG", str(one_config(tmp_path, [wrong_key, unknown, no_python])))
    dead = {"name": "dead", "host": "127.0.0.1", "port": free_port(), "gpus": [0], "python": sys.executable}
    base = tmp_path / "bases"
    bad = [
        ssh_host("wrong-key", base),
        ssh_host("unknown", base),
        ssh_host("no-python", base, python="/no/such/python"),
        dead,
    ]
    reasons = {
        "wrong-key": "key",
        "unknown": "ssh-keyscan",
        "no-python": "/no/such/python",
        "dead": "refused",
    }

    study = Study(tmp_path, space([*bad, local_host(base)]))
    assert study.run() == "finished"
    assert {trial.verdict for trial in study.trials().values()} == {Verdict.COMPLETE}
    hosts = {host["name"]: host for host in study.status()["hosts"]}
    assert hosts["here"]["state"] == "idle"
    for name, words in reasons.items():
        assert hosts[name]["state"] == "set_aside"
        assert words in hosts[name]["note"]

    (tmp_path / "alone").mkdir()
    alone = Study(tmp_path / "alone", space(bad))
    with pytest.raises(HostError) as raised:
        alone.run()
    assert raised.value.exit_code == 7
    for name, words in reasons.items():
        assert f"  {name}: " in str(raised.value)
        assert words in str(raised.value)
    assert alone.status()["state"] == "stopped"


@pytest.mark.ssh
def test_a_path_that_cannot_carry_the_load_sets_its_host_aside_at_once(
    tmp_path: Path, sshd_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same path for every attempt: one baseline shows it, and the study goes on elsewhere."""
    narrow = sshd_factory("narrow")
    monkeypatch.setenv("SWEEP_SSH_CONFIG", str(one_config(tmp_path, [narrow])))
    monkeypatch.setattr(path_capacity, "measure", lambda *_: 1.0)
    monkeypatch.setattr(health, "LAG_P99_LIMIT_S", 60.0)  # whether this machine is busy is no question here
    base = tmp_path / "bases"
    study = Study(tmp_path, space([ssh_host("narrow", base), local_host(base)]))
    assert study.run() == "finished"
    hosts = {host["name"]: host for host in study.status()["hosts"]}
    assert hosts["narrow"]["state"] == "set_aside"
    assert "the path to the server was the limit: it carries 1 chunks/s" in hosts["narrow"]["note"]
    launches = [launch for launch in study.store.launches(study.row.id) if launch.host == "narrow"]
    assert [(launch.verdict, launch.reason) for launch in launches] == [(Verdict.MEASUREMENT_INVALID, "path_limit")]
    assert {trial.host for trial in study.trials().values()} == {"here"}


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is not ours."""
    process = subprocess.Popen(["sleep", "300"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_gpu_in_use_by_someone_else_is_left_alone(tmp_path: Path, stranger: int) -> None:
    base = tmp_path / "bases"
    study = Study(tmp_path, space([local_host(base)]))
    with foreign_gpu_process(gpu_state(base / "here"), stranger), pytest.raises(HostError) as raised:
        study.run()
    assert f"pid {stranger}" in str(raised.value)
    assert "9000 MiB" in str(raised.value)
    assert Path(f"/proc/{stranger}").exists()
    assert study.status()["state"] == "stopped"
    assert study.trials() == {}  # the baseline could not be measured, so no candidate was taken
    assert study.run() == "finished"  # the GPU is free again: the same study carries on
    assert study.status()["counts"] == {"complete": 3}


def test_a_second_study_on_a_busy_host_is_told_who_holds_it(tmp_path: Path, stranger: int) -> None:
    base = tmp_path / "bases" / "here"
    start = start_time(stranger)
    assert start is not None
    other = Owner("night-run", replace(this_holder(), pid=stranger, start_time=start))
    transport = LocalTransport(LocalSettings("here"))
    tools = HostTools(gpu_query=("no-nvidia-smi-here",))
    first = HostServers(transport, tools=tools, python=sys.executable, base_dir=str(base), owner=other)
    first.prepare()
    study = Study(tmp_path, space([local_host(base.parent)]))
    with pytest.raises(BusyError) as raised:
        study.run()
    assert raised.value.exit_code == 6
    assert "'night-run'" in str(raised.value)
    assert f"process {stranger}" in str(raised.value)
    first.close()
    assert study.run() == "finished"
