"""Links, commands and YAML of the documentation, without running anything."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces.space import SearchSpace
from sweep.cli.main import COMMANDS
from sweep.config import StudySpec, find, load_text
from sweep.errors import ConfigError
from sweep.search.proposer import Proposer
from tests.docs_tests.pages import (
    LANGUAGES,
    PAGES,
    ROOT,
    Fence,
    broken_links,
    broken_tables,
    commands_in,
    fences,
    lines_of,
    missing_files,
    named_in_prose,
    wrong,
)

ids = [str(page.relative_to(ROOT)) for page in PAGES]
every_page = pytest.mark.parametrize("page", PAGES, ids=ids)


def space(fence: Fence) -> StudySpec:
    """A YAML of the documentation as a study: parts are laid over the shipped smoke space."""
    given = yaml.safe_load(fence.text)
    base = {} if {"name", "model", "space"} <= set(given) else yaml.safe_load(find("smoke").read_text(encoding="utf-8"))
    return load_text(yaml.safe_dump(_over(base, given)), source=str(fence), folder=fence.page.parent)


def _over(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in given.items()
    }
    return {**base, **both}


@every_page
def test_links(page: Path) -> None:
    assert broken_links(page) == []
    assert missing_files(page) == []


@every_page
def test_tables(page: Path) -> None:
    assert broken_tables(page) == []


def test_every_page_is_found_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", index.read_text(encoding="utf-8"))
    linked = {(index.parent / target).resolve() for target in targets}
    assert [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in {*linked, index}] == []
    assert index.resolve() in {
        (ROOT / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / "README.md").read_text())
    }


def test_the_readme_names_every_command() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \|", page, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z]+)`", row)}
    assert named == set(COMMANDS)


@every_page
def test_commands(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_HOOK", "https://hooks.example.org/x")  # the reader's, where a page takes a URL from there
    bad = [
        f"{fence}: {' '.join(words)}: {fault}"
        for fence in fences(page)
        if fence.language in ("console", "sh")
        for line in lines_of(_commands_only(fence))
        for words in commands_in(line)
        if (fault := wrong(words)) is not None
    ]
    for span in named_in_prose(page):
        bad += [f"`{span}`: {fault}" for words in commands_in(span) if (fault := wrong(words, whole=False)) is not None]
    assert bad == []


def _commands_only(fence: Fence) -> str:
    if fence.language == "sh":
        return fence.text
    return "\n".join(line for line in fence.text.splitlines() if line.startswith("$ "))


def test_arrows_of_the_architecture_are_those_that_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    shown = [fence.text.strip().split("\n") for fence in fences(ROOT / "docs" / "architecture.md")]
    assert layers in shown


@every_page
def test_every_fence_says_what_it_is(page: Path) -> None:
    assert [str(fence) for fence in fences(page) if fence.language not in LANGUAGES] == []


@every_page
def test_yaml_json_and_python_are_accepted(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page.parent)
    for fence in fences(page):
        if fence.language == "yaml":
            assert SearchSpace.from_spec(space(fence)).candidates, f"{fence}: nothing of it can be served"
        elif fence.language == "json":
            json.loads(fence.text)
        elif fence.language == "python":
            compile(fence.text, str(fence), "exec")


def test_the_search_page_calls_what_there_is() -> None:
    (fence,) = [fence for fence in fences(ROOT / "docs" / "search.md") if fence.language == "python"]
    called = set(re.findall(r"^(?:\w+ = )?proposer\.(\w+)\(", fence.text, flags=re.MULTILINE))
    assert {"propose", "predict"} <= called
    assert [name for name in sorted(called) if not callable(getattr(Proposer, name, None))] == []
    made = next(node for node in ast.walk(ast.parse(fence.text)) if isinstance(node, ast.Call))
    given = {keyword.arg for keyword in made.keywords}
    assert given - set(inspect.signature(Proposer).parameters) == set()


class TestTheChecksThemselves:
    """Each check finds what it is there to find."""

    @pytest.mark.parametrize(
        ("link", "fault"),
        [
            ("other.md", None),
            ("other.md#a-heading--two", None),
            ("#here", None),
            ("gone.md", "no such file"),
            ("other.md#gone", "no such heading"),
            ("#gone", "no such heading"),
        ],
    )
    def test_links(self, tmp_path: Path, link: str, fault: str | None) -> None:
        (tmp_path / "other.md").write_text("# A `heading`: & two\n")
        page = tmp_path / "page.md"
        page.write_text(f"# Here\n[x]({link})\n```\n[not a link](gone.md)\n```\n")
        found = broken_links(page)
        assert (found == []) if fault is None else (len(found) == 1 and fault in found[0])

    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ("sweep start my.yaml --simulate --trials 3", None),
            ("SWEEP_DB=x sweep best --where 'topk<=4' && sweep ls --json", None),
            ("sweep start --simulat my.yaml", "No such option"),
            ("sweep strat", "no command"),
            ("sweep db trimm", "no command"),
            ("sweep best --where 'topk <= '", "condition"),
            ("sweep best --where 'top_k <= 4'", "top_k"),
            ("sweep pareto --objectives throughput@1,ttft_p99@1", "unknown metric"),
            ("sweep export smoke", "Missing option"),
            ("sweep best | sweep show", "Missing argument"),
            ("sweep show two", "not a valid integer"),
            ("make demo test", None),
            ("make nothing", "no target"),
            ("python benchmarks/truth.py --fast", None),
            ("python benchmarks/truth.py --faster", "has no --faster"),
            ("python benchmarks/gone.py", "there is no"),
            ("ssh host", None),
        ],
    )
    def test_commands(self, line: str, fault: str | None) -> None:
        found = [said for words in commands_in(line) if (said := wrong(words)) is not None]
        assert (found == []) if fault is None else (len(found) == 1 and fault in found[0]), found

    def test_tables(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("| a | b |\n|---|---|\n| `x\\|y` | 2 |\n| `x|y` | 2 |\n\ntext\n\n| c |\n|---|\n| 1 |\n")
        assert broken_tables(page) == ["| `x|y` | 2 |"]

    def test_files(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("`sweep/pool.py`, `sweep/no_pool.py`, `sweep best`\n")
        assert missing_files(page) == ["sweep/no_pool.py"]

    def test_yaml(self, tmp_path: Path) -> None:
        assert space(Fence(tmp_path / "p.md", 1, "yaml", "workload: {max_tokens: 3}")).workload.max_tokens == 3
        with pytest.raises(ConfigError, match="max_tokens"):
            space(Fence(tmp_path / "p.md", 1, "yaml", "workload: {max_token: 3}"))
