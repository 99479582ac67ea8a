"""The plots about what an arm gains: front, load, prompt category, acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweep.metrics import METRICS
from sweep.report.drawing import (
    BLUE,
    DASHES,
    GREY,
    ORANGE,
    SYMBOLS,
    Z95,
    Plot,
    colour,
    figure_of,
    gain_axis,
    metric_axis,
    short_names,
    text,
)
from sweep.report.facts import Facts
from sweep.sentences import interval

CATEGORY_ARMS = 3
HEIGHT = 340  # pixels of a plot that stands beside another


def pareto(facts: Facts) -> Plot | None:
    """The first two objectives of the front."""
    points = facts.front["points"]
    if not points:
        return None
    x, y = facts.front["objectives"][:2]
    labels = {trial.number: trial.config.label() for trial in facts.trials}
    figure = figure_of(380, xaxis=metric_axis(x), yaxis=metric_axis(y))
    groups = (
        ("behind the front", GREY, "circle-open", 8, [p for p in points if not p["on_front"] and not p["is_baseline"]]),
        ("on the front", BLUE, "circle", 11, [p for p in points if p["on_front"] and not p["is_baseline"]]),
        ("no speculation", ORANGE, "diamond", 13, [p for p in points if p["is_baseline"]]),
    )
    for name, shade, symbol, size, chosen in groups:
        if not chosen:
            continue
        chosen = sorted(chosen, key=lambda point: point["values"][x])
        figure.add_scatter(
            x=[p["values"][x] for p in chosen],
            y=[p["values"][y] for p in chosen],
            error_x=_errors([p["stderr"][x] for p in chosen], shade),
            error_y=_errors([p["stderr"][y] for p in chosen], shade),
            mode="lines+markers" if name == "on the front" else "markers",
            line={"shape": "linear", "width": 1, "dash": "dot"},
            marker={"size": size, "color": shade, "symbol": symbol},
            name=name,
            text=[
                "no speculation" if p["is_baseline"] else f"trial {p['trial']}: {text(labels[p['trial']])}"
                for p in chosen
            ],
            hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        )
    how = f"Along: {_better(x)}. Up: {_better(y)}. Bars are 95 % intervals."
    if len(facts.front["objectives"]) > 2:
        how += " The front is over all objectives; two are drawn."
    if any(p["on_front"] and not p["is_baseline"] for p in points) and facts.front["hypervolume"] is not None:
        how += f" The front covers {100 * facts.front['hypervolume']:.0f} % of the box between worst and best."
    elif all(p["is_baseline"] for p in points if p["on_front"]):
        how += " No speculation alone is on the front."
    return Plot("pareto", "Pareto front", how, figure, wide=True)


def _better(key: str) -> str:
    name, _, level = key.partition("@")
    return f"{name.replace('_', ' ')} at {level}, {METRICS[name].better} is better"


def _errors(stderr: Sequence[float | None], shade: str) -> dict[str, Any]:
    half = [Z95 * (error or 0.0) for error in stderr]
    return {"array": half, "visible": any(half), "color": shade, "thickness": 1, "width": 3}


def detail_names(facts: Facts) -> tuple[str, dict[int, str]]:
    """A sentence with the words that the arms drawn one by one share (or nothing); trial -> the rest of its name."""
    labels = {row["trial"]: row["label"] for row in facts.ranking}
    prefix, names = short_names({trial: labels[trial] for trial in facts.detail_trials()})
    return (f" All are {prefix}." if prefix else ""), names


def by_concurrency(facts: Facts) -> Plot | None:
    """Gain over the load, with the crossover of the leading arm."""
    gains = facts.throughput_gains()
    levels = sorted({level for rows in gains.values() for level in rows})
    if len(levels) < 2:
        return None
    prefix, names = detail_names(facts)
    figure = figure_of(HEIGHT, xaxis={"title": {"text": "concurrent requests"}, "type": "log"}, yaxis=gain_axis())
    figure.update_xaxes(tickvals=levels, ticktext=[str(level) for level in levels])
    for place, trial in enumerate(facts.detail_trials()):
        rows = sorted(gains.get(trial, {}).values(), key=lambda row: row.concurrency)
        if not rows:
            continue
        known = [row.gain for row in rows if row.gain is not None]
        figure.add_scatter(
            x=[row.concurrency for row in rows],
            y=[gain.estimate for gain in known],
            error_y={
                "array": [gain.high - gain.estimate for gain in known],
                "arrayminus": [gain.estimate - gain.low for gain in known],
                "thickness": 1,
                "width": 3,
            },
            mode="lines+markers",
            line={"color": colour(place), "dash": DASHES[place % len(DASHES)]},
            marker={"size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]},
            name=text(f"{trial}: {names[trial]}"),
            hovertemplate="%{x} requests: %{y:+.1%}<extra>%{fullData.name}</extra>",
        )
    how = f"Output throughput against no speculation; below 0 speculation loses.{prefix}"
    leader = facts.leader["trial"] if facts.leader else None
    crossing = next((c for c in facts.analysis.get("crossover", []) if c["trial"] == leader), None)
    if crossing is not None:
        how += f" Trial {leader} {crossing['why']}"
        if crossing["estimate"] is not None:
            figure.add_vline(x=crossing["estimate"], line={"color": GREY, "dash": "dot", "width": 1.5})
            low, high = (f"{v:.0f}" if v is not None else "open" for v in (crossing["low"], crossing["high"]))
            how += f" (95 %: {low} to {high}; the dotted line)"
        how += "."
    return Plot("concurrency", "Gain by concurrency", how, figure)


def by_category(facts: Facts) -> Plot | None:
    """Gain by kind of prompt, of the first few arms."""
    goal = facts.objective
    gains = facts.category_gains(goal.metric, goal.concurrency)
    found = gains or facts.category_gains("output_throughput", goal.concurrency)
    arms = [trial for trial in facts.detail_trials() if trial in found][:CATEGORY_ARMS]
    categories = sorted({category for trial in arms for category in found[trial]})
    if len(categories) < 2:
        return None
    prefix, names = detail_names(facts)
    height = max(HEIGHT, 110 + 20 * len(categories) * len(arms))
    figure = figure_of(height, xaxis=gain_axis(), barmode="group", bargap=0.3)
    figure.update_yaxes(type="category", ticks="", autorange="reversed")  # the first arm and category on top
    for place, trial in enumerate(arms):
        rows = [(category, found[trial][category].gain) for category in categories if category in found[trial]]
        known = [(category, gain) for category, gain in rows if gain is not None]
        figure.add_bar(
            y=[text(category) for category, _ in known],
            x=[gain.estimate for _, gain in known],
            orientation="h",
            error_x={
                "array": [gain.high - gain.estimate for _, gain in known],
                "arrayminus": [gain.estimate - gain.low for _, gain in known],
                "thickness": 1,
                "width": 3,
                "color": GREY,
            },
            marker={"color": colour(place)},
            name=text(f"{trial}: {names[trial]}"),
            hovertemplate="%{y}: %{x:+.1%}<extra>%{fullData.name}</extra>",
        )
    how = f"At concurrency {goal.concurrency}, with 95 % intervals: which prompts gain and which lose.{prefix}"
    return Plot("category", "Gain by prompt category", how, figure)


def acceptance(facts: Facts) -> Plot | None:
    """Accept length against gain, and what the leading arm would need."""
    rows = [row for row in facts.ranking if row["gain"] is not None and row["accept_length"] is not None]
    if not rows:
        return None
    figure = figure_of(HEIGHT, xaxis={"title": {"text": "accept length (tokens per verify step)"}}, yaxis=gain_axis())
    figure.add_scatter(
        x=[row["accept_length"] for row in rows],
        y=[row["gain"]["estimate"] for row in rows],
        error_y={
            "array": [row["gain"]["high"] - row["gain"]["estimate"] for row in rows],
            "arrayminus": [row["gain"]["estimate"] - row["gain"]["low"] for row in rows],
            "thickness": 1,
            "width": 3,
            "color": GREY,
        },
        mode="markers",
        marker={"size": 10, "color": BLUE},
        name="arms",
        text=[f"trial {row['trial']}: {text(row['label'])}<br>{interval(row['gain'])}" for row in rows],
        hovertemplate="%{text}<br>accept length %{x:.2f}<extra></extra>",
    )
    how = "The line at 0 is break-even; an arm above it pays."
    lead = rows[0]
    even = lead["break_even_accept_length"]
    if even is not None and even > 0:
        ends = sorted((lead["accept_length"], even))
        xs = [max(1.0, ends[0] * 0.97), ends[1] * 1.03]
        figure.add_scatter(
            x=xs,
            y=[x / even - 1 for x in xs],
            mode="lines",
            line={"color": ORANGE, "dash": "dash"},
            name=f"trial {lead['trial']} at other accept lengths",
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[even],
            y=[0.0],
            mode="markers",
            marker={"size": 12, "symbol": "x", "color": ORANGE},
            name=f"its break-even: {even:.2f}",
            hovertemplate=f"break-even accept length {even:.2f}<extra></extra>",
        )
        how += f" Trial {lead['trial']} breaks even at {even:.2f} and measured {lead['accept_length']:.2f}."
    return Plot("acceptance", "Accept length against gain", how, figure)
