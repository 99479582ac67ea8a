"""What may be said in one sentence about the rows of `best`: the words that tables, reports and hooks share.

Percent only here and in tables; JSON keeps fractions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

_NUMBER = r"[+-]?\d+(?:\.\d+)?"
# What a page keeps on one line: an interval in any of the ways it is written here, a number with its %.
UNBROKEN = re.compile(rf"((?:95 %: )?{_NUMBER}(?: %)?(?:-| to | \.\. ){_NUMBER}(?: %)?|{_NUMBER} %)")


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
        why = f"`sweep show {row['trial']}` says why" if "not_comparable" in row["flags"] else "it has no gain here"
        return f"{row['label']} cannot be compared with no speculation: {why}."
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
    stage = "" if gain["stage"] == "confirm" else " Not confirmed: measured by the search alone."
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


def _may_not_win(row: Mapping[str, Any]) -> str | None:
    """Why an arm that is faster does not count as beating the baseline; None where it does."""
    if "not_comparable" in row["flags"]:
        return "it is flagged not_comparable"
    if "screened_out" in row["flags"]:
        return "its launch was ended early, screened out"
    return None if row["feasible"] else "it breaks a constraint"


def headline(answer: Mapping[str, Any]) -> list[str]:
    """The first lines of `best`: what makes all of it hypothetical, whether anything beats the baseline, then the first
    arm in words; and where that one is a tie (it is the cheaper, or the confirmed one), the first that is faster."""
    rows, lines = answer["best"], forced(answer)
    if not rows and answer["where"] is not None:
        return [*lines, f"No complete trial of study {answer['study']!r} meets {answer['where']!r}."]
    if not rows:
        return [*lines, f"No trial of study {answer['study']!r} is complete yet: nothing to rank."]
    among = "" if answer["where"] is None else " of these"
    lines += [] if answer["beats_baseline"] else [f"Nothing{among} beats no speculation by {answer['objective']}."]
    lines.append(sentence(rows[0]))
    if rows[0]["comparison"] == "faster" and (why := _may_not_win(rows[0])) is not None:
        lines.append(f"It may not win: {why}.")
    if answer["beats_baseline"] and rows[0]["comparison"] != "faster":
        faster = (row for row in rows if row["comparison"] == "faster" and _may_not_win(row) is None)
        lines += [f"The first that is faster: {sentence(row)}" for row in islice(faster, 1)]
    # By the corrected test, not by the interval alone: one of six kinds of prompt looks faster by chance too often.
    winners = [
        f"{name} {percent(gain['estimate'])}"
        for name, gain in rows[0]["by_category"].items()
        if gain["comparison"] == "faster"
    ]
    if winners and not answer["beats_baseline"]:
        lines.append(f"Prompts that gain all the same: {', '.join(winners)}.")
    return lines
