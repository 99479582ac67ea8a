"""Figures derived from a block's raw rows, by the formulas of :mod:`sweep.metrics.table`.

Percentiles are numpy's linear interpolation over raw rows. Latencies are milliseconds, speeds tokens per second.
A figure that the rows do not carry is None, never 0: nothing that failed becomes a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sweep.metrics.table import METRICS, STATISTICS, known
from sweep.model import BlockResult, RequestRecord

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective of one request, milliseconds; None is no limit. Used by ``goodput`` alone."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


def block_summary(
    block: BlockResult, *, slo: Slo | None = None, num_draft_tokens: int | None = None
) -> dict[str, float | None]:
    """Every metric of :data:`METRICS` for one block, also for one that is invalid (see :func:`value`).

    ``goodput`` needs ``slo`` and ``accept_rate`` needs ``num_draft_tokens``; both are None without.
    """
    good = [r for r in block.requests if r.ok]
    duration = block.elapsed_s
    out: dict[str, float | None] = dict.fromkeys(METRICS)
    out["success_ratio"] = len(good) / len(block.requests) if block.requests else None
    if good and duration > 0:
        out["output_throughput"] = sum(r.output_tokens or 0 for r in good) / duration
        out["request_throughput"] = len(good) / duration
        out["achieved_concurrency"] = sum(r.end_s - r.sent_s for r in good) / duration
        if slo is not None:
            out["goodput"] = sum(_meets(r, slo) for r in good) / duration
    samples = {"ttft": _array(good, ttft_ms), "tpot": _array(good, tpot_ms), "e2e": _array(good, e2e_ms)}
    for stem, sample in samples.items():
        for suffix in STATISTICS:
            out[f"{stem}_{suffix}"] = statistic(sample, suffix)
    tpot = samples["tpot"]
    speeds = 1000.0 / tpot[tpot > 0]
    out["per_user_speed_p50"] = statistic(speeds, "p50")
    out["per_user_speed_p5"] = statistic(speeds, "p5")
    steps = sum(r.verify_steps or 0 for r in good)
    correct = sum(r.correct_drafts or 0 for r in good if r.verify_steps)
    if steps:
        out["accept_length"] = 1 + correct / steps
        own = [1 + (r.correct_drafts or 0) / r.verify_steps for r in good if r.verify_steps]
        out["accept_length_request_mean"] = float(np.mean(own))
        if num_draft_tokens is not None and num_draft_tokens > 1:
            out["accept_rate"] = correct / (steps * (num_draft_tokens - 1))
    return out


def value(
    block: BlockResult, metric: str, *, slo: Slo | None = None, num_draft_tokens: int | None = None
) -> float | None:
    """One metric of a block that may be used; None where the block is invalid or does not carry it.

    Raises ``ConfigError`` for an unknown name.
    """
    known(metric)
    if block.invalid is not None:
        return None
    return block_summary(block, slo=slo, num_draft_tokens=num_draft_tokens)[metric]


def by_category(block: BlockResult) -> dict[str, dict[str, float | None]]:
    """Category -> its :func:`block_summary`, in order of first appearance.

    The wall time is shared out by busy request-seconds: D_c = D * sum(te - t0 of c) / sum(te - t0 of all). At
    concurrency 1 a category's throughput is therefore its tokens over its own requests' time, and with one category
    it is the block's.
    """
    busy = sum(r.end_s - r.sent_s for r in block.requests if r.ok)
    out: dict[str, dict[str, float | None]] = {}
    for category in dict.fromkeys(r.category for r in block.requests):
        rows = tuple(r for r in block.requests if r.category == category)
        share = sum(r.end_s - r.sent_s for r in rows if r.ok) / busy if busy > 0 else 0.0
        out[category] = block_summary(replace(block, requests=rows, elapsed_s=block.elapsed_s * share))
    return out


def accept_histogram(block: BlockResult) -> tuple[int, ...]:
    """Sum over successful requests: entry j counts verify steps that accepted exactly j drafts; () without any."""
    rows = [r.accept_histogram for r in block.requests if r.ok and r.accept_histogram]
    width = max((len(row) for row in rows), default=0)
    return tuple(sum(row[j] for row in rows if j < len(row)) for j in range(width))


def ttft_ms(request: RequestRecord) -> float | None:
    """Time to first token of one request, milliseconds."""
    return None if request.ttft_s is None else 1000.0 * request.ttft_s


def tpot_ms(request: RequestRecord) -> float | None:
    """Time per output token after the first, milliseconds; None for fewer than two tokens."""
    if request.ttft_s is None or request.output_tokens is None or request.output_tokens < 2:
        return None
    return 1000.0 * (request.end_s - request.sent_s - request.ttft_s) / (request.output_tokens - 1)


def e2e_ms(request: RequestRecord) -> float | None:
    """Time from send to last chunk, milliseconds."""
    return 1000.0 * (request.end_s - request.sent_s)


def _array(requests: Sequence[RequestRecord], figure: Callable[[RequestRecord], float | None]) -> Array:
    return np.array([x for x in map(figure, requests) if x is not None], dtype=np.float64)


def statistic(sample: Array, suffix: str) -> float | None:
    """``mean``, or a percentile such as ``p50``; None of an empty sample."""
    if not sample.size:
        return None
    return float(sample.mean()) if suffix == "mean" else float(np.percentile(sample, float(suffix[1:])))


def _meets(request: RequestRecord, slo: Slo) -> bool:
    limits = ((slo.ttft_ms, ttft_ms(request)), (slo.tpot_ms, tpot_ms(request)), (slo.e2e_ms, e2e_ms(request)))
    # A single-token answer has no TPOT and cannot break its limit.
    return all(limit is None or figure is None or figure <= limit for limit, figure in limits)
