"""Objectives and constraints as a user writes them."""

from __future__ import annotations

import re

from sweep.errors import ConfigError
from sweep.metrics.table import known
from sweep.model import Constraint, Objective

_CONSTRAINT = re.compile(
    r"^\s*(?P<metric>[A-Za-z0-9_ ]+?)\s*(?:@\s*(?P<concurrency>\d+))?\s*(?P<op><=|>=|<|>)\s*"
    r"(?P<limit>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?P<unit>[A-Za-z/%µ]*)\s*$"
)
_OBJECTIVE = re.compile(r"^\s*(?P<metric>[A-Za-z0-9_ ]+?)\s*(?:@\s*(?P<concurrency>\d+))?\s*$")
# unit as written -> (unit of the metric, factor)
_UNITS: dict[str, tuple[str, float]] = {
    "us": ("ms", 1e-3),
    "µs": ("ms", 1e-3),
    "ms": ("ms", 1.0),
    "s": ("ms", 1e3),
    "tok/s": ("tok/s", 1.0),
    "tokens/s": ("tok/s", 1.0),
    "req/s": ("req/s", 1.0),
    "requests/s": ("req/s", 1.0),
    "tok/step": ("tok/step", 1.0),
    "requests": ("requests", 1.0),
}


def parse_constraint(text: str) -> Constraint:
    """``"ttft_p99 < 200 ms"``, ``"ttft_p99@32 < 0.2 s"``, ``"success_ratio > 0.99"`` -> Constraint.

    The limit is converted to the metric's unit; without a unit it is in it already. Raises ``ConfigError``.
    """
    match = _CONSTRAINT.match(text)
    if match is None:
        raise ConfigError(f"cannot read constraint {text!r}; write METRIC[@CONCURRENCY] < LIMIT [UNIT]")
    metric = known(match["metric"])
    limit = float(match["limit"])
    if match["unit"]:
        unit, factor = _UNITS.get(match["unit"].lower(), (match["unit"], 1.0))
        if unit != metric.unit:
            raise ConfigError(f"constraint {text!r}: {metric.name} is in {metric.unit}, not in {match['unit']!r}")
        limit *= factor
    return Constraint(
        metric=metric.name,
        concurrency=_concurrency(match["concurrency"], text),
        below=match["op"].startswith("<"),
        limit=limit,
        text=text.strip(),
    )


def parse_objective(text: str, *, concurrency: int | None = None, direction: str | None = None) -> Objective:
    """``"output_throughput@8"`` -> Objective; ``concurrency`` is used where the text names none (else 1).

    ``direction`` (``maximize`` or ``minimize``) may be stated but not contradict the metric. Raises ``ConfigError``.
    """
    match = _OBJECTIVE.match(text)
    if match is None:
        raise ConfigError(f"cannot read objective {text!r}; write METRIC[@CONCURRENCY]")
    metric = known(match["metric"])
    maximize = metric.better == "higher"
    if direction is not None and direction != ("maximize" if maximize else "minimize"):
        raise ConfigError(
            f"objective {text!r}: direction {direction!r} is wrong, {metric.name} is better when {metric.better}"
        )
    level = _concurrency(match["concurrency"], text)
    return Objective(metric.name, level or concurrency or 1, maximize)


def satisfied(constraint: Constraint, figure: float) -> bool:
    """Does a figure (in the metric's unit) keep the constraint? The limit itself keeps it."""
    return figure <= constraint.limit if constraint.below else figure >= constraint.limit


def _concurrency(text: str | None, whole: str) -> int | None:
    if text is None:
        return None
    level = int(text)
    if level < 1:
        raise ConfigError(f"{whole!r}: concurrency must be at least 1")
    return level
