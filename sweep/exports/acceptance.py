"""What a drafter gets accepted, for simulators: accept length and histogram by load and by prompt category."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from storage import reading
from storage.records import StudyRow, TrialRow
from storage.store import Store
from sweep.errors import UsageError

FORMAT = "specsweep-acceptance-1"


def acceptance(store: Store, study: StudyRow, trial: TrialRow) -> dict[str, Any]:
    """{format, study, simulated, ..., overall, by_category, by_concurrency}; each part is what :func:`summary` makes.

    Raises UsageError for an arm without accept counters.
    """
    rows = reading.acceptance(store, study.id, trial.number)
    if not rows:
        raise UsageError(f"trial {trial.number} has no accept counters (no speculation, or the chat endpoint)")
    categories: defaultdict[str, list[Any]] = defaultdict(list)
    levels: defaultdict[int, list[Any]] = defaultdict(list)
    for level, category, *counters in rows:
        categories[category].append(counters)
        levels[level].append(counters)
    config = trial.effective.config if trial.effective else trial.config
    return {
        "format": FORMAT,
        "study": study.name,
        "simulated": study.simulated,
        "trial": trial.number,
        "model": (study.spec.get("model") or {}).get("path"),
        "engine_version": trial.effective.version if trial.effective else None,
        "config": config.as_dict(),
        "overall": summary([counters for _, _, *counters in rows]),
        "by_category": {name: summary(part) for name, part in sorted(categories.items())},
        "by_concurrency": {str(level): summary(part) for level, part in sorted(levels.items())},
    }


def summary(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """{accept_length, requests, verify_steps, accept_histogram, accept_by_depth} of (steps, accepted, histogram) rows.

    ``accept_length`` is 1 + accepted drafts / verify steps, tokens per step. ``accept_histogram[j]`` counts verify
    steps that accepted j drafts; ``accept_by_depth[d]`` is the share that accepted draft d + 1 among those that had
    accepted d, None where none had.
    """
    steps = sum(row[0] for row in rows)
    accepted = sum(row[1] for row in rows)
    histogram = [0] * max(len(row[2]) for row in rows)
    for row in rows:
        for depth, count in enumerate(row[2]):
            histogram[depth] += count
    reached = [sum(histogram[depth:]) for depth in range(len(histogram))]
    return {
        "accept_length": 1 + accepted / steps,
        "requests": len(rows),
        "verify_steps": steps,
        "accept_histogram": histogram,
        "accept_by_depth": [deeper / before if before else None for before, deeper in pairwise(reached)],
    }
