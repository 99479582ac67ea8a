"""What doctor says of this machine: every check where all is well, and where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sweep.cli import installation as module
from sweep.cli.check import Check
from sweep.cli.host_checks import check_host, ssh_key
from sweep.cli.installation import _database, _extra, _library, _ray_auth, _ray_room, installation
from sweep.config import Host


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_this_one_is_whole(tmp_path: Path) -> None:
    found = by_name(installation(f"sqlite:///{tmp_path / 'new.db'}"))
    assert {check.status for check in found.values()} == {"ok"}
    assert {"packages", "ray", "optuna", "extra parquet", "extra dashboard", "room for Ray", "database"} <= set(found)
    assert list(tmp_path.iterdir()) == []  # looked at, not made


@pytest.mark.parametrize(
    ("wanted", "status", "value"),
    [
        ("click>=8", "ok", "8."),
        ("click<8", "fail", ", not <8"),
        ("specsweep-has-no-such-part>=1", "fail", "missing"),
    ],
)
def test_library(wanted: str, status: str, value: str) -> None:
    found = _library(Requirement(wanted))
    assert found.status == status
    assert value in found.value
    assert found.advice == ("" if status == "ok" else f"pip install '{wanted}'")


def test_an_extra_may_be_absent_but_not_too_old() -> None:
    assert _extra("gp", [Requirement("specsweep-has-no-such-part>=1")]).status == "ok"
    assert "pip install 'specsweep[gp]'" in _extra("gp", [Requirement("specsweep-has-no-such-part>=1")]).value
    assert _extra("parquet", [Requirement("pyarrow<1")]).status == "warn"
    assert _extra("parquet", [Requirement("pyarrow>=1")]).value.startswith("pyarrow ")


def test_room_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ray_room().status == "ok"
    monkeypatch.setattr(module, "RAY_SHM_MIB", 1 << 40)
    assert _ray_room().status == "warn"
    assert "shm_size" in _ray_room().advice
    monkeypatch.setattr(module, "RAY_TEMP_MIB", 1 << 40)
    assert _ray_room().status == "fail"


@pytest.mark.parametrize(
    ("address", "mode", "status"),
    [(None, None, "ok"), ("10.0.0.1:6379", None, "warn"), ("10.0.0.1:6379", "token", "ok")],
)
def test_ray_auth(monkeypatch: pytest.MonkeyPatch, address: str | None, mode: str | None, status: str) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert _ray_auth(address).status == status


def test_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "a.db"
    assert _database(f"sqlite:///{there}").status == "ok"
    assert "not there yet" in _database(f"sqlite:///{there}").value
    there.write_bytes(b"x" * 3 * module.MIB)
    assert "3 MiB" in _database(f"sqlite:///{there}").value
    assert _database(f"sqlite:///{tmp_path}").status == "fail"
    assert _database(f"sqlite:///{tmp_path / 'no' / 'a.db'}").status == "fail"
    assert _database("nonsense").status == "fail"
    assert _database("postgresql+psycopg://u:p@h/d").value.startswith("not a file")
    monkeypatch.setattr(module, "LOW_DATABASE_MIB", 1 << 40)
    assert _database(f"sqlite:///{there}").status == "warn"


def test_a_database_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own files: not even root may make one there."""
    monkeypatch.chdir("/proc")
    found = _database("sqlite:///sweep.db")
    assert found.status == "fail"
    assert found.value.startswith("sweep.db cannot be written: ")


def test_ssh_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config, key = tmp_path / "config", tmp_path / "key"
    config.write_text(f"Host *\n  IdentityFile {key}\n")
    monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
    host = Host(name="gpu-a", ssh="gpu-a")
    assert ssh_key(host).status == "fail"
    assert ssh_key(host).value == "no key file and no agent"
    key.write_text("-")
    key.chmod(0o644)
    assert ssh_key(host).status == "warn"
    assert f"chmod 600 {key}" in ssh_key(host).advice
    key.chmod(0o600)
    assert (ssh_key(host).status, ssh_key(host).value) == ("ok", str(key))
    named = Host(name="gpu-a", ssh="gpu-a", key=str(tmp_path / "other"))
    assert (ssh_key(named).status, "there is no key file" in ssh_key(named).value) == ("fail", True)
    (tmp_path / "socket").touch()
    key.unlink()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "socket"))
    assert (ssh_key(host).status, ssh_key(host).value) == ("ok", "the agent")


def test_a_host_s_key_stands_among_its_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also, and above all, where it cannot be reached."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "config").write_text(f"Host *\n  IdentityFile {tmp_path / 'none'}\n")
    monkeypatch.setenv("SWEEP_SSH_CONFIG", str(tmp_path / "config"))
    away = Host(name="away", host="127.0.0.1", port=1)
    assert [(check.name, check.status) for check in check_host(away, None).checks] == [
        ("ssh key", "fail"),
        ("connection", "fail"),
    ]
    assert "ssh key" not in by_name(check_host(Host(name="here", kind="local"), None).checks)
