"""How `show` prints one trial with its launches and blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from sweep.cli import render
from sweep.sentences import tie_because


def print_trial(answer: Mapping[str, Any]) -> None:
    """``answer`` is ``storage.details.show``'s."""
    render.banner(answer)
    click.echo(f"trial {answer['trial']} of study {answer['study']!r}: {answer['label']}")
    click.echo(f"  {answer['verdict'] or answer['state']}, attempt {answer['attempt']}, host {answer['host'] or '-'}")
    click.echo(f"  origin     {answer['origin']}{': ' + answer['why'] if answer['why'] else ''}")
    click.echo(f"  asked      {render.config_text(answer['config'])}")
    if answer["effective"] is not None:
        click.echo(f"  effective  {render.config_text(answer['effective'])} ({answer['effective_status']})")
    for difference in answer["differences"]:
        why = f", rule {difference['rule']}" if difference["rule"] else ", unexplained"
        click.echo(f"    {difference['key']}: asked {difference['asked']}, runs {difference['effective']}{why}")
    for key in ("phase", "reason", "evidence", "advice"):
        if answer[key]:
            click.echo(f"  {key:<10} {answer[key]}")
    for key, value in answer["values"].items():
        error = answer["stderr"].get(key)
        click.echo(f"  value      {key} = {value:.2f}" + (f" ± {error:.2f}" if error is not None else ""))
    for gain in answer["gains"]:
        if gain["category"] is None:
            click.echo(f"  gain       {_gain(gain)}")
    for line in _why(answer):
        click.echo(f"  {line}")
    for text, violation in answer["constraints"].items():
        click.echo(f"  constraint {text}: {'kept' if violation <= 0 else f'broken by {violation:.2f}'}")
    for flag, evidence in answer["flag_evidence"].items():
        click.echo(f"  flag       {flag}: {evidence}")
    for found in answer["outputs"]:
        click.echo(
            f"  outputs    of {found['prompts']} greedy answers {found['same']} equal the baseline's, "
            f"{found['near_ties']} leave it at a near-tie, {found['differences']} elsewhere, {found['unclear']} unclear"
        )
    if answer["outputs_unasked"]:
        click.echo(
            f"  outputs    of {answer['outputs_unasked']} launches not judged yet: no baseline was launched after "
            "them; a resumed run asks its next one"
        )
    for launch in answer["launches"]:
        _print_launch(launch)


def _gain(gain: Mapping[str, Any]) -> str:
    """``output_throughput@8 over no speculation: faster, +8.4 % (+6.1 .. +10.8), confirm``"""
    over = "no speculation" if gain["reference"] == "baseline" else "the engine's default"
    text = f"{gain['metric']}@{gain['concurrency']} over {over}: {gain['comparison'].replace('_', ' ')}"
    if gain["estimate"] is not None:
        text += f", {render.interval(gain)}, {gain['stage']}, {gain['basis']}"
    if gain["search_gain"] is not None:
        text += f"; the search had said {render.interval(gain['search_gain'])}"
    if gain["tie_because"] is not None:
        text += f"; a tie {tie_because(gain['tie_because'])}"
    return text


def _why(answer: Mapping[str, Any]) -> Iterator[str]:
    """Where the gain comes from at each load, and at which load it ends."""
    for found in answer["explanations"]:
        yield (
            f"why        at {found['concurrency']}: {found['accept_length']:.2f} tokens a step "
            f"({render.percent(found['accept_length'] - 1)}), each step {found['step_cost']:.2f} times as long "
            f"({render.percent(1 / found['step_cost'] - 1)}); it pays from {found['break_even']:.2f} tokens a step on"
        )
        if found["categories"]:
            ordered = sorted(found["categories"].items(), key=lambda item: -item[1])
            yield "           by prompts: " + ", ".join(f"{name} {render.percent(gain)}" for name, gain in ordered)
    crossover = answer["crossover"]
    if crossover is not None:
        ends = [None if crossover[end] is None else f"{crossover[end]:.0f}" for end in ("low", "high")]
        interval = f" (95 %: {ends[0] or 'below'} to {ends[1] or 'above'})" if any(ends) else ""
        yield f"crossover  {crossover['why']}{interval}"


def _print_launch(launch: Mapping[str, Any]) -> None:
    words = launch["verdict"] or launch["state"]
    click.echo(f"\nlaunch {launch['launch']} on {launch['host']}, {launch['stage']} stage: {words}")
    click.echo(f"  began {render.clock(launch['begun_at'])}, ended {render.clock(launch['ended_at'])}")
    if launch["phases"]:
        click.echo("  phases " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in launch["phases"].items()))
    if launch["probe"] is not None:
        probe = launch["probe"]
        click.echo(f"  probe accept length {render.number(probe['accept_length'])} over {probe['verify_steps']} steps")
    for key in ("reason", "evidence", "advice", "log_path"):
        if launch[key]:
            click.echo(f"  {key:<8} {launch[key]}")
    if not launch["blocks"]:
        return
    columns = ["block", "concurrency", "round", "ok", "tok/s", "TTFT p50 ms", "TPOT p50 ms", "accept", "notes"]
    rows = [
        [
            str(block["block"]),
            str(block["concurrency"]),
            str(block["round"]),
            f"{block['n_ok']}/{block['n_requests']}",
            render.number(block["output_throughput"], 1),
            render.number(block["ttft_p50"], 1),
            render.number(block["tpot_p50"], 2),
            render.number(block["accept_length"]),
            "; ".join(filter(None, [block["invalid"], *block["log_flags"]])),
        ]
        for block in launch["blocks"]
    ]
    render.table(columns, rows)
