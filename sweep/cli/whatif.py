"""whatif: what a study's cost model predicts for what was not measured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, json_option, print_json, study_argument
from sweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN = 6  # configurations of a ranking
Numbers = tuple[int | None, int | None, int | None]


@click.command()
@study_argument
@click.option(
    "--config", "numbers", metavar="S/T/D", help="num_steps/topk/num_draft_tokens, e.g. 3/4/8; - leaves one out."
)
@click.option("--drafter", metavar="NAME", help="This draft model of the study.")
@click.option("--graphs/--no-graphs", default=None, help="With or without CUDA graphs.")
@click.option("--accept-length", type=click.FloatRange(min=1), help="As if the drafter reached this accept length.")
@click.option(
    "--concurrency", "levels", type=click.IntRange(min=1), multiple=True, help="At this load; may be repeated."
)
@db_option
@json_option
def whatif(
    study: str | None,
    numbers: str | None,
    drafter: str | None,
    graphs: bool | None,
    accept_length: float | None,
    levels: tuple[int, ...],
    db_url: str,
    as_json: bool,
) -> None:
    """What STUDY's cost model (the newest study's where left out) predicts, with 95 % intervals.

    Without --config, --drafter, --graphs or --accept-length: the configurations it expects most of, measured or not.
    Otherwise the study's best configuration with what is asked changed. It also says how well the study's own arms are
    predicted, each from the others.
    """
    from storage.store import Store
    from sweep.whatif import WhatIf, as_dict

    asked = None if numbers is None else parse_numbers(numbers)
    with Store.open(db_url, create=False) as store:
        what = WhatIf(store, store.study(study))
    at = list(levels) or what.levels
    if asked is None and drafter is None and graphs is None and accept_length is None:
        answers = [answer for level in at for answer in what.ranking(level, SHOWN)]
    else:
        answers = what.answers([what.arm(asked, drafter, graphs)], at, accept_length)
    document = as_dict(what, answers, accept_length)
    if as_json:
        print_json(document)
    else:
        _print(document)


def parse_numbers(text: str) -> Numbers:
    """``3/4/8`` or ``-/-/12``. UsageError for anything else."""
    parts = text.split("/")
    if len(parts) != 3 or not all(re.fullmatch(r"-|[1-9]\d*", part) for part in parts):
        raise UsageError(f"--config {text!r}: write steps/topk/draft tokens, e.g. 3/4/8 (- where one is left out)")
    steps, topk, tokens = (None if part == "-" else int(part) for part in parts)
    return steps, topk, tokens


def _print(answer: Mapping[str, Any]) -> None:
    render.banner(answer)
    if answer["accept_length"] is not None:
        click.echo(f"As if the drafter's accept length were {answer['accept_length']:.2f}:")
    columns = ["configuration", "concurrency", "tok/s (95 %)", "measured", "accept length", "break-even", "gain (95 %)"]
    render.table(
        columns,
        [
            [
                row["label"],
                str(row["concurrency"]),
                _span(row["predicted"], 1),
                render.number(row["measured"], 1) + (f" (#{row['trial']})" if row["measured"] is not None else ""),
                _span(row["accept_length"], 2),
                _span(row["break_even_accept_length"], 2),
                render.interval(row["gain"]),
            ]
            for row in answer["answers"]
        ],
    )
    if any(row["baseline"] is None for row in answer["answers"]):
        click.echo("No gain: the baseline was not measured on both sides of that load.")
    for line in trust(answer["calibration"], answer["contradictions"]):
        click.echo(line)


def _span(value: Mapping[str, float] | None, digits: int) -> str:
    if value is None:
        return render.NONE
    centre = render.number(value["estimate"], digits)
    if value["low"] == value["high"]:
        return centre
    return f"{centre} ({render.number(value['low'], digits)} .. {render.number(value['high'], digits)})"


def trust(found: Mapping[str, Any], contradictions: list[str]) -> list[str]:
    """How far the predictions may be trusted, in words."""
    if not found["checked"]:
        return ["The model was not checked: that takes two measured configurations."]
    out = [
        f"Checked on the study's own {found['arms']} configurations, each predicted from the others: error "
        f"{100 * found['median_error']:.1f} % in the middle, {100 * found['largest_error']:.1f} % at most; "
        f"{100 * found['inside']:.0f} % lie within their 95 % interval."
    ]
    if found["widened_by"] > 1:
        out.append(f"The intervals above are {found['widened_by']:.1f} times as wide as the model's own for it.")
    if contradictions:
        out.append("The measurements contradict the model here; what was measured counts:")
        out += [f"  {line}" for line in contradictions]
    return out
