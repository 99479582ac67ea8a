"""What the plots share: colours, axes, and the escaping of text from outside.

Colours of text, grid and ground are left to the page, which knows the reader's theme.
"""

from __future__ import annotations

import html
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


@dataclass(frozen=True)
class Plot:
    """One plot: ``key`` is its id on the page, ``how`` says in one sentence how to read it."""

    key: str
    title: str
    how: str
    figure: go.Figure
    small: bool = False

    def spec(self) -> str:
        """The figure as JSON that is safe inside a <script> element."""
        return script_json(self.figure.to_json() or "{}")


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
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
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
