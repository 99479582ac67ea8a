"""Tables and sentences for people: a rich table on a terminal, aligned plain lines otherwise. Percent only here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from sweep.cli.common import is_tty

NONE = "-"


def banner(answer: Mapping[str, Any]) -> None:
    """The line that marks everything simulated, before anything else."""
    if answer["simulated"]:
        click.echo(f"SIMULATED: study {answer['study']!r} ran on simulated servers; no GPU was measured.")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Cells are printed as they are: nothing in them is markup."""
    if is_tty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            drawn.add_column(column, overflow="fold")
        for row in rows:
            drawn.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(drawn)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def percent(fraction: float) -> str:
    """Signed, one digit: -8.6 %."""
    return f"{100 * fraction:+.1f} %"


def interval(gain: Mapping[str, Any] | None) -> str:
    """-8.6 % (-10.0 .. -7.1)"""
    if gain is None:
        return NONE
    return f"{percent(gain['estimate'])} ({100 * gain['low']:+.1f} .. {100 * gain['high']:+.1f})"


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


def sentence(row: Mapping[str, Any]) -> str:
    """What may be said about one arm of `best`: faster, slower or a tie, by how much, how sure, and what would pay."""
    gain = row["gain"]
    if gain is None or row["comparison"] == "not_comparable":
        return f"{row['label']} cannot be compared with no speculation: the baselines around it disagree."
    low, high = sorted((abs(gain["low"]), abs(gain["high"])))
    if row["comparison"] == "tie":
        text = (
            f"{row['label']} is a tie with no speculation: {percent(gain['estimate'])} "
            f"(95 %: {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})"
        )
    else:
        text = (
            f"{row['label']} is {100 * abs(gain['estimate']):.1f} % {row['comparison']} than no speculation "
            f"(95 %: {100 * low:.1f}-{100 * high:.1f})"
        )
    if row["break_even_accept_length"] is not None and row["accept_length"] is not None:
        text += f", break-even accept length {row['break_even_accept_length']:.2f}, measured {row['accept_length']:.2f}"
    stage = "" if gain["stage"] == "confirm" else " Not confirmed yet: one search measurement."
    return f"{text}.{stage}"


def headline(answer: Mapping[str, Any]) -> list[str]:
    """The first lines of `best`: whether anything beats the baseline, then the first arm in words."""
    rows = answer["best"]
    if not rows:
        return [f"No trial of study {answer['study']!r} is complete yet: nothing to rank."]
    lines = [] if answer["beats_baseline"] else [f"Nothing beats no speculation by {answer['objective']}."]
    lines.append(sentence(rows[0]))
    winners = [
        f"{name} {percent(gain['estimate'])}" for name, gain in rows[0]["by_category"].items() if gain["low"] > 0
    ]
    if winners and not answer["beats_baseline"]:
        lines.append(f"Prompts that gain all the same: {', '.join(winners)}.")
    return lines
