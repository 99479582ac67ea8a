"""The HTML report: one file that needs no network and opens from disk.

Everything from outside passes the template engine's escaping; plots carry theirs (``sweep.report.drawing``). A content
security policy in the page forbids every connection besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # plotly ships no types

from storage.records import TrialRow
from sweep import __version__
from sweep.metrics import METRICS
from sweep.model import Verdict
from sweep.report import plots_gain, plots_why
from sweep.report.drawing import Plot
from sweep.report.facts import Facts
from sweep.report.provenance import asked_and_effective, provenance
from sweep.sentences import UNBROKEN, percent, tie_because

MAKERS: Sequence[Callable[[Facts], Plot | None]] = (
    plots_gain.pareto,
    plots_gain.by_concurrency,
    plots_gain.by_category,
    plots_gain.acceptance,
    plots_why.depth,
    plots_why.step_time,
    plots_why.over_time,
)


def render(facts: Facts, *, revision: str | None = None) -> str:
    """The page. ``revision``: the live page's state, which makes it ask its server for a newer one; the live page
    loads plotly from ``plotly.js`` beside it instead of carrying it."""
    ranked = {row["trial"]: row for row in facts.ranking}
    drawn = laid_out([plot for make in MAKERS if (plot := make(facts)) is not None])
    environment = Environment(
        loader=PackageLoader("sweep.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"pct": percent, "num": number, "utc": utc, "duration": duration, "unbroken": unbroken}
    source = environment.loader
    assert source is not None
    return environment.get_template("report.html.j2").render(
        facts=facts,
        study=facts.study,
        plots=drawn,
        effects=plots_why.effects(facts),
        label_of={trial.number: trial.config.label() for trial in facts.trials},
        spec=lambda plot: Markup(plot.spec()),  # escaped for a script element by itself
        rows=sorted(
            (arm_row(trial, ranked.get(trial.number)) for trial in facts.trials),
            key=lambda row: (row["rank"] is None, row["rank"], row["trial"]),
        ),
        noise=[(line, METRICS[line["metric"]]) for line in facts.analysis.get("noise", [])],
        hours=facts.gpu_hours(),
        provenance=provenance(facts),
        flags=asked_and_effective(facts),
        plotly=Markup(get_plotlyjs()) if revision is None else None,
        css=Markup(source.get_source(environment, "report.css")[0]),
        js=Markup(source.get_source(environment, "report.js")[0]),
        revision=revision,
        version=__version__,
    )


def laid_out(plots: Sequence[Plot]) -> list[Plot]:
    """The same, two beside each other; one that would stand beside nothing takes the whole width."""
    out: list[Plot] = []
    pending = 0  # narrow ones since the last wide one
    for place, plot in enumerate(plots):
        last = place + 1 == len(plots) or plots[place + 1].wide
        lonely = not plot.wide and last and pending % 2 == 0
        out.append(replace(plot, wide=True) if lonely else plot)
        pending = 0 if plot.wide else pending + 1
    return out


def plotly_js() -> str:
    """The script that the live page loads."""
    return str(get_plotlyjs())


def arm_row(trial: TrialRow, ranked: Mapping[str, Any] | None) -> dict[str, Any]:
    """One line of the table of all arms; ``ranked`` is its row of the ranking where it has one."""
    config = (trial.effective.config if trial.effective else trial.config).as_dict()
    return {
        "trial": trial.number,
        "label": trial.config.label(),
        "config": config,
        "result": ranked["comparison"] if ranked else trial.verdict.value if trial.verdict else trial.state.value,
        "tie": tie_because(ranked["tie_because"]) if ranked and ranked["tie_because"] else None,
        "failed": trial.verdict is not None and trial.verdict is not Verdict.COMPLETE,
        "rank": ranked["rank"] if ranked else None,
        "value": ranked["value"] if ranked else None,
        "gain": ranked["gain"] if ranked else None,
        "accept_length": ranked["accept_length"] if ranked else None,
        "break_even": ranked["break_even_accept_length"] if ranked else None,
        "stage": ranked["gain"]["stage"] if ranked and ranked["gain"] else "",
        "host": trial.host or "",
        "flags": [flag for flag in trial.flags if flag != "simulated"],
        "minutes": None if trial.seconds is None else trial.seconds / 60,
    }


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def unbroken(text: str) -> Markup:
    """The text, escaped; no line of it ends inside an interval or begins with the % of its number. The characters stay
    what they are, for whoever copies them."""
    pieces = UNBROKEN.split(text)  # every other one is a match
    whole = Markup('<span class="whole">{}</span>')
    return Markup("").join(whole.format(piece) if place % 2 else piece for place, piece in enumerate(pieces))


def utc(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """``2 h 05 min``, ``7 min 03 s``, ``41 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
