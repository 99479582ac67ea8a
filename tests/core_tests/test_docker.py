"""What can be said of the container files without an engine; tests/e2e_tests/test_containers.py runs what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from compose_spec import PyCompose
from packaging.requirements import Requirement

from sweep.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = ("Dockerfile", "host.Dockerfile")
COMPOSE = ("compose.yaml", "compose.gpu.yaml")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(name: str) -> list[list[str]]:
    """The Dockerfile's instructions in words, continued lines joined."""
    text = (DOCKER / name).read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]


def copied(name: str) -> list[str]:
    """What is copied from the build context."""
    found = [words for words in instructions(name) if words[0] == "COPY" and not words[1].startswith("--from")]
    return [source for words in found for source in words[1:-1]]


def compose(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return document


def interpolated(text: str) -> str:
    """With every variable's default, a path where the reader has to give one, and `~`: compose does so first."""
    text = re.sub(r"\$\{[A-Z_]+:(-|\?)([^}]*)\}", lambda m: m[2] if m[1] == "-" else "./given", text)
    return text.replace("~/", "/srv/user/")


def lint(tool: str, *files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([Path(sys.executable).with_name(tool), *files], capture_output=True, text=True)


class TestDockerfiles:
    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_hadolint_finds_nothing(self, name: str) -> None:
        done = lint("hadolint", DOCKER / name)
        assert (done.returncode, done.stdout) == (0, "")

    def test_hadolint_would(self, tmp_path: Path) -> None:
        bad = tmp_path / "Dockerfile"
        bad.write_text("FROM debian\nRUN cd /tmp\n")
        done = lint("hadolint", bad)
        assert done.returncode == 1
        assert "DL3006" in done.stdout

    def test_shellcheck_finds_nothing(self) -> None:
        done = lint("shellcheck", *sorted(DOCKER.glob("*.sh")), ROOT / ".ci" / "run")
        assert (done.returncode, done.stdout) == (0, "")

    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_every_source_exists_and_is_in_the_context(self, name: str) -> None:
        assert [source for source in copied(name) if not (ROOT / source).exists()] == []
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
        assert "*" in ignored
        assert [source for source in copied(name) if source.split("/")[0] not in kept] == []

    def test_every_package_is_copied(self) -> None:
        packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        assert {*packages, "pyproject.toml", PROJECT["project"]["readme"]} <= set(copied("Dockerfile"))

    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_runs_as_a_numbered_user_who_is_not_root(self, name: str) -> None:
        users = [words[1] for words in instructions(name) if words[0] == "USER"]
        assert users[-1].isdigit()
        assert int(users[-1]) > 0

    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_base_images_are_exact(self, name: str) -> None:
        words = instructions(name)
        defaults = dict(word.split("=", 1) for first, word, *_ in words if first == "ARG")
        bases = [re.sub(r"\$\{(\w+)\}", lambda m: defaults[m[1]], w[1]) for w in words if w[0] == "FROM"]
        assert bases
        for base in bases:
            assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", base), base

    def test_constraints_fit_what_the_package_asks_for(self) -> None:
        """Every dependency, and theirs as installed here, has one exact version that is allowed."""
        lines = (DOCKER / "constraints.txt").read_text().splitlines()
        pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
        pinned = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
        open_ones = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
        seen: set[str] = set()
        while open_ones:
            wanted = open_ones.pop()
            name = wanted.name.lower().replace("_", "-")
            assert name in pinned, f"{name} is not pinned"
            assert wanted.specifier.contains(pinned[name]), f"{wanted} is pinned to {pinned[name]}"
            if name not in seen:
                seen.add(name)
                below = [Requirement(text) for text in metadata.requires(name) or ()]
                open_ones += [r for r in below if r.marker is None or r.marker.evaluate({"extra": ""})]
        assert set(pinned) == seen


class TestCompose:
    @pytest.mark.parametrize("name", COMPOSE)
    def test_follows_the_specification(self, name: str) -> None:
        PyCompose.from_yaml(interpolated((DOCKER / name).read_text())).to_spec()

    @pytest.mark.parametrize(("right", "wrong"), [("healthcheck", "healthchek"), ("service_healthy", "service_well")])
    def test_the_check_would_find(self, right: str, wrong: str) -> None:
        with pytest.raises(ValueError, match=wrong):
            PyCompose.from_yaml((DOCKER / "compose.yaml").read_text().replace(right, wrong))

    @pytest.mark.parametrize("name", COMPOSE)
    def test_variables_have_a_default_or_a_reason(self, name: str) -> None:
        found = re.findall(r"\$\{[^}]*\}", (DOCKER / name).read_text())
        assert [text for text in found if not re.fullmatch(r"\$\{[A-Z_]+(:-[^}]+|:\?[^}]+)\}", text)] == []
        assert bool(found) == (name == "compose.gpu.yaml")

    @pytest.mark.parametrize("name", COMPOSE)
    def test_what_it_names_is_there(self, name: str) -> None:
        document = compose(name)
        built = set()
        for service in document["services"].values():
            if "build" in service:
                context = (DOCKER / service["build"]["context"]).resolve()
                assert context == ROOT
                assert (context / service["build"]["dockerfile"]).is_file()
                built.add(service["image"])
            assert set(service.get("depends_on", ())) <= set(document["services"])
            named = [volume.split(":")[0] for volume in service["volumes"]]
            assert {v for v in named if re.fullmatch(r"[\w-]+", v)} <= set(document["volumes"])
        assert {service["image"] for service in document["services"].values()} == built

    @pytest.mark.parametrize("name", COMPOSE)
    def test_keys_are_made_for_the_hosts_that_the_controller_uses(self, name: str) -> None:
        services = compose(name)["services"]
        _, _, user, *hosts = services["keys"]["command"]
        made = {entry.partition("=")[0]: entry.partition("=")[2] for entry in hosts}
        command = services["controller"]["command"]
        asked = {command[place + 1] for place, word in enumerate(command) if word == "--host"}
        assert asked == set(made) == set(services["controller"]["depends_on"])
        assert made == {host: f"{host}:2222" for host in asked}
        for host in asked:
            assert services[host]["command"] == [host]
            runs_as = "root" if services[host].get("user") == "0" else "sweep"
            assert runs_as == user

    def test_the_smoke_study_uses_both_hosts(self) -> None:
        words = compose("compose.yaml")["services"]["controller"]["command"]
        assert words[0] == "start"
        done = CliRunner().invoke(cli, ["plan", *words[1:]])
        assert done.exit_code == 0, done.output
        assert "host gpu-a (ssh" in done.stdout
        assert "host gpu-b (ssh" in done.stdout

    def test_the_gpu_study_takes_a_yaml_of_ones_own(self, tmp_path: Path) -> None:
        words = compose("compose.gpu.yaml")["services"]["controller"]["command"]
        space = tmp_path / "space.yaml"
        made = CliRunner().invoke(cli, ["init", "--model", "/models/m", "--draft", "/models/d", "-o", str(space)])
        assert made.exit_code == 0, made.output
        done = CliRunner().invoke(cli, ["plan", *(str(space) if w == "/space.yaml" else w for w in words[1:])])
        assert done.exit_code == 0, done.output
        assert "host gpu-host (ssh" in done.stdout
