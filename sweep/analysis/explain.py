"""Why an arm gains: more tokens per step against dearer steps.

With accept length tau, step time s of the arm and s0 of the baseline (one token a step), throughput is proportional
to tau / s, so 1 + gain = tau / (s / s0) and log(1 + gain) = log(tau) - log(s / s0): what acceptance gives and what the
step takes. Break-even accept length = tau / (1 + gain) = s / s0. Leviathan et al. 2023, eq. 1, is the same identity
for a chain. The step time is read off the throughput: s = concurrency * tau / throughput, prefill included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sweep.analysis.types import Explanation
from sweep.model import ArmGain


def explain(row: ArmGain, categories: Mapping[str, ArmGain], baseline_level: float, busy: float) -> Explanation | None:
    """``row``: a throughput gain over the baseline; ``baseline_level`` tok/s; ``busy``: requests in flight on average.

    None where the arm has no accept counters or no gain.
    """
    if row.gain is None or row.trial is None or not row.accept_length or baseline_level <= 0:
        return None
    ratio = 1 + row.gain.estimate
    cost = row.accept_length / ratio
    baseline_step = 1000 * busy / baseline_level
    return Explanation(
        trial=row.trial,
        concurrency=row.concurrency,
        accept_length=row.accept_length,
        break_even=cost,
        step_ms=baseline_step * cost,
        baseline_step_ms=baseline_step,
        step_cost=cost,
        from_acceptance=math.log(row.accept_length),
        from_step_cost=-math.log(cost),
        categories={name: r.gain.estimate for name, r in categories.items() if r.gain is not None},
    )
