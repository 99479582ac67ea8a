"""The chance that a configuration launches at all, from those that did and those that did not.

What fails for want of memory fails above a size, and a size grows with what is verified and drafted. How much each
counts and where the limit lies are unknown: (slopes, limit) are drawn, and weighted by how well each explains
what happened (importance sampling from the prior).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from sweep.search.model.features import Table
from sweep.search.model.gaussian import Array, Index

SLOPES, LIMITS = 48, 40
# Octaves of size over which a limit is soft; chances of a failure below it for another reason, of a launch above it.
SOFT = 0.15
LAPSE, LUCK = 0.03, 0.002
# Deviations, in octaves of size, of a drafter's own memory, of graphs, and of each extra flag.
DRAFTER, GRAPHS, EXTRA = 0.3, 0.3, 1.0


def chance(table: Table, ran: Sequence[int], failed: Sequence[int]) -> Array:
    """(n,) probability of a launch, 1 everywhere until something fails.

    size = log2(1 + verified) + u log2 topk + w log2(1 + depth) + ..., u and w anywhere between 0 and 1, in octaves.
    """
    n = len(table)
    if not failed:
        return np.ones(n)
    rng = np.random.default_rng(0)
    grows = np.stack([np.log2(table.topk), np.log2(1.0 + table.depth)], axis=1) @ rng.random((2, SLOPES))
    drafters = rng.normal(0.0, DRAFTER, (int(table.group.max()) + 1, SLOPES))
    others = np.concatenate([table.no_graph[:, None] * GRAPHS, table.extras * EXTRA], axis=1)
    sizes = np.log2(1.0 + table.verified)[:, None] + grows + drafters[table.group]
    sizes = sizes + others @ rng.standard_normal((others.shape[1], SLOPES))
    limits = np.linspace(sizes.min(0) - 1.0, sizes.max(0) + 1.0, LIMITS, dtype=np.float32)  # (limits, slopes)
    sizes = sizes.astype(np.float32)

    def launches(index: Index) -> Array:
        """(len(index), limits, slopes)"""
        fits = expit((limits[None] - sizes[index][:, None, :]) / SOFT)
        return np.asarray(LUCK + (1.0 - LAPSE - LUCK) * fits)

    seen = np.log(launches(np.array(ran, dtype=np.intp))).sum(0)
    seen = seen + np.log1p(-launches(np.array(failed, dtype=np.intp))).sum(0)
    weights = np.exp(seen - seen.max())
    weights /= weights.sum()
    return np.asarray(launches(np.arange(n, dtype=np.intp)).reshape(n, -1) @ weights.ravel(), dtype=float)
