"""How much is left to find: the expected regret of stopping now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sweep.search.model.fit import CostModel, Outlook
from sweep.search.model.gaussian import Array, Index

SAMPLES = 512
# Configurations beyond the most promising so many do not change the maximum.
CONTENDERS = 100
# Stop only where the chance of being further off than the tolerance is below this.
DOUBT = 0.4


@dataclass(frozen=True)
class Regret:
    """``expected``: fraction by which the best configuration is expected to beat the best measured one, the worst
    objective's; ``doubt``: chance that it does by more than the tolerance; ``best``: per objective, the one to keep;
    ``launches``: how many it may take until decided, not counting what they teach about their neighbours."""

    expected: float
    doubt: float
    best: tuple[int, ...]
    launches: int = 0

    def decided(self, tolerance: float) -> bool:
        return self.expected <= tolerance and self.doubt <= DOUBT


def remaining(model: CostModel, open_: Sequence[int], tolerance: float, rng: np.random.Generator) -> Regret | None:
    """None before anything was measured. ``open_``: configurations that may still be launched."""
    if not model.measured:
        return None
    rows = [_of(model, outlook, np.asarray(open_, dtype=np.intp), tolerance, rng) for outlook in model.outlooks]
    expected, doubt, launches = max(r[0] for r in rows), max(r[1] for r in rows), max(r[3] for r in rows)
    return Regret(expected, doubt, tuple(r[2] for r in rows), launches)


def _of(
    model: CostModel, outlook: Outlook, open_: Index, tolerance: float, rng: np.random.Generator
) -> tuple[float, float, int, int]:
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
    # One limit decides for all: what is likelier to launch launches wherever the less likely does.
    draws = np.where(rng.random((SAMPLES, 1)) < launches, draws, -np.inf)
    regret = np.expm1(np.maximum(draws.max(1) - draws[:, 0], 0.0))
    unmeasured = ~np.isin(index, measured)
    return float(regret.mean()), float((regret > tolerance).mean()), best, _launches(draws, unmeasured, tolerance)


def _launches(draws: Array, unmeasured: npt.NDArray[np.bool_], tolerance: float) -> int:
    """The least number of the most promising unmeasured configurations whose values, once known, leave no more than
    the tolerance to be found among the rest. ``draws`` (samples, configurations), the best measured one first."""
    gains = np.expm1(np.maximum(draws - draws[:, :1], 0.0)).mean(0)
    promising = np.flatnonzero(unmeasured)
    promising = promising[np.argsort(-gains[promising], kind="stable")]
    others = np.max(draws[:, ~unmeasured][:, 1:], axis=1, initial=-np.inf)
    found, ordered = draws[:, 0], draws[:, promising]
    # (samples, k): the best of what is left when the first k are known
    left = np.maximum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1]
    for known in range(len(promising) + 1):
        rest = np.maximum(left[:, known], others) if known < len(promising) else others
        regret = np.expm1(np.maximum(rest - found, 0.0))
        if regret.mean() <= tolerance and (regret > tolerance).mean() <= DOUBT:
            return known
        if known < len(promising):
            found = np.maximum(found, ordered[:, known])
    return len(promising)
