"""What may be said in one sentence about the rows of `best`: the words that tables, reports and hooks share.

Percent only here and in tables; JSON keeps fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def percent(fraction: float) -> str:
    """Signed, one digit: -8.6 %."""
    return f"{100 * fraction:+.1f} %"


def interval(gain: Mapping[str, Any]) -> str:
    """-8.6 % (-10.0 .. -7.1)"""
    return f"{percent(gain['estimate'])} ({100 * gain['low']:+.1f} .. {100 * gain['high']:+.1f})"


def tie_because(tie: Mapping[str, Any]) -> str:
    """Why a gain whose interval excludes 0 is a tie all the same; ``tie`` is the ``tie_because`` of a row of `best`."""
    if tie["reason"] == "tie_band":
        return f"because gains within {percent(tie['low'])} to {percent(tie['high'])} count as equal"
    return (
        f"because {tie['comparisons']} comparisons are made together: with Holm's correction for them the interval is "
        f"{percent(tie['low'])} to {percent(tie['high'])}"
    )


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
        if row["tie_because"] is not None:
            text += f", {tie_because(row['tie_because'])}"
    else:
        text = (
            f"{row['label']} is {100 * abs(gain['estimate']):.1f} % {row['comparison']} than no speculation "
            f"(95 %: {100 * low:.1f}-{100 * high:.1f})"
        )
    if row["break_even_accept_length"] is not None and row["accept_length"] is not None:
        text += f", break-even accept length {row['break_even_accept_length']:.2f}, measured {row['accept_length']:.2f}"
    if row["search_gain"] is not None:
        text += f"; the search had said {percent(row['search_gain']['estimate'])}"
    if "above_accept_length" in row["flags"] and (row["break_even_accept_length"] or 1.0) < 1.0:
        text += "; that is more than its accept length allows, so the baseline was measured too slow: do not believe it"
    stage = "" if gain["stage"] == "confirm" else " Not confirmed yet: one search measurement."
    return f"{text}.{stage}"


def forced(answer: Mapping[str, Any]) -> list[str]:
    """The line above everything else where the servers were made to pretend an accept length."""
    length = answer["forced_accept_length"]
    if length is None:
        return []
    return [
        f"ACCEPT LENGTH FORCED to {length:.2f}: every gain below is what a drafter of that accept length would give "
        "at these servers' step times; it is not a drafter's."
    ]


def headline(answer: Mapping[str, Any]) -> list[str]:
    """The first lines of `best`: what makes all of it hypothetical, whether anything beats the baseline, then the first
    arm in words."""
    rows, lines = answer["best"], forced(answer)
    if not rows and answer["where"] is not None:
        return [*lines, f"No complete trial of study {answer['study']!r} meets {answer['where']!r}."]
    if not rows:
        return [*lines, f"No trial of study {answer['study']!r} is complete yet: nothing to rank."]
    among = "" if answer["where"] is None else " of these"
    lines += [] if answer["beats_baseline"] else [f"Nothing{among} beats no speculation by {answer['objective']}."]
    lines.append(sentence(rows[0]))
    winners = [
        f"{name} {percent(gain['estimate'])}" for name, gain in rows[0]["by_category"].items() if gain["low"] > 0
    ]
    if winners and not answer["beats_baseline"]:
        lines.append(f"Prompts that gain all the same: {', '.join(winners)}.")
    return lines
