"""How `best` prints its rankings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from sweep.cli import render
from sweep.model import Flag
from sweep.sentences import forced, tie_because


def print_ranking(answer: Mapping[str, Any]) -> None:
    """``answer`` is ``storage.best.best``'s."""
    render.banner(answer)
    for line in render.headline(answer):
        click.echo(line)
    _print_references(answer)
    if not answer["best"]:
        return
    value = answer["objective"]
    columns = ["rank", "trial", "configuration", value, "tok/s", "accept", "break-even", "gain (95 %)"]
    columns += ["over engine default", "stage", "result", "flags"]
    rows = [_cells(row) for row in answer["best"]]
    if value.startswith("output_throughput@"):
        columns.pop(4)
        for cells in rows:
            cells.pop(4)
    click.echo()
    render.table(columns, rows)
    if (first := answer["best"][0])["why"]:
        click.echo(f"Why #{first['trial']} was proposed: {first['why']}")
    for row in answer["best"]:
        if row["tie_because"] is not None:
            click.echo(f"#{row['trial']} is a tie {tie_because(row['tie_because'])}.")
    for row in answer["best"]:
        if row["also_trials"]:
            others = ", ".join(f"#{number}" for number in row["also_trials"])
            click.echo(f"#{row['trial']} ran the same configuration as {others}; `sweep show` has the figures of each.")
    if answer["ranked"] > len(rows):
        click.echo(f"{answer['ranked'] - len(rows)} more; --limit shows them.")
    ties = [row["rank"] for row in answer["best"]]
    if len(set(ties)) < len(ties):
        click.echo(
            "Equal ranks are ties: the measurement cannot tell them apart; "
            "confirmed arms stand first, then cheaper ones."
        )


def print_groups(answer: Mapping[str, Any]) -> None:
    """With ``--per``: one table, the first rows of each group."""
    render.banner(answer)
    for line in forced(answer):
        click.echo(line)
    _print_references(answer)
    per = answer["per"]
    if not answer["groups"]:
        click.echo(f"Nothing to rank per {per}.")
        return
    columns = [per, "rank", "trial", "configuration", "value", "tok/s", "accept", "break-even", "gain (95 %)"]
    columns += ["over engine default", "stage", "result", "flags"]
    rows = [
        [render.NONE if group[per] is None else str(group[per]), *_cells(row)]
        for group in answer["groups"]
        for row in group["best"]
    ]
    render.table(columns, rows)


def _print_references(answer: Mapping[str, Any]) -> None:
    for name in ("baseline", "engine_default"):
        levels = answer[name]["by_objective"]
        if levels:
            what = "no speculation" if name == "baseline" else "engine default"
            click.echo(f"{what}: " + ", ".join(f"{key} {render.number(value, 1)}" for key, value in levels.items()))


def _word(row: Mapping[str, Any]) -> str:
    """The comparison, with what a reader of the interval beside it would miss."""
    word: str = row["comparison"]
    if row["tie_because"] is not None:
        tie = row["tie_because"]
        word += f" ({tie['comparisons']} compared)" if tie["reason"] == "correction" else " (too small)"
    return word if row["feasible"] else f"{word}, breaks a constraint"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["rank"]),
        str(row["trial"]),
        row["label"],
        render.number(row["value"], 1),
        render.number(row["throughput"], 1),
        render.number(row["accept_length"]),
        render.number(row["break_even_accept_length"]),
        render.interval(row["gain"]),
        render.interval(row["gain_over_engine_default"]),
        row["gain"]["stage"] if row["gain"] else render.NONE,
        _word(row),
        ", ".join(flag for flag in row["flags"] if flag != Flag.SIMULATED),  # the banner says that of all
    ]
