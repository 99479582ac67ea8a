"""What the plots share: colours, axes, and the escaping of text from outside.

Colours of text, grid and ground are left to the page, which knows the reader's theme.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from sweep.metrics import METRICS

BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GREY = (
    "#4c8dff", "#e8833a", "#2fa36b", "#9b6dd7", "#e05561", "#2aa7b8", "#8a94a6",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "cross", "star", "hexagon")
Z95 = 1.959964  # for figures whose degrees of freedom are not stored
LABEL = 60  # characters of a name in a plot; the table has it whole
_GLYPHS = {
    "circle": "●", "square": "■", "triangle-up": "▲", "cross": "✚", "star": "★", "hexagon": "⬢", "diamond": "◆",
    "circle-open": "○", "x": "✖",
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One entry of a plot's legend: ``trace`` is its place in the figure, ``glyph`` a character like its markers."""

    name: str
    glyph: str
    colour: str
    trace: int


@dataclass(frozen=True)
class Plot:
    """One plot: ``key`` is its id on the page, ``how`` says in one sentence how to read it; ``wide`` takes the page's
    whole width."""

    key: str
    title: str
    how: str
    figure: go.Figure
    wide: bool = False

    def spec(self) -> str:
        """The figure as JSON that is safe inside a <script> element."""
        return script_json(self.figure.to_json() or "{}")

    def legend(self) -> list[Key]:
        """The named traces. The page writes them as text, which wraps and prints as plotly's own legend does not."""
        found: list[Key] = []
        for place, trace in enumerate(self.figure.data):
            if trace.name is None:
                continue
            line_only = trace.type == "scatter" and trace.mode == "lines"
            usual = "circle" if trace.type == "scatter" else "square"
            glyph = "╌" if line_only else _GLYPHS[getattr(trace.marker, "symbol", None) or usual]
            shade = trace.line.color if line_only else trace.marker.color or trace.line.color
            found.append(Key(html.unescape(trace.name), glyph, str(shade), place))
        return found


def short_names(labels: Mapping[int, str]) -> tuple[str, dict[int, str]]:
    """Trial -> its label without the leading words that all of them share, and those words; nothing is taken from a
    single arm."""
    words = {trial: label.split(" ") for trial, label in labels.items()}
    shared = 0
    while len(words) > 1 and all(len(w) > shared + 1 for w in words.values()):
        if len({w[shared] for w in words.values()}) > 1:
            break
        shared += 1
    prefix = " ".join(next(iter(words.values()))[:shared]) if shared else ""
    return prefix, {trial: " ".join(w[shared:]) for trial, w in words.items()}


def script_json(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def text(value: object, length: int = LABEL) -> str:
    """Any text from outside, escaped and cut, for a place where plotly reads markup."""
    words = str(value)
    return html.escape(words if len(words) <= length else words[: length - 1] + "…", quote=False)


def figure_of(height: int = 360, **layout: Any) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 12, "b": 56},
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
        **layout,
    )
    figure.update_xaxes(automargin=True, zeroline=False, ticks="outside", title_font_size=13)
    figure.update_yaxes(automargin=True, zeroline=False, ticks="outside", title_font_size=13)
    return figure


def gain_axis() -> dict[str, Any]:
    return {"title": {"text": "gain over no speculation"}, "tickformat": "+.0%", "zeroline": True, "zerolinewidth": 2}


def metric_axis(key: str) -> dict[str, Any]:
    metric, _, level = key.partition("@")
    unit = METRICS[metric].unit
    return {"title": {"text": f"{metric.replace('_', ' ')} at concurrency {level} ({unit})"}}


def colour(place: int) -> str:
    """The colour of the arm or host at this place."""
    return PALETTE[place % len(PALETTE)]
