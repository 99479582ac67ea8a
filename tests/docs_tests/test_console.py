"""Every `console` fence of the documentation is run, in order, page after page, and its output compared.

One folder and one database for all pages, as a reader has them: the tutorial's study is what the other pages ask about.
Numbers, configurations, paths and spacing may differ from the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.cli.main import main
from tests.docs_tests.pages import PAGES, ROOT, Fence, Step, differs, fences, steps

FIRST = ROOT / "docs" / "tutorial.md"
WITH_CONSOLE = [FIRST, *(p for p in PAGES if p != FIRST and any(f.language == "console" for f in fences(p)))]
SLOW = ("start", "calibrate")  # start Ray: in a process of their own

pytestmark = pytest.mark.ray


class Reader:
    """Follows a page in a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SWEEP_", "SPECSWEEP_", "SSH_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.env = {**kept, "HOME": str(home), "PATH": path}

    def run(self, command: str) -> str:
        """What a terminal would show."""
        words = shlex.split(command) if command.startswith("sweep ") and "\n" not in command else []
        if words and words[1] in SLOW:
            return self._process(words)
        if words and not {"|", ">", "&&"} & set(words):
            return self._here(words[1:])
        return self._process(["bash", "-c", command])

    def _process(self, words: list[str]) -> str:
        done = subprocess.run(
            words, cwd=self.home, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        return done.stdout

    def _here(self, words: list[str]) -> str:
        said = io.StringIO()
        with (
            contextlib.chdir(self.home),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(SystemExit),
        ):
            main(words)
        return said.getvalue()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Who has read the tutorial."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SWEEP_", "RAY_"))]:
            patch.delenv(name)
        home = tmp_path_factory.mktemp("reader")
        patch.setenv("HOME", str(home))
        reader = Reader(home)
        reader.said = follow(reader, FIRST)  # type: ignore[attr-defined]
        yield reader


def follow(reader: Reader, page: Path) -> list[tuple[Fence, Step, str]]:
    """Run a page; what each of its commands printed."""
    return [
        (fence, step, reader.run(step.command))
        for fence in fences(page)
        if fence.language == "console"
        for step in steps(fence)
    ]


@pytest.mark.parametrize("page", WITH_CONSOLE, ids=[str(page.relative_to(ROOT)) for page in WITH_CONSOLE])
def test_outputs_are_those_of_the_page(reader: Reader, page: Path) -> None:
    said = reader.said if page == FIRST else follow(reader, page)  # type: ignore[attr-defined]
    wrong = [
        f"{fence}: $ {step.command}\n{fault}" for fence, step, out in said if (fault := differs(step.output, out))
    ]
    assert not wrong, "\n\n".join(wrong)


def test_queries_of_the_database_page_answer(reader: Reader) -> None:
    page = ROOT / "docs" / "reference" / "database.md"
    queries = [fence.text for fence in fences(page) if fence.language == "sql"]
    with contextlib.closing(sqlite3.connect(reader.home / "sweep.db")) as database:
        found = [database.execute(query).fetchall() for query in queries]
    best, blocks, failed = found
    assert len(best) == 3
    assert best[0][1] >= best[1][1]  # estimates, the largest first
    assert {row[0] for row in blocks} == {"baseline", "candidate"}
    assert failed == []


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("is 55.6 % faster", "is 61.2 % faster", True),
        ("is 55.6 % faster", "is 55.6 % slower", False),
        ("EAGLE3 3/4/8 is", "EAGLE3 3/1/4 is", True),
        ("EAGLE3 3/4/8 is", "EAGLE 3/4/8 is", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("a", "a\nb", False),
        ("a\n...", "a\nb", True),
        ("a\nb", "a", False),
        ("wrote ... now", "wrote x/y now", True),
        ("log at /a/b.log", "log at ~/c/d.log", True),
        ("", "anything", False),
    ],
)
def test_the_comparison_itself(expected: str, actual: str, same: bool) -> None:
    assert (differs(expected, actual) is None) is same
