"""The first launches of a cost model: few, and each teaches much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweep.model import ArmConfig
from sweep.search.view import Told

# (words, num_steps, topk, num_draft_tokens): a deep chain teaches acceptance at every depth below it, a wide tree what
# width adds and verification costs.
RECIPES = (
    ("deep chain", 7, 1, 8),
    ("wide tree", 4, 8, 32),
)


def pick(history: Sequence[Told], allowed: Sequence[ArmConfig]) -> tuple[ArmConfig, str] | None:
    """The next seed among ``allowed``: the first recipe nothing in ``history`` stands for, drafters taking turns."""
    drafters = list(dict.fromkeys((c.algorithm, c.draft_model) for c in allowed if c.speculative))
    live = [t for t in history if t.verdict is None or not t.verdict.requeue]
    for turn, (words, *numbers) in enumerate(RECIPES):
        if any(_distance(t.ran, numbers) < 0.7 for t in live):
            continue
        mine = drafters[turn % len(drafters)] if drafters else None
        options = [
            c for c in allowed if (c.algorithm, c.draft_model) == mine and c.cuda_graph and c.num_steps is not None
        ]
        if options:
            nearest = min(options, key=lambda c: _distance(c, numbers))
            return nearest, f"a {words} teaches the cost model"
    return None


def _distance(config: ArmConfig, numbers: Sequence[int]) -> float:
    """In octaves, over steps, topk and draft tokens; the topk of a chain is not negotiable."""
    ours = (config.num_steps, config.topk, config.num_draft_tokens)
    if any(v is None for v in ours):
        return math.inf
    far = [abs(math.log2(max(v or 1, 1) / n)) for v, n in zip(ours, numbers, strict=True)]
    return math.inf if (config.topk == 1) != (numbers[1] == 1) else math.hypot(*far)
