"""docs/json.md against what the commands print, docs/exit-codes.md against the errors, docs/python.md run as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from storage.frames import FRAMES
from storage.records import StudyRow
from storage.store import Store
from sweep import api, errors
from sweep.cli.main import READER_GONE
from tests.commands import Run
from tests.queries_tests.json_keys import keys

DOCS = Path(__file__).parents[2] / "docs"


def documented(section: str) -> set[str]:
    """Key paths in the tables of one section of docs/json.md."""
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    body = next(part for part in parts if part.splitlines()[0] == section)
    return set(re.findall(r"^\| `([^`]+)` \|", body, flags=re.MULTILINE))


CASES = [
    ("best, start, resume", ("best", "night", "--per", "host")),
    ("pareto", ("pareto", "night")),
    ("status", ("status", "night")),
    ("ls", ("ls",)),
    ("compare", ("compare", "night", "night", "--fail-on", "3%")),
    ("history", ("history", "1", "night")),
    ("db", ("db", "check")),
    ("command, logs, rm", ("command", "1", "night")),
    ("command, logs, rm", ("logs", "1", "night")),
    ("whatif", ("whatif", "night")),
]


@pytest.mark.parametrize(("section", "command"), CASES, ids=[" ".join(command[:2]) for _, command in CASES])
def test_every_key_is_documented(sweep: Run, section: str, command: tuple[str, ...]) -> None:
    code, out, err = sweep(*command, "--json")
    assert code == 0, err
    found = {key for key in keys(json.loads(out)) if not key.startswith("groups[].best[].")}
    assert found - documented(section) == set(), f"write these keys of `sweep {command[0]}` into docs/json.md"


@pytest.mark.parametrize("kind", ["csv", "optuna", "compose", "adaptive", "acceptance"])
def test_every_key_of_exports_is_documented(sweep: Run, tmp_path: Path, kind: str) -> None:
    _, out, _ = sweep("export", "night", "--format", kind, "-o", str(tmp_path / "x"), "--json")
    assert keys(json.loads(out)) - documented("export") == set()


# Keys that only an answer other than the one of the small study has.
ELSEWHERE = {
    "counts", "search", "search.ended.reason", "search.ended.why", "search.warm_start[].study",
    "search.warm_start[].launches", "hosts[].stage", "hosts[].begun_at", "hosts[].expected_s",
    "differences[].what", "differences[].values", "regressions[].label",
    "regressions[].objective", "regressions[].change", "regressions[].verdict",
}  # fmt: skip


@pytest.mark.parametrize("section", sorted({section for section, _ in CASES}))
def test_nothing_is_documented_that_is_not_there(sweep: Run, section: str) -> None:
    printed: set[str] = set()
    for name, command in CASES:
        if name == section:
            printed |= keys(json.loads(sweep(*command, "--json")[1]))
    assert documented(section) - printed - ELSEWHERE == set()


def test_exit_codes_are_those_of_the_errors() -> None:
    page = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = {kind.exit_code for kind in classes if issubclass(kind, errors.SweepError)}
    assert listed == raised | {0, 130, READER_GONE}


class TestPython:
    def test_the_example_runs(self, url: str) -> None:
        page = (DOCS / "python.md").read_text(encoding="utf-8")
        code = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
        assert len(code) == 1
        exec(compile(code[0], "docs/python.md", "exec"), {"DATABASE": url})

    def test_columns_are_documented(self, store: Store, study: StudyRow) -> None:
        page = (DOCS / "python.md").read_text(encoding="utf-8")
        for column in FRAMES["gains"](store, study).columns:
            if column not in ("simulated", "search_gain"):
                assert f"`{column}`" in page

    def test_load(self, url: str) -> None:
        found = api.load(db=url)
        assert (found.name, found.simulated) == ("night", False)
        assert len(found.arms) == 6
        assert found.requests["error"].isna().all()
        assert found.best["best"][0]["trial"] == 1
        with pytest.raises(errors.StudyNotFoundError):
            api.load("nowhere", db=url)
        with pytest.raises(errors.StoreError):
            api.load(db=url + ".missing")
