"""doctor, ps and clean as a user runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, dead_holder, gone, launch, log_until, ours

from launchers.hosts.local import LocalSettings, LocalTransport
from sweep.cli.check import Check
from sweep.cli.host_checks import check_hosts
from sweep.cli.host_comparison import compared
from sweep.config import load_space

YAML = """
name: small
model: {path: MODEL}
server: {args: {tp-size: 1, attention-backend: triton}}
space:
  algorithm: [EAGLE3]
  draft_model: [{name: head, path: DRAFT}]
  num_steps: [3]
  topk: [4]
  num_draft_tokens: [8]
hosts: [HOSTS]
"""


def sweep(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweep", *argv], capture_output=True, text=True, input=stdin, timeout=90
    )


@pytest.fixture
def place(tmp_path: Path, private_home: Path) -> Path:
    """A folder with a stand-in for the engine's package, two models and an nvidia-smi that shows one GPU."""
    (tmp_path / "bin").mkdir()
    for name, architecture in (("target", "LlamaForCausalLM"), ("draft", "LlamaForCausalLMEagle3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    info = tmp_path / "site" / "sglang-0.5.17.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17\n")
    (tmp_path / "site" / "sglang").mkdir()
    (tmp_path / "site" / "sglang" / "__init__.py").write_text("__version__ = '0.5.17'\n")
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase \"$1\" in\n--query-gpu=*) echo '0, GPU-aa, NVIDIA H200, 143771, 4, 570.1';;\n"
        f"*) cat {tmp_path}/apps 2>/dev/null || true;;\nesac\n"
    )
    smi.chmod(0o755)
    return tmp_path


def space(place: Path, hosts: str, **values: str) -> str:
    text = YAML.replace("HOSTS", hosts)
    for name, value in {"MODEL": str(place / "target"), "DRAFT": str(place / "draft"), **values}.items():
        text = text.replace(name, value)
    path = place / "small.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def good(place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(place / "site"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    return f"{{name: here, kind: local, gpus: 1, base_dir: {place / 'base'}, python: {sys.executable}}}"


def lines(document: dict[str, Any], host: int = 0) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in document["hosts"][host]["checks"]}


class TestDoctor:
    def test_a_host_in_order(self, place: Path, good: str) -> None:
        done = sweep("doctor", space(place, good), "--json")
        assert done.returncode == 0, done
        document = json.loads(done.stdout)
        assert document["ok"] is True
        assert {c["name"]: c["status"] for c in document["installation"]}["packages"] == "ok"
        checks = lines(document)
        assert {c["status"] for name, c in checks.items() if name != "disk"} == {"ok"}, checks
        assert checks["gpus"]["value"] == "0: NVIDIA H200, driver 570.1"
        assert checks["engine"]["value"] == "sglang 0.5.17"
        assert checks["free GPU memory (MiB)"]["value"] == "0: 143767 of 143771"
        assert checks["draft model head"]["value"].startswith("LlamaForCausalLMEagle3, config ")
        assert checks["lock"]["value"] == "nobody holds the host"
        text = sweep("doctor", space(place, good))
        assert text.returncode == 0
        assert "host here" in text.stdout
        assert "FAIL" not in text.stdout

    def test_what_is_wrong_is_named(self, place: Path, good: str) -> None:
        bystander = subprocess.Popen(["sleep", "60"])
        (place / "apps").write_text(f"GPU-aa, {bystander.pid}, 1000\n")
        (place / "site" / "sglang" / "__init__.py").unlink()
        for path in (place / "site" / "sglang-0.5.17.dist-info").iterdir():
            path.unlink()
        (place / "site" / "sglang-0.5.17.dist-info").rmdir()
        hosts = good.replace("gpus: 1", "gpus: 2") + ", {name: away, host: 127.0.0.1, port: 1}"
        try:
            done = sweep("doctor", space(place, hosts, DRAFT=str(place / "none"), MODEL="org/model"), "--json")
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()
        assert done.returncode == 7
        assert "2 of 2 hosts cannot be used: here, away" in done.stderr
        document = json.loads(done.stdout)
        assert document["ok"] is False
        checks = lines(document)
        assert {name for name, c in checks.items() if c["status"] == "fail"} == {
            "gpus", "other GPU processes", "engine", "draft model head",
        }  # fmt: skip
        assert f"pid {bystander.pid} of " in checks["other GPU processes"]["value"]
        assert "(sleep, 1000 MiB)" in checks["other GPU processes"]["value"]
        assert "[1] asked for" in checks["gpus"]["advice"]
        assert checks["target model"]["status"] == "warn"
        assert "connection refused" in lines(document, 1)["connection"]["value"]

    def test_one_host_of_several(self, place: Path, good: str) -> None:
        path = space(place, good + ", {name: away, host: 127.0.0.1, port: 1}")
        assert sweep("doctor", path, "--host", "here").returncode == 0
        assert sweep("doctor", path, "--host", "away").returncode == 7

    def test_installation_alone(self) -> None:
        done = sweep("doctor", "--json")
        assert done.returncode == 0
        document = json.loads(done.stdout)
        assert document["hosts"] == []
        assert {"ray", "optuna", "paramiko"} <= {check["name"] for check in document["installation"]}

    @pytest.mark.ssh
    def test_over_ssh(self, place: Path, good: str, shared_sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(shared_sshd.client_config))
        host = (
            f"{{name: gpu-a, ssh: gpu-a, gpus: 1, base_dir: {place / 'base'}, activate: 'PATH={place / 'bin'}:$PATH; "
        )
        host += f"export PYTHONPATH={place / 'site'}'}}"
        done = sweep("doctor", space(place, host), "--json")
        checks = lines(json.loads(done.stdout))
        assert checks["connection"]["status"] == "ok"
        assert "(ssh)" in checks["connection"]["value"]
        assert checks["engine"]["value"] == "sglang 0.5.17"
        assert done.returncode == 0, checks

    @pytest.mark.ssh
    def test_modules_that_every_launch_compiles(
        self, place: Path, good: str, shared_sshd: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Over SSH, where `activate` forbids to keep what was compiled: until the command that it names was run."""
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(shared_sshd.client_config))

        def said(activate: str, env: str = "") -> Check:
            host = f"{{name: gpu-a, ssh: gpu-a, gpus: 1, base_dir: {place / 'base'}, activate: '{activate}'}}"
            path = Path(space(place, host))
            path.write_text(path.read_text().replace("server: {", f"server: {{{env}"))
            spec = load_space(path)
            (looked,) = check_hosts(spec.hosts, spec)
            (found,) = [check for check in looked.checks if check.name == "byte code"]
            return found

        enter = f"PATH={place / 'bin'}:{Path(sys.executable).parent}:$PATH; export PYTHONPATH={place / 'site'}"
        assert said(enter).status == "ok", "the first launch will compile it"
        assert said(enter, 'env: {PYTHONDONTWRITEBYTECODE: "1"}, ').status == "warn"
        warned = said(f"{enter} PYTHONDONTWRITEBYTECODE=1")
        assert warned.status == "warn"
        assert "0 of 1 modules of sglang" in warned.value
        assert "PYTHONDONTWRITEBYTECODE is set" in warned.value
        command = warned.advice.partition("Run once there: ")[2].partition("; and unset")[0]
        subprocess.run(command, shell=True, check=True, timeout=60)
        mended = said(f"{enter} PYTHONDONTWRITEBYTECODE=1")
        assert mended.status == "ok"
        assert "1 of 1" in mended.value

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the disk that cannot be written to")
    def test_modules_in_a_folder_that_nobody_may_write_to(self, place: Path, good: str) -> None:
        site = str(place / "site")
        subprocess.run(["mount", "--bind", site, site], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", site], check=True)
            spec = load_space(space(place, good))
            (looked,) = check_hosts(spec.hosts, spec)
            (found,) = [check for check in looked.checks if check.name == "byte code"]
        finally:
            subprocess.run(["umount", "-l", site], check=True)
        assert found.status == "warn"
        assert "may not be written to" in found.value
        assert "unset" not in found.advice

    @pytest.mark.ssh
    def test_hosts_beside_each_other(
        self, place: Path, good: str, shared_sshd: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two hosts whose models, engine and GPUs are others under the same names; then two that are alike."""
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(shared_sshd.client_config))
        there = place / "there"
        for folder in ("site", "bin", "target", "draft"):
            shutil.copytree(place / folder, there / folder)
        (there / "site" / "sglang-0.5.17.dist-info").rename(there / "site" / "sglang-0.5.23.dist-info")
        metadata = there / "site" / "sglang-0.5.23.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("0.5.17", "0.5.23"))
        smi = there / "bin" / "nvidia-smi"
        smi.write_text(smi.read_text().replace("H200", "H100").replace("570.1", "575.2"))
        (there / "draft" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle"]}))
        for home, size in ((place, 10), (there, 11)):
            (home / "target" / "model-1.safetensors").write_bytes(b"x" * 5)
            (home / "target" / "model-2.safetensors").write_bytes(b"x" * size)
        (there / "target" / "model-3.safetensors").touch()

        def hosts(*homes: Path) -> str:
            entries = []
            for number, home in enumerate(homes):
                enter = f"PATH={home / 'bin'}:{Path(sys.executable).parent}:$PATH; export PYTHONPATH={home / 'site'}"
                base = f"gpus: 1, base_dir: {place / f'base{number}'}, activate: '{enter} HOME={home}'"
                entries.append(f"{{name: gpu-{number}, ssh: gpu-a, {base}}}")
            return ", ".join(entries)

        models = {"MODEL": "~/target", "DRAFT": "~/draft"}
        done = sweep("doctor", space(place, hosts(place, there), **models), "--json")
        assert done.returncode == 0, done
        found = {check["name"]: (check["status"], check["value"]) for check in json.loads(done.stdout)["across_hosts"]}
        assert found.pop("draft model head: config")[0] == "warn"
        assert found == {
            "engine": ("warn", "0.5.17 on gpu-0; 0.5.23 on gpu-1"),
            "GPU": ("warn", "NVIDIA H200 on gpu-0; NVIDIA H100 on gpu-1"),
            "driver": ("warn", "570.1 on gpu-0; 575.2 on gpu-1"),
            "target model: config": ("ok", found["target model: config"][1]),
            "target model: weights": (
                "warn", "model-2.safetensors (and 1 more): 10 bytes on gpu-0; 11 bytes on gpu-1",
            ),
        }  # fmt: skip
        spec = load_space(space(place, hosts(place, place), **models))
        looked = check_hosts(spec.hosts, spec)
        assert {check.status for check in compared(looked, spec)} == {"ok"}
        assert compared(looked[:1], spec) == []


class TestPsAndClean:
    def test_left_over_servers(self, make_servers: Make, private_home: Path, tmp_path: Path) -> None:
        """A controller was killed; its server is listed, and ended only on request."""
        before = make_servers(
            LocalTransport(LocalSettings("here")), base_dir=None, holder=dead_holder(), study="old study"
        )
        before.prepare()
        server = before.start(launch(), "12")
        log_until(before, server, b"ready")
        listed = json.loads(sweep("ps", "local", "--json").stdout)
        assert [(f["study"], f["launch"], f["pid"], f["server_alive"]) for f in listed["found"]] == [
            ("old-study", "12", server.pid, True)
        ]
        assert listed["holder"]["study"] == "old study"
        refused = sweep("clean", "local", stdin="n\n")
        assert f"  {server.pid}  python" in refused.stdout
        assert refused.returncode == 130
        assert not gone(server.pid)
        done = sweep("clean", "local", "--yes", "--json")
        assert done.returncode == 0, done
        assert [f["launch"] for f in json.loads(done.stdout)["ended"]] == ["12"]
        assert gone(server.pid)
        assert ours(tmp_path) == []

    def test_clean_is_refused_while_a_controller_lives(self, make_servers: Make, private_home: Path) -> None:
        servers = make_servers(LocalTransport(LocalSettings("here")), base_dir=None, study="live")
        servers.prepare()
        server = servers.start(launch(), "1")
        done = sweep("clean", "local", "--yes")
        assert done.returncode == 6
        assert f"held by study 'live', process {os.getpid()} of " in done.stderr
        assert "`sweep stop live`" in done.stderr
        assert not gone(server.pid)
        servers.renew()

    def test_host_of_a_search_space(self, place: Path, good: str) -> None:
        done = sweep("ps", "here", "--space", space(place, good))
        assert done.returncode == 0
        assert done.stdout == "here: nobody holds it\nnothing of ours runs there\n"

    def test_host_that_is_not_there(self) -> None:
        done = sweep("ps", "no-such-host.invalid")
        assert done.returncode == 7
        assert "cannot be resolved" in done.stderr
