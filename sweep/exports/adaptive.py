"""SGLang's ``--speculative-adaptive-config`` from measured loads: how many steps to draft at which batch size.

The file has integer-string keys, the lower bounds of batch size, each with ``candidate_steps``; one candidate pins the
steps of its range, 0 stands for no speculation. It takes EAGLE and EAGLE3 with topk 1, and the server must start with
a number of steps that is among the candidates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from storage import reading
from storage.records import StudyRow, TrialRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.model import ArmConfig, ArmGain, Comparison, Verdict

ALGORITHMS = ("EAGLE", "EAGLE3")
THROUGHPUT = "output_throughput"


def adaptive(store: Store, study: StudyRow) -> tuple[dict[str, dict[str, list[int]]], dict[str, Any]]:
    """(the file's content, {algorithm, draft_model, startup_num_steps, tiers: [{concurrency, steps, trial, gain}]}).

    Of the measured chains (topk 1) those of one drafter are used: the one that gains most anywhere. At each measured
    concurrency the fastest chain that is shown to beat no speculation stands, of those that cannot be told from it
    the one with fewest steps; none: 0. A tier begins at the geometric middle between two levels that differ. Raises
    UsageError where no chain was measured.
    """
    chains = _chains(store.trials(study.id))
    if not chains:
        raise UsageError(
            f"study {study.name!r} has no complete EAGLE or EAGLE3 arm with topk 1; an adaptive configuration takes no "
            "other. Measure some: topk: [1]."
        )
    rows = [
        row
        for row in reading.gains(store, study.id)
        if (row.metric, row.category, row.reference) == (THROUGHPUT, None, "baseline") and row.trial in chains
    ]
    rows = [row for row in rows if row.gain is not None]
    if not rows:
        raise UsageError(f"no chain of study {study.name!r} can be compared with no speculation yet")
    best = max(rows, key=lambda row: row.gain.estimate if row.gain else -1.0)
    family = _family(chains[best.trial or 0])
    levels: defaultdict[int, list[ArmGain]] = defaultdict(list)
    for row in rows:
        if row.trial is not None and _family(chains[row.trial]) == family:
            levels[row.concurrency].append(row)
    tiers = [_tier(level, levels[level], chains) for level in sorted(levels)]
    document = {str(bound): {"candidate_steps": [steps]} for bound, steps in bounds(tiers)}
    used = [tier["steps"] for tier in tiers if tier["steps"] > 0]
    return document, {
        "algorithm": family[0],
        "draft_model": family[1],
        "startup_num_steps": max(used, default=0),
        "tiers": tiers,
    }


def bounds(tiers: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """(lower bound of batch size, steps) from levels in rising order; neighbours with equal steps are one tier."""
    out: list[tuple[int, int]] = [(1, tiers[0]["steps"])]
    for before, after in pairwise(tiers):
        if after["steps"] != before["steps"]:
            out.append((math.ceil(math.sqrt(before["concurrency"] * after["concurrency"])), after["steps"]))
    return out


def _chains(trials: Sequence[TrialRow]) -> dict[int, ArmConfig]:
    out: dict[int, ArmConfig] = {}
    for trial in trials:
        config = trial.effective.config if trial.effective else trial.config
        chain = config.algorithm in ALGORITHMS and config.topk == 1 and config.num_steps is not None
        if chain and config.cuda_graph and trial.verdict is Verdict.COMPLETE:
            out[trial.number] = config
    return out


def _family(config: ArmConfig) -> tuple[str | None, str | None]:
    return config.algorithm, config.draft_model


def _tier(level: int, rows: Sequence[ArmGain], chains: Mapping[int, ArmConfig]) -> dict[str, Any]:
    faster = [(r.trial, r.gain) for r in rows if r.comparison is Comparison.FASTER and r.gain and r.trial is not None]
    if not faster:
        return {"concurrency": level, "steps": 0, "trial": None, "gain": None}
    lead = max(gain.estimate for _, gain in faster)
    tied = [(trial, gain) for trial, gain in faster if gain.high >= lead]
    trial, gain = min(tied, key=lambda item: (chains[item[0]].num_steps or 0, -item[1].estimate))
    return {"concurrency": level, "steps": chains[trial].num_steps or 0, "trial": trial, "gain": gain.as_dict()}
