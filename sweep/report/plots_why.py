"""The plots about why and when: accepted drafts, step time, the baseline over time, one setting at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sweep.model import Role, Verdict
from sweep.report.drawing import BLUE, GREY, ORANGE, Z95, Plot, colour, figure_of, gain_axis, metric_axis, text
from sweep.report.facts import Facts
from sweep.report.plots_gain import HEIGHT, detail_names
from sweep.sentences import percent

TICK = 16  # characters of a value under a small plot; 7 of its beginning and 8 of its end stay of a longer one
KNOWN_DRIFT = 0.2  # half of a 95 % interval an hour, as a fraction; a study of minutes says less than this


def depth(facts: Facts) -> Plot | None:
    """How many drafts a verify step accepts."""
    found = facts.histograms()
    arms = [trial for trial in facts.detail_trials() if sum(found.get(trial, ()))]
    if not arms:
        return None
    prefix, names = detail_names(facts)
    figure = figure_of(
        HEIGHT,
        xaxis={"title": {"text": "drafts accepted in a verify step"}, "dtick": 1},
        yaxis={"title": {"text": "share of verify steps"}, "tickformat": ".0%", "rangemode": "tozero"},
        barmode="group",
    )
    for place, trial in enumerate(arms):
        total = sum(found[trial])
        figure.add_bar(
            x=list(range(len(found[trial]))),
            y=[count / total for count in found[trial]],
            marker={"color": colour(place)},
            name=text(f"{trial}: {names[trial]}"),
            hovertemplate="%{x} accepted: %{y:.1%}<extra>%{fullData.name}</extra>",
        )
    how = f"A tall bar at 0 means wasted drafts; a tall last bar means that a deeper draft may pay.{prefix}"
    return Plot("depth", "Accepted drafts by depth", how, figure)


def step_time(facts: Facts) -> Plot | None:
    """What a verify step costs against a plain decode step."""
    level = facts.objective.concurrency
    found = {e["trial"]: e for e in facts.analysis.get("explanations", []) if e["concurrency"] == level}
    arms = [found[trial] for trial in reversed(facts.detail_trials()) if trial in found]
    if not arms:
        return None
    labels = {row["trial"]: row["label"] for row in facts.ranking}
    names = [f"trial {arm['trial']}" for arm in arms]
    whole = [text(labels[arm["trial"]]) for arm in arms]
    room = 1.4 * max(arm["step_ms"] for arm in arms)  # at the right, for what stands beside the bars
    figure = figure_of(
        max(HEIGHT, 100 + 40 * len(arms)),
        xaxis={"title": {"text": "milliseconds per verify step"}, "range": [0, room]},
        barmode="stack",
        bargap=0.35,
    )
    figure.update_yaxes(type="category", ticks="")
    figure.add_bar(
        y=names,
        x=[arm["baseline_step_ms"] for arm in arms],
        orientation="h",
        marker={"color": GREY},
        name="a plain decode step",
        customdata=whole,
        hovertemplate="%{customdata}<br>plain step %{x:.2f} ms<extra></extra>",
    )
    figure.add_bar(
        y=names,
        x=[arm["step_ms"] - arm["baseline_step_ms"] for arm in arms],
        orientation="h",
        marker={"color": ORANGE},
        name="drafting and verifying on top",
        text=[f"{arm['accept_length']:.2f} ÷ {arm['step_cost']:.2f}" for arm in arms],
        textposition="outside",
        constraintext="none",
        customdata=whole,
        hovertemplate="%{customdata}<br>on top %{x:.2f} ms<extra></extra>",
    )
    how = (
        f"At concurrency {level}, prefill included. Speculation pays where a step emits more tokens than it costs "
        "plain steps. Beside each bar: accept length ÷ step cost, which is 1 + gain."
    )
    return Plot("step", "Step time", how, figure)


def over_time(facts: Facts) -> Plot | None:
    """The baseline over the night, with the trials measured between."""
    goal = facts.objective
    drift = [
        d for d in facts.analysis.get("drift", []) if (d["metric"], d["concurrency"]) == (goal.metric, goal.concurrency)
    ]
    by_launch: defaultdict[tuple[int, str, int | None], list[float]] = defaultdict(list)
    started: dict[int, float] = {}
    for block in facts.blocks:
        value = block.figures[goal.metric]
        if block.concurrency == goal.concurrency and block.invalid is None and value is not None:
            if block.role == Role.ENGINE_DEFAULT.value:
                continue
            by_launch[block.launch_id, block.host, block.trial].append(value)
            started.setdefault(block.launch_id, block.started_at)
    if not by_launch:
        return None
    figure = figure_of(380, xaxis={"title": {"text": "time (UTC)"}, "type": "date"}, yaxis=metric_axis(goal.key))
    labels = {trial.number: trial.config.label() for trial in facts.trials}
    hosts = sorted({host for _, host, _ in by_launch})
    for place, host in enumerate(hosts):
        for is_baseline in (True, False):
            rows = sorted(
                (started[launch], sum(values) / len(values), trial)
                for (launch, where, trial), values in by_launch.items()
                if where == host and (trial is None) == is_baseline
            )
            if not rows:
                continue
            what = "no speculation" if is_baseline else "trials"
            figure.add_scatter(
                x=[_utc(at) for at, _, _ in rows],
                y=[value for _, value, _ in rows],
                mode="lines+markers" if is_baseline else "markers",
                line={"color": colour(place), "width": 1.5},
                marker={
                    "color": colour(place),
                    "symbol": "diamond" if is_baseline else "circle-open",
                    "size": 9,
                },
                name=text(f"{host}: {what}"),
                text=["no speculation" if t is None else f"trial {t}: {text(labels[t])}" for _, _, t in rows],
                hovertemplate="%{text}<br>%{y:.4g} at %{x|%H:%M:%S}<extra></extra>",
            )
    slopes = [
        f"{d['host']} {percent(d['per_hour'])} ± {100 * Z95 * d['per_hour_se']:.1f} an hour"
        for d in drift
        if d["per_hour_se"] * Z95 < KNOWN_DRIFT
    ]
    how = "A baseline that moves is taken out of every gain."
    if slopes:
        how += f" Drift: {', '.join(slopes)}."
    elif drift:
        how += " The study was too short to give a drift per hour."
    return Plot("drift", "Baseline over time", how, figure, wide=True)


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def effects(facts: Facts) -> list[Plot]:
    """One small plot for each setting that took several values: the gain of every arm by that value."""
    gains = {row["trial"]: row["gain"] for row in facts.ranking if row["gain"] is not None}
    rows = [(t, t.config.as_dict()) for t in facts.trials if t.verdict is Verdict.COMPLETE and t.number in gains]
    axes: defaultdict[str, dict[str, list[tuple[int, str, float]]]] = defaultdict(lambda: defaultdict(list))
    order: defaultdict[str, set[Any]] = defaultdict(set)
    for trial, config in rows:
        settings = {key: value for key, value in config.items() if key != "args"} | config.get("args", {})
        for name, value in settings.items():
            if value is not None:
                order[name].add(value)
                point = (trial.number, trial.config.label(), gains[trial.number]["estimate"])
                axes[name][_written(value)].append(point)
    out: list[Plot] = []
    for number, (name, groups) in enumerate(axes.items()):
        if len(groups) < 2:
            continue
        values = [_written(value) for value in sorted(order[name], key=lambda v: (isinstance(v, str), v))]
        ticks = _ticks(values)
        figure = figure_of(240, yaxis=gain_axis())
        figure.update_layout(margin={"l": 56, "r": 8, "t": 8, "b": 40})
        figure.update_yaxes(title=None)
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=list(ticks.values()))
        figure.add_scatter(
            x=[ticks[value] for value in values for _ in groups[value]],
            y=[gain for value in values for _, _, gain in groups[value]],
            mode="markers",
            marker={"size": 8, "color": BLUE, "opacity": 0.65},
            text=[f"trial {t}: {text(label)}" for value in values for t, label, _ in groups[value]],
            hovertemplate="%{text}<br>%{y:+.1%}<extra></extra>",
        )
        figure.add_scatter(
            x=list(ticks.values()),
            y=[_median([gain for _, _, gain in groups[value]]) for value in values],
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 22, "color": ORANGE, "line": {"width": 3}},
            hovertemplate="median %{y:+.1%}<extra></extra>",
        )
        out.append(Plot(f"effect-{number}", name, "", figure))
    return out


def _ticks(values: Sequence[str]) -> dict[str, str]:
    """Distinct values -> distinct words for an axis. Long ones lose their middle, since drafters of a family begin
    alike; where two would become equal they stay whole."""
    cut = [value if len(value) <= TICK else f"{value[:7]}…{value[-8:]}" for value in values]
    shown = [value if cut.count(short) > 1 else short for value, short in zip(values, cut, strict=True)]
    return {value: text(words, len(words)) for value, words in zip(values, shown, strict=True)}


def _written(value: object) -> str:
    """A value as the YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
