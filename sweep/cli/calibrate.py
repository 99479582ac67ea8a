"""calibrate: the baseline against itself, so that one knows what a study could tell apart before it is paid for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, json_option, print_json
from sweep.cli.space_options import SpaceCommand, read, space_options

if TYPE_CHECKING:
    pass


@click.command(cls=SpaceCommand)
@space_options
@click.option("--launches", type=click.IntRange(min=2, max=20), default=4, show_default=True, help="Baseline launches.")
@click.option("--wanted", default="3%", show_default=True, metavar="GAIN", help="The gain one wants to resolve.")
@db_option
@json_option
def calibrate(space: str, launches: int, wanted: str, db_url: str, as_json: bool, **options: Any) -> None:
    """Launch the baseline of SPACE several times (A/A) and say how small a gain its study could resolve."""
    from storage.store import Store
    from sweep import calibration, session
    from sweep.cli.run import make_progress
    from sweep.config import find

    name = options["name"]
    spec = calibration.only_references(read(space, **options), launches, parse_wanted(wanted))
    if name is None:
        # A name holds 64 characters.
        stamp = time.strftime("%Y%m%d-%H%M%S")
        spec = spec.model_copy(update={"name": f"{spec.name[:37]}-calibrate-{stamp}"})
    with Store.open(db_url) as store:
        study = session.create(store, spec, find(space).read_text(encoding="utf-8"))
        state = session.run(store, study, spec, make_progress(study, spec, as_json))
        answer = {**calibration.describe(store, store.study_by_id(study.id)), "state": state}
    if as_json:
        print_json(answer)
    else:
        _say(answer)
    if state == "stopped":
        raise SystemExit(130)


def parse_wanted(text: str) -> float:
    """``3%`` or ``0.03`` as a fraction. Raises UsageError."""
    from sweep.errors import UsageError

    try:
        value = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"--wanted {text!r} is no gain: say 3% or 0.03 (above 0, below 100%)")
    return value


def _say(answer: Mapping[str, Any]) -> None:
    render.banner(answer)
    click.echo(
        f"study {answer['study']!r}: {answer['launches']} launches of no speculation on {', '.join(answer['hosts'])}, "
        f"{answer['repeats']} rounds each"
    )
    columns = ["figure", "launch to launch", "within a launch", "smallest gain found"]
    columns += ["to resolve", "rounds", "launches"]
    rows = [
        [
            f"{row['metric']}@{row['concurrency']}",
            f"{100 * row['between_launch_sd']:.2f} %",
            f"{100 * row['within_launch_sd']:.2f} %",
            f"{100 * row['minimum_detectable_gain']:.1f} %",
            f"{100 * row['wanted_gain']:.1f} %",
            "more launches" if row["repeats_needed"] is None else str(row["repeats_needed"]),
            str(row["launches_needed"]),
        ]
        for row in answer["noise"]
    ]
    render.table(columns, rows)
    click.echo(
        "smallest gain found: with 80 % probability, by one search launch of each candidate. rounds: per launch, with "
        "one launch; launches: of candidate and baseline each, with the rounds chosen."
    )


__all__ = ["calibrate", "parse_wanted"]
