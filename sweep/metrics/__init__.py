"""What a block of requests says: every figure derived from raw rows is defined here, once.

``table`` names the metrics, ``figures`` computes them, ``words`` reads what a user writes about them. Pure: no I/O.
"""

from sweep.metrics.figures import (
    Slo,
    accept_histogram,
    block_summary,
    by_category,
    e2e_ms,
    tpot_ms,
    ttft_ms,
    value,
)
from sweep.metrics.table import METRICS, Metric, known
from sweep.metrics.words import parse_constraint, parse_objective, satisfied

__all__ = [
    "METRICS",
    "Metric",
    "Slo",
    "accept_histogram",
    "block_summary",
    "by_category",
    "e2e_ms",
    "known",
    "parse_constraint",
    "parse_objective",
    "satisfied",
    "tpot_ms",
    "ttft_ms",
    "value",
]
