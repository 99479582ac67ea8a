"""Any other metric (TTFT, TPOT, constraint margins): linear in predicted log throughput, plus a residual process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweep.search.model.features import Table
from sweep.search.model.gaussian import Array, Hyper, Index, Part, Posterior, Prior, Rows, average, fits

GRID = tuple(
    Hyper(amplitude, noise, log_prior=-0.2 * i) for i, amplitude in enumerate((0.05, 0.2, 0.6)) for noise in (0.05, 0.2)
)


class Generic:
    """Posterior of ``y`` (in its own unit) at every configuration of ``table``.

    ``index`` (m,) configurations measured, ``y`` (m,) their values; ``guide`` (n,) predicted log throughput at every
    configuration, the one regressor. With fewer than two values the spread is unknown and taken as the value's size.
    """

    def __init__(self, table: Table, guide: Array, index: Sequence[int], y: Sequence[float]) -> None:
        values = np.asarray(y, dtype=float)
        self._table = table
        self._centre = float(np.mean(values))
        self._unit = float(np.std(values)) or abs(self._centre) * 0.2 or 1.0
        self._guide = (guide - guide.mean()) / (guide.std() or 1.0)
        prior = Prior(np.zeros(2), np.array([1.0, 1.0]))
        rows = self._rows(np.asarray(index, dtype=np.intp))
        found = fits(prior, rows, (values - self._centre) / self._unit, np.ones(len(values)), GRID)
        self._fit = [(w, fit) for w, (fit, _) in average([(fit, None) for fit in found])]

    def posterior(self, index: Index) -> Posterior:
        """In units of ``unit`` about ``centre``; see :attr:`unit` and :attr:`centre`."""
        rows = self._rows(index)
        return Posterior([Part(w, c, rows) for w, c in self._fit])

    @property
    def unit(self) -> float:
        return self._unit

    @property
    def centre(self) -> float:
        return self._centre

    def _rows(self, index: Index) -> Rows:
        basis = np.stack([np.ones(len(index)), self._guide[index]], axis=1)
        at = np.arange(len(index), dtype=np.intp)
        return Rows(basis, np.ones((len(index), 1)), self._table.near[index], at)
