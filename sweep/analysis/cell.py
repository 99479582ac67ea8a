"""One cell (metric, concurrency, category): every launch as one paired log figure with its own noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.analysis.drift import Index
from sweep.analysis.figures import LaunchFigures, Unit, prompt_is_unit
from sweep.analysis.robust import (
    EFFICIENCY,
    Array,
    Mask,
    biweight,
    fence,
    gross,
    moderated_variance,
    pooled_scale,
    row_mean,
    row_median,
    unsteady,
)
from sweep.model import Role


@dataclass(frozen=True)
class CellData:
    """Per launch: ``level`` (log, common unit effects taken out), ``within`` (variance of that mean from what varies
    inside the launch), ``within_df``, ``units`` paired. NaN where the launch has nothing in this cell.

    ``table`` holds launches x units, paired; ``groups`` the category number of each unit column; ``unit_sd`` the
    standard deviation of one unit of the baseline; ``partner`` the baseline launch alive at the same time, else -1,
    in which case ``level`` is the paired difference to it. ``unsteady``: the launch's rounds contradict each other.
    """

    by_prompt: bool
    level: Array
    within: Array
    within_df: Array
    units: Index
    table: Array
    groups: Index
    unit_sd: float
    baseline: Mask
    partner: Index
    unsteady: Mask


class Tables:
    """Launches x units tables of a study, made once per metric and concurrency."""

    def __init__(self, figures: Sequence[LaunchFigures], partner: Index, arm: Index) -> None:
        """``arm``: equal numbers for launches of the same arm on the same host and stage."""
        self._arm = arm
        self._figures = figures
        self._partner = partner
        self._prompts: dict[tuple[str, int], tuple[Array, list[str]]] = {}
        self.baseline = np.array([f.role is Role.BASELINE for f in figures], dtype=bool)

    def cell(self, metric: str, concurrency: int, category: str | None) -> CellData:
        by_prompt = prompt_is_unit(metric, concurrency)
        if by_prompt:
            table, categories = self._prompt_table(metric, concurrency)
            by_prompt = table.shape[1] > 1
        if by_prompt:
            if category is not None:
                columns = np.array([c == category for c in categories], dtype=bool)
                table, categories = table[:, columns], [category] * int(columns.sum())
            names = sorted(set(categories))
            groups = np.array([names.index(c) for c in categories], dtype=np.int_)
        else:
            rows = [f.cells.get((metric, concurrency, category), {}) for f in self._figures]
            table, units = _table(rows, self.baseline)
            groups = np.zeros(len(units), dtype=np.int_)
        return _reduce(table, groups, by_prompt, self.baseline, self._partner, self._arm)

    def _prompt_table(self, metric: str, concurrency: int) -> tuple[Array, list[str]]:
        key = (metric, concurrency)
        if key not in self._prompts:
            table, units = _table([f.prompts.get(key, {}) for f in self._figures], self.baseline)
            category: dict[Unit, str] = {}
            for figure in self._figures:
                if figure.role is Role.BASELINE:
                    category.update(figure.categories)
            self._prompts[key] = (table, [category[unit] for unit in units])
        return self._prompts[key]


def _table(maps: Sequence[Mapping[Unit, float]], baseline: Mask) -> tuple[Array, list[Unit]]:
    """Values by launch and unit; only units that some baseline has can be paired, the others are left out."""
    columns: dict[Unit, int] = {}
    for index in np.flatnonzero(baseline):
        for unit in maps[int(index)]:
            columns.setdefault(unit, len(columns))
    table = np.full((len(maps), len(columns)), np.nan)
    for number, row in enumerate(maps):
        for unit, value in row.items():
            column = columns.get(unit)
            if column is not None:
                table[number, column] = value
    return table, list(columns)


def _reduce(table: Array, groups: Index, by_prompt: bool, baseline: Mask, partner: Index, arm: Index) -> CellData:
    shape = len(table)
    if not table.shape[1]:
        empty = np.full(shape, np.nan)
        zero = np.zeros(shape, dtype=np.int_)
        return CellData(by_prompt, empty, empty, empty, zero, table, groups, 0.0, baseline, partner, baseline & False)
    if not by_prompt:
        usual = row_median((table - row_median(table)[:, None]).T)
        table = np.where(gross(table - usual[None, :], arm), np.nan, table)
    own = table[baseline]
    # Effect of the unit: how a prompt, or a round, differs from its launch's middle, median over baseline launches.
    effect = row_median((own - row_median(own)[:, None]).T)
    paired = table - effect[None, :]
    together = partner >= 0
    paired[together] = table[together] - table[partner[together]]
    launches = int(np.isfinite(own).any(axis=1).sum())
    # Taking the effect out of the launches that taught it leaves (n - 1) / n of their variance.
    undo = launches / (launches - 1) if launches > 1 else 1.0
    kinds: tuple[Mask, ...] = (baseline, ~baseline & ~together, together)
    level, within, df = (np.full(shape, np.nan) for _ in range(3))
    unit_sd = 0.0
    shaky = np.zeros(shape, dtype=bool)
    for number, kind in enumerate(kinds):
        if not kind.any():
            continue
        if by_prompt:
            paired[kind] = fence(paired[kind], groups)
            level[kind] = row_mean(paired[kind])
            scale = pooled_scale(paired[kind] - row_median(paired[kind])[:, None])
        else:
            scale = pooled_scale(paired[kind] - row_median(paired[kind])[:, None])
            level[kind] = biweight(paired[kind], scale)
            shaky[kind] = unsteady(paired[kind] - level[kind][:, None], scale)
        variance, df[kind] = moderated_variance(paired[kind] - level[kind][:, None], scale)
        if number == 0:
            variance = variance * undo
            unit_sd = scale * float(np.sqrt(undo))
        count = np.maximum(np.isfinite(paired[kind]).sum(axis=1), 1)
        within[kind] = variance / count / (1.0 if by_prompt else EFFICIENCY)
    units = np.isfinite(paired).sum(axis=1).astype(np.int_)
    return CellData(by_prompt, level, within, df, units, paired, groups, unit_sd, baseline, partner, shaky)


def interaction(cell: CellData, launches: Index, *, everything: bool) -> tuple[float, float]:
    """Variance of the mean over prompts that comes from prompts answering differently to this arm, and its df.

    Prompts stand for the prompts like them, category by category (stratified sampling with the categories fixed), so
    their variance about their category's mean counts. What the noise of single requests explains is taken out,
    unless ``everything`` is asked for.
    """
    values = row_mean(cell.table[launches].T)
    fine = np.isfinite(values)
    values, groups = values[fine], cell.groups[fine]
    if len(values) < 2:
        return 0.0, 1.0
    names, inverse, count = np.unique(groups, return_inverse=True, return_counts=True)
    df = len(values) - len(names)
    if df < 1:
        # One prompt per category: they cannot be told apart, all of it counts.
        square, df = float(((values - values.mean()) ** 2).sum()), len(values) - 1
    else:
        mean = np.bincount(inverse, weights=values) / count
        square = float(((values - mean[inverse]) ** 2).sum())
    variance = square / df
    if not everything:
        teachers = max(int(np.isfinite(cell.level[cell.baseline]).sum()), 1)
        variance = max(0.0, variance - cell.unit_sd**2 * (1 / len(launches) + 1 / teachers))
    return variance / len(values), float(df)
