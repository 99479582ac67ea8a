"""The chance that a configuration launches at all, from those that did and those that did not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from sweep.search.model.features import Table
from sweep.search.model.gaussian import Array, Conditioned, Hyper, Index, Posterior, Prior, Rows


def chance(table: Table, ran: Sequence[int], failed: Sequence[int]) -> Array:
    """(n,) probability of a launch, 1 everywhere until something fails.

    Least-squares classification with a Gaussian process (Rasmussen & Williams 2006, section 6.5): +1 for a launch, -1
    for a failure, falling with drafted and verified tokens because what fails for want of memory fails above a size.
    """
    n = len(table)
    if not failed:
        return np.ones(n)
    size = np.stack([np.log2(1.0 + table.verified), np.log2(table.topk), np.log2(1.0 + table.depth)], axis=1)
    basis = np.concatenate([np.ones((n, 1)), size], axis=1)
    rows = Rows(basis, np.ones((n, 1)), table.near, np.arange(n, dtype=np.intp))
    prior = Prior(np.array([1.6, -0.1, -0.05, -0.05]), np.array([0.5, 0.25, 0.15, 0.15]) ** 2)
    index: Index = np.array([*ran, *failed], dtype=np.intp)
    label = np.array([1.0] * len(ran) + [-1.0] * len(failed))
    fit = Conditioned(prior, rows.take(index), label, np.ones(len(index)), Hyper(0.6, 0.15))
    posterior = Posterior([(1.0, fit)], rows)
    return np.asarray(ndtr(posterior.mean / np.sqrt(posterior.var + 0.05)))
