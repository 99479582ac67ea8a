"""The table of metrics: name, unit, direction, formula and who else computes it so.

Symbols: t0 send, t1 first chunk with output, te last chunk with output, n output tokens as the server counts them,
S the successful requests (``RequestRecord.ok``), D the block's wall time from first send to last chunk.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from sweep.errors import ConfigError

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of :data:`METRICS`. ``source`` names the tools that use the same formula."""

    name: str
    unit: str
    better: Better
    description: str
    formula: str
    source: str


_SERVING = "vLLM and SGLang benchmark clients, inference-perf"
STATISTICS: dict[str, str] = {
    "mean": "arithmetic mean over requests",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_LATENCIES: dict[str, tuple[str, str]] = {
    "ttft": ("time to first token", "t1 - t0"),
    "tpot": ("time per output token after the first; requests of one token are left out", "(te - t1) / (n - 1)"),
    "e2e": ("time from send to last token", "te - t0"),
}


def _table() -> dict[str, Metric]:
    rows = [
        Metric(
            "output_throughput",
            "tok/s",
            "higher",
            "output tokens of successful requests per second of the block",
            "sum(n over S) / D",
            _SERVING,
        ),
        Metric(
            "request_throughput", "req/s", "higher", "successful requests per second of the block", "|S| / D", _SERVING
        ),
        Metric(
            "goodput",
            "req/s",
            "higher",
            "requests per second that met every limit of the SLO",
            "|requests of S within all SLO limits| / D",
            _SERVING,
        ),
    ]
    for stem, (meaning, formula) in _LATENCIES.items():
        for suffix, statistic in STATISTICS.items():
            rows.append(
                Metric(
                    f"{stem}_{suffix}",
                    "ms",
                    "lower",
                    f"{meaning}: {statistic}",
                    f"{suffix} over S of {formula}",
                    _SERVING,
                )
            )
    rows += [
        Metric(
            "per_user_speed_p50",
            "tok/s",
            "higher",
            "what the median user reads per second",
            "p50 over S of (n - 1) / (te - t1)",
            "vLLM Pareto plots, InferenceX",
        ),
        Metric(
            "per_user_speed_p5",
            "tok/s",
            "higher",
            "what the slowest twentieth of users reads per second",
            "p5 over S of (n - 1) / (te - t1)",
            "vLLM Pareto plots, InferenceX",
        ),
        Metric(
            "accept_length",
            "tok/step",
            "higher",
            "tokens emitted per verify step, weighted by steps; 1.0 means that every draft was refused",
            "1 + sum(correct drafts) / sum(verify steps)",
            "vLLM, InferenceX; SGLang's own spec_accept_length also counts the prefill token",
        ),
        Metric(
            "accept_length_request_mean",
            "tok/step",
            "higher",
            "mean over requests of their own accept length",
            "mean over S of 1 + correct drafts / verify steps",
            "Spec-Bench, specdec_bench",
        ),
        Metric(
            "accept_rate",
            "fraction",
            "higher",
            "share of proposed drafts that were accepted; not comparable across topk and num_draft_tokens",
            "sum(correct drafts) / (sum(verify steps) * (num_draft_tokens - 1))",
            "SGLang, vLLM",
        ),
        Metric(
            "success_ratio", "fraction", "higher", "successful requests among all sent", "|S| / |requests|", _SERVING
        ),
        Metric(
            "achieved_concurrency",
            "requests",
            "higher",
            "requests in flight on average; a gap to the requested value means that client or server was the limit",
            "sum(te - t0 over S) / D",
            "SGLang and vLLM benchmark clients",
        ),
    ]
    return {row.name: row for row in rows}


METRICS: dict[str, Metric] = _table()


def known(metric: str) -> Metric:
    """The metric of that name; ``ConfigError`` with the nearest name otherwise."""
    name = metric.strip().lower().replace(" ", "_")
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(METRICS)}"
        raise ConfigError(f"unknown metric {metric!r}; {hint}")
    return METRICS[name]
