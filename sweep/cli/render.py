"""Tables and sentences for people: a rich table on a terminal, aligned plain lines otherwise. Percent only here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sweep import sentences
from sweep.cli.common import is_tty
from sweep.sentences import headline, percent, sentence

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "NONE",
    "banner",
    "busy",
    "clock",
    "config_text",
    "duration",
    "headline",
    "interval",
    "number",
    "percent",
    "sentence",
    "table",
]

NONE = "-"
GAP = 2  # between columns


def banner(answer: Mapping[str, Any]) -> None:
    """The line that marks everything simulated, before anything else."""
    if answer["simulated"]:
        click.echo(f"SIMULATED: study {answer['study']!r} ran on simulated servers; no GPU was measured.")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Cells are printed as they are: nothing in them is markup. A column in which no row has anything is left out. A
    terminal too narrow for the table without breaking words gets each row as a paragraph."""
    shown = [place for place in range(len(columns)) if not rows or any(row[place] for row in rows)]
    columns, rows = [columns[place] for place in shown], [[row[place] for place in shown] for row in rows]
    if is_tty():
        _on_terminal(columns, rows)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _on_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = fitted(columns, rows, console.width)
    if widths is None:
        for row in rows:
            cells = [pair for pair in zip(columns, row, strict=True) if pair[1] not in ("", NONE)]
            parts = [Text.assemble((name, "bold"), f" {cell}") for name, cell in cells]
            for line, indent in _paragraph(parts, console.width):
                console.print(Padding(line, (0, 0, 0, indent), expand=False))
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        drawn.add_column(column, width=width, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def _paragraph(parts: Sequence[Text], room: int) -> Iterator[tuple[Text, int]]:
    """Lines of whole parts, where a part is no longer than a line, and by how much each is indented."""
    from rich.text import Text

    line, indent = Text(), 0
    for part in parts:
        if line and indent + len(line) + len("; ;") + len(part) > room:
            yield line.append(";"), indent
            line, indent = Text(), 2
        line.append("; " if line else "").append(part)
    yield line, indent


def fitted(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Width of each column in ``room`` characters, wrapped between words where it must be; None where words would
    break."""
    stood = list(zip(columns, *rows, strict=True))
    widths = [max(map(len, cells)) for cells in stood]
    least = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in stood]
    room -= GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda i: widths[i] if widths[i] > least[i] else 0)
        widths[widest] -= 1
    return widths


@contextmanager
def busy() -> Iterator[Callable[[str], None]]:
    """For what may take long: the function that is handed in shows on the terminal what is being done, with the seconds
    so far, until the block ends. Nothing is shown where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda what: progress.update(task, description=what)


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def interval(gain: Mapping[str, Any] | None) -> str:
    """-8.6 % (-10.0 .. -7.1)"""
    if gain is None:
        return NONE
    return sentences.interval(gain)


def clock(at: float | None) -> str:
    """Local date and time."""
    return NONE if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.1f} s"


def config_text(config: Mapping[str, Any]) -> str:
    """``key=value`` pairs of what is set."""
    parts = [f"{key}={value}" for key, value in config.items() if key != "args" and value is not None]
    parts += [f"--{key}={value}" for key, value in config.get("args", {}).items()]
    return " ".join(parts)
