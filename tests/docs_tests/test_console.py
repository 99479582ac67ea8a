"""Every `console` fence of the documentation is run, in order, page after page, and its output compared; docs/json.md
and the SQL of the database page are held against the study that comes of it.

One folder and one database for all pages, as a reader has them: the tutorial's study is what the other pages ask about.
Numbers, configurations, paths and spacing may differ from the page.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from launchers.host_values import Found
from launchers.locks import Owner, this_holder
from storage.store import Store
from sweep import calibration
from sweep.cli.check import Check
from sweep.cli.hosts import _found as entry_as_json
from sweep.cli.main import COMMANDS, cli
from sweep.metrics import METRICS
from tests.commands import exit_code
from tests.docs_tests.pages import PAGES, ROOT, Fence, Step, differs, fences, steps
from tests.queries_tests.json_keys import keys

FIRST = ROOT / "docs" / "tutorial.md"
WITH_CONSOLE = [FIRST, *(p for p in PAGES if p != FIRST and any(f.language == "console" for f in fences(p)))]
SLOW = ("start", "calibrate")  # start Ray: in a process of their own

pytestmark = [pytest.mark.ray, pytest.mark.long]


@dataclass(frozen=True)
class Ran:
    """What a terminal would show of a command, and its exit code."""

    output: str
    code: int


Said = list[tuple[Fence, Step, Ran]]


class Reader:
    """Follows pages in a home of their own; ``said``: of the pages followed so far."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: dict[Path, Said] = {}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SWEEP_", "SPECSWEEP_", "SSH_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.env = {**kept, "HOME": str(home), "PATH": path}

    def follow(self, page: Path) -> Said:
        """Run a page from top to bottom, once."""
        if page not in self.said:
            console = [fence for fence in fences(page) if fence.language == "console"]
            self.said[page] = [(fence, step, self.run(step.command)) for fence in console for step in steps(fence)]
        return self.said[page]

    def run(self, command: str) -> Ran:
        words = shlex.split(command) if command.startswith("sweep ") and "\n" not in command else []
        if words and words[1] in SLOW:
            return self._process(words)
        if words and not {"|", ">", "&&"} & set(words):
            return self._here(words[1:])
        return self._process(["bash", "-c", command])

    def _process(self, words: list[str]) -> Ran:
        done = subprocess.run(
            words, cwd=self.home, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        return Ran(done.stdout, done.returncode)

    def _here(self, words: list[str]) -> Ran:
        said = io.StringIO()
        with contextlib.chdir(self.home), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = exit_code(words)
        return Ran(said.getvalue(), code)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Who has read the tutorial."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SWEEP_", "RAY_"))]:
            patch.delenv(name)
        home = tmp_path_factory.mktemp("reader")
        patch.setenv("HOME", str(home))
        reader = Reader(home)
        reader.follow(FIRST)
        yield reader


def fault_of(step: Step, ran: Ran) -> str | None:
    """What is wrong with what a command of a page did; no page shows a command that fails."""
    return f"exit code {ran.code}\n{ran.output}" if ran.code else differs(step.output, ran.output)


@pytest.mark.parametrize("page", WITH_CONSOLE, ids=[str(page.relative_to(ROOT)) for page in WITH_CONSOLE])
def test_outputs_are_those_of_the_page(reader: Reader, page: Path) -> None:
    said = reader.follow(page)
    wrong = [f"{fence}: $ {step.command}\n{fault}" for fence, step, ran in said if (fault := fault_of(step, ran))]
    assert not wrong, "\n\n".join(wrong)


def test_a_command_that_fails_is_a_fault(reader: Reader) -> None:
    assert fault_of(Step("sweep best smoke", "..."), reader.run("sweep best smoke")) is None
    fault = fault_of(Step("sweep best nowhere", "..."), reader.run("sweep best nowhere"))
    assert fault is not None
    assert fault.startswith("exit code 5")


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


def documented(section: str) -> set[str]:
    """Key paths in the tables of one section of docs/json.md."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    body = next(part for part in re.split(r"^## ", page, flags=re.MULTILINE) if part.splitlines()[0] == section)
    return set(re.findall(r"^\| `([^`]+)` \|", body, flags=re.MULTILINE))


def without_intervals(found: set[str]) -> set[str]:
    """An ``{estimate, low, high}`` counts as one key."""
    return {re.sub(r"\.(estimate|low|high)$", "", key) for key in found}


class TestJson:
    """Every key that is printed is documented, and no other: the commands that tests/queries_tests does not ask."""

    def keys_of(self, reader: Reader, command: str) -> set[str]:
        return keys(json.loads(reader.run(f"sweep {command} --json").output.partition("\nsweep: ")[0]))

    def test_show(self, reader: Reader) -> None:
        found = self.keys_of(reader, "show 2 smoke")
        metrics = {f"launches[].blocks[].{name}" for name in METRICS}
        assert found - metrics == documented("show")
        assert metrics <= found

    def test_plan(self, reader: Reader) -> None:
        found = without_intervals(self.keys_of(reader, "plan smoke --simulate"))
        own = {"arms", "known_good", "launches_by_stage"}  # configurations, counts by stage
        assert {key for key in found if re.split(r"[.\[]", key)[0] not in own} | own == documented("plan")

    def test_whatif(self, reader: Reader) -> None:
        found = without_intervals(self.keys_of(reader, "whatif smoke --accept-length 3"))
        assert found == without_intervals(documented("whatif"))

    def test_doctor(self, reader: Reader) -> None:
        found = self.keys_of(reader, "doctor smoke --host local")
        found |= {f"across_hosts[].{key}" for key in Check("", "ok", "").as_dict()}  # two machines are needed for one
        assert found == documented("doctor")

    def test_ps_and_clean(self, reader: Reader) -> None:
        found = self.keys_of(reader, "ps local") | self.keys_of(reader, "clean local --yes")
        holder = Owner("night", this_holder()).as_dict()
        entry = Found("night", "1", 1, "m", 2, 2, 0.0, "c", 3, "/r", ((2, "c"),), True, True)
        found |= {f"holder.{name}" for name in holder}
        found |= {f"found[].{key}" for key in keys(entry_as_json(entry))}
        assert found == documented("ps, clean")

    def test_calibrate(self, reader: Reader) -> None:
        with Store.open(f"sqlite:///{reader.home / 'sweep.db'}") as store:
            answer = calibration.describe(store, store.study("smoke"))
        assert keys({**answer, "state": "finished"}) == documented("calibrate")


def test_every_command_with_json_has_its_keys_documented() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    titles = {word for title in re.findall(r"^## (.+)$", page, flags=re.MULTILINE) for word in title.split(", ")}
    context = click.Context(cli, info_name="sweep")
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    with_json = {name for name, command in found.items() if command and _takes_json(command)}
    assert {"best", "db", "plan"} <= with_json
    assert with_json - titles == set()


def _takes_json(command: click.Command) -> bool:
    inner = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    return any("--json" in parameter.opts for one in inner for parameter in one.params)


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("takes 55.6 s here", "takes 61.2 s here", True),
        ("takes 55.6 s here", "takes 55.6 s there", False),
        ("x.html: EAGLE3 e3 3/4/8 is 5.6 % faster than no speculation (95 %: 3-8).", "x.html: EAGLE3 e3", False),
        (
            "EAGLE3 e3 3/4/8 is 5.6 % faster than no speculation (95 %: 3-8).\nb",
            "Nothing beats no speculation.\nEAGLE3 e3 3/4/8 is a tie with no speculation: +5.6 % (95 %: -1 to 8).\nb",
            True,
        ),
        ("1  1  confirm  faster  simulated", "1  2  confirm  tie (2 compared)  simulated", True),
        ("1.5  +3.0 % (+1.0 .. +5.0)  faster  simulated", "-  -  not_comparable  not_comparable, simulated", True),
        ("1.5  2.5", "1.5", False),
        ("a\nb", "a\n#2 is a tie because 2 comparisons are made together.\nb", True),
        ("1  1  confirm  faster  simulated", "1  2  search  faster  simulated", False),
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
