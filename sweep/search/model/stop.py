"""How much is left to find: the expected regret of stopping now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.search.model.fit import CostModel, Outlook
from sweep.search.model.gaussian import Index

SAMPLES = 512
# Configurations beyond the most promising so many do not change the maximum.
CONTENDERS = 100
# Stop only where the chance of being further off than the tolerance is below this.
DOUBT = 0.4


@dataclass(frozen=True)
class Regret:
    """``expected``: fraction by which the best configuration is expected to beat the best measured one, the worst
    objective's; ``doubt``: chance that it does by more than the tolerance; ``best``: per objective, the one to keep."""

    expected: float
    doubt: float
    best: tuple[int, ...]

    def decided(self, tolerance: float) -> bool:
        return self.expected <= tolerance and self.doubt <= DOUBT


def remaining(model: CostModel, open_: Sequence[int], tolerance: float, rng: np.random.Generator) -> Regret | None:
    """None before anything was measured. ``open_``: configurations that may still be launched."""
    if not model.measured:
        return None
    rows = [_of(model, outlook, np.asarray(open_, dtype=np.intp), tolerance, rng) for outlook in model.outlooks]
    return Regret(max(r[0] for r in rows), max(r[1] for r in rows), tuple(r[2] for r in rows))


def _of(
    model: CostModel, outlook: Outlook, open_: Index, tolerance: float, rng: np.random.Generator
) -> tuple[float, float, int]:
    measured = np.array(sorted(set(model.measured)), dtype=np.intp)
    best = int(measured[np.argmax(outlook.mean[measured])])
    optimistic = outlook.mean + 2.0 * np.sqrt(outlook.var)
    pool = np.setdiff1d(np.concatenate([open_, measured]), [best])
    pool = pool[np.argsort(-optimistic[pool], kind="stable")[:CONTENDERS]]
    index = np.concatenate([[best], pool]).astype(np.intp)
    covariance = outlook.covariance(index, index)
    covariance[np.diag_indices(len(index))] += 1e-9 + 1e-6 * np.diag(covariance)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = outlook.mean[index] + rng.standard_normal((SAMPLES, len(index))) @ root.T
    launches = np.where(np.isin(index, measured), 1.0, model.launches[index])
    draws = np.where(rng.random(draws.shape) < launches, draws, -np.inf)
    regret = np.expm1(np.maximum(draws.max(1) - draws[:, 0], 0.0))
    return float(regret.mean()), float((regret > tolerance).mean()), best
