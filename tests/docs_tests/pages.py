"""Reads the documentation: its fences, links and commands, and says whether a command or an output is right.

Fences: ``console`` is run here and its output compared; ``sh`` cannot be run here (real hosts) and is checked against
the commands there are; ``yaml`` is a search space or parts of one; a first line ``# NAME.yaml`` also makes it a file
for the console fences of its page. ``text`` quotes output of runs that are too long for a test.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

from storage.where import ALIASES, FIELDS
from sweep.cli.main import cli
from sweep.errors import SweepError
from sweep.expressions import parse
from sweep.metrics import parse_objective

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"console", "sh", "yaml", "json", "python", "sql", "text", "mermaid", "dockerfile"}


@dataclass(frozen=True)
class Fence:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"


def fences(page: Path) -> list[Fence]:
    """All fenced blocks of a page, in order."""
    out: list[Fence] = []
    start: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"^(\s*)```(\S*)\s*$", line)
        if mark and start is None:
            start, body = (number, mark[2], mark[1]), []
        elif mark and start is not None:
            out.append(Fence(page, start[0], start[1], "\n".join(body) + "\n"))
            start = None
        elif start is not None:
            body.append(line.removeprefix(start[2]))
    assert start is None, f"{page}:{start}: the fence is not closed"
    return out


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(\s*)```.*?^\s*```\s*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    out: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        out.add(anchor if anchor not in out else f"{anchor}-1")
    return out


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there. What stands on the network is not asked."""
    out: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            out.append(f"{target}: there is no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            out.append(f"{target}: there is no such heading")
    return out


def missing_files(page: Path) -> list[str]:
    """Files of the repository that running text names and that are not there."""
    tops = "sweep|storage|launchers|search_spaces|tests|benchmarks|docs|docker"
    named = re.findall(rf"`((?:{tops})/[\w./-]+)", prose(page))
    return [name for name in named if not (ROOT / name).exists()]


def broken_tables(page: Path) -> list[str]:
    """Rows of tables with more or fewer cells than their head: a ``|`` that is not escaped, or a cell forgotten."""
    out: list[str] = []
    width = 0
    for line in prose(page).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        if cells and width and cells != width:
            out.append(line)
        width = width or cells if cells else 0
    return out


# ---------------------------------------------------------------------------------------------- commands


def lines_of(script: str) -> Iterator[str]:
    """Logical lines of a shell script: a backslash joins, comments and prompts are dropped."""
    joined = re.sub(r"\\\n\s*", "", script)
    for line in joined.splitlines():
        plain = line.removeprefix("$ ").strip()
        if plain and not plain.startswith("#"):
            yield plain


def commands_in(line: str) -> Iterator[list[str]]:
    """The words of each command of a line that is ours to check; assignments before it are dropped."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) <= set("&|;()<>") and token:
            while words and re.match(r"^[A-Za-z_]\w*=", words[0]):
                words.pop(0)
            if words and (words[0] in ("sweep", "make") or words[:1] == ["python"]):
                yield words
            words = []
        else:
            words.append(token)


def wrong(words: list[str], *, whole: bool = True) -> str | None:
    """What is wrong with a command; None where nothing is. ``whole`` False: as running text names it, arguments may be
    missing and words in capitals stand for some value."""
    if words[0] == "sweep":
        return _wrong_sweep(words[1:], whole)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        return next((f"make has no target {word!r}" for word in words[1:] if word not in targets), None)
    if words[1:2] and words[1].startswith("benchmarks/"):
        script = ROOT / words[1]
        if not script.is_file():
            return f"there is no {words[1]}"
        source = script.read_text(encoding="utf-8")
        return next(
            (f"{words[1]} has no {w}" for w in words[2:] if w.startswith("--") and f'"{w}"' not in source), None
        )
    return None


def _wrong_sweep(words: list[str], whole: bool) -> str | None:
    context = click.Context(cli, info_name="sweep")
    command: click.Command = cli
    while isinstance(command, click.Group):
        if not words or words[0] in ("--help", "--version"):
            return None
        found = command.get_command(context, words[0])
        if found is None:
            return f"sweep has no command {words[0]!r}"
        command, words = found, words[1:]
    if not whole:
        words = ["0" if re.fullmatch(r"[A-Z_]+", word) else word for word in words]
    try:
        asked = command.make_context(command.name or "", list(words), parent=context).params
        if asked.get("where"):
            parse(asked["where"], FIELDS, ALIASES)
        for goal in filter(None, [asked.get("objective"), *(asked.get("objectives") or "").split(",")]):
            parse_objective(goal)
    except SweepError as error:
        return str(error)
    except click.MissingParameter as error:
        return error.format_message() if whole else None
    except click.exceptions.Exit:  # --help
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


def named_in_prose(page: Path) -> list[str]:
    """Commands in running text: `sweep start --simulate`."""
    return [" ".join(span.split()) for span in re.findall(r"`((?:sweep|make) [^`]+)`", prose(page))]


# ---------------------------------------------------------------------------------------------- output

_NUMBER = re.compile(r"(?<!\w)[-+]?\d[\d.,:]*(?:[-/]\d[\d.:-]*)*(?!\w)")
_PATH = re.compile(r"(?<!\w)~?/[\w./-]*\w")


# Whether a small noisy study proves a winner is not what a page promises: all verdicts count as one, and so do the
# words of the result column. Lines that only some verdicts bring along are left out.
_VERDICT = re.compile(r"(?:Nothing beats|\S+ \S+ # is (?:# % (?:faster|slower) than|a tie with)) no speculation.*")
_RESULT = re.compile(r"(?<!\w)(?:faster|slower|tie|not_comparable)(?: \(# compared\))?(?!\w)")
_FIGURE = re.compile(r"# % \(# \.\. #\)|(?<!\S)-(?!\S)")  # a gain; nothing, where a baseline could not be used
_ONLY_SOME = re.compile(
    r"(?:## is a RESULT because|The first that is faster|Prompts that gain all the same|Equal ranks are ties)"
)


@dataclass(frozen=True)
class Step:
    """One command of a console fence and what is said to come of it."""

    command: str
    output: str


def steps(fence: Fence) -> list[Step]:
    """``$ `` begins a command, ``> `` carries it on; what follows is its output."""
    out: list[Step] = []
    command: list[str] = []
    output: list[str] = []
    for line in [*fence.text.rstrip("\n").split("\n"), "$ "]:
        if line.startswith("$ "):
            if command:
                out.append(Step("\n".join(command), "\n".join(output)))
            command, output = [line[2:]], []
        elif line.startswith("> ") and not output:
            command.append(line[2:])
        else:
            assert command, f"{fence}: a console fence begins with `$ `"
            output.append(line)
    return out


def plain(line: str) -> str:
    """A line without what changes from run to run: numbers, configurations (3/4/8), paths, spacing, verdicts."""
    text = " ".join(_NUMBER.sub("#", _PATH.sub("PATH", line)).split())
    text = _RESULT.sub("RESULT", _VERDICT.sub("VERDICT", text)).replace("RESULT, simulated", "simulated")
    return _FIGURE.sub("#", text)


def plain_lines(text: str) -> list[str]:
    """All lines so, without those that follow from a verdict."""
    kept = [line for line in map(plain, text.strip("\n").splitlines()) if not _ONLY_SOME.match(line)]
    return [line for before, line in pairwise(["", *kept]) if (before, line) != ("VERDICT", "VERDICT")]


def differs(expected: str, actual: str) -> str | None:
    """Where an output is not the page's. A line ``...`` stands for any lines, ``...`` within a line for any text."""
    want = plain_lines(expected) if expected.strip() else []
    have = plain_lines(actual) if actual.strip() else []
    at, anywhere = 0, False
    for line in want:
        if line == "...":
            anywhere = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        found = next(
            (i for i in range(at, len(have) if anywhere else at + 1) if i < len(have) and pattern.fullmatch(have[i])),
            None,
        )
        if found is None:
            there = have[at] if at < len(have) else "(nothing more)"
            return f"expected: {line}\nthere is: {there}\nwhole output:\n{actual}"
        at, anywhere = found + 1, False
    if at < len(have) and not anywhere:
        return f"not on the page: {have[at]}\nwhole output:\n{actual}"
    return None
