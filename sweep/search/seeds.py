"""The first launches of a cost model: few, and each teaches much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweep.model import ArmConfig, Verdict
from sweep.search.view import Told

# (words, num_steps, topk, num_draft_tokens): a deep chain teaches acceptance at every depth below it, a wide tree what
# width adds and verification costs.
RECIPES = (
    ("deep chain", 7, 1, 8),
    ("wide tree", 4, 8, 32),
)
# Octaves within which a configuration stands for a recipe.
NEAR = 0.7


def pick(history: Sequence[Told], allowed: Sequence[ArmConfig]) -> tuple[ArmConfig, str] | None:
    """The next seed among ``allowed``: the first recipe nothing in ``history`` stands for, drafters taking turns.

    A row stands for a recipe that it is near, or no further from than anything there is. A drafter that never accepts
    has taught nothing.
    """
    drafters = list(dict.fromkeys((c.algorithm, c.draft_model) for c in allowed if c.speculative))
    taught = [
        t for t in history if t.verdict is None or not (t.verdict.requeue or t.verdict is Verdict.DRAFTER_INEFFECTIVE)
    ]
    for turn, (words, *numbers) in enumerate(RECIPES):
        mine = drafters[turn % len(drafters)] if drafters else None
        options = [
            c
            for c in allowed
            if (c.algorithm, c.draft_model) == mine and c.cuda_graph and _distance(c, numbers) < math.inf
        ]
        nearest = min(options, key=lambda c: _distance(c, numbers), default=None)
        if nearest is not None and all(
            _distance(t.ran, numbers) > max(NEAR, _distance(nearest, numbers)) for t in taught
        ):
            return nearest, f"a {words} teaches the cost model"
    return None


def _distance(config: ArmConfig, numbers: Sequence[int]) -> float:
    """In octaves, over steps, topk and draft tokens; the topk of a chain is not negotiable."""
    ours = (config.num_steps, config.topk, config.num_draft_tokens)
    if any(v is None for v in ours):
        return math.inf
    far = [abs(math.log2(max(v or 1, 1) / n)) for v, n in zip(ours, numbers, strict=True)]
    return math.inf if (config.topk == 1) != (numbers[1] == 1) else math.hypot(*far)
