"""Words from numbers: faster, slower, tie; ranks and ties. Many candidates are compared, so the tests are corrected.

Against a reference: Holm's step-down correction (Holm 1979) over all trials of the same metric, concurrency, category
and stage; where both stages have launches each gets half of alpha, so that "some arm is called faster or slower
though none is" happens in at most alpha of studies per cell. Intervals that are printed are not corrected; where one
excludes 0 and the word is a tie all the same, the row carries the interval that decided (:class:`sweep.model.Tie`).

Ranks: an arm ties with the leader unless it is below it by a one-sided test at alpha / 2. The leader is the best
confirmed arm; its confirm launches are independent of the search that chose it, so the error "the truly best arm is
left out" is corrected for the number of confirmed arms only. Without a confirm stage the leader is a maximum over all
arms and the correction is for all of them (subset selection, Gupta 1965, with Bonferroni's bound).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from sweep.analysis.gains import CellGains
from sweep.analysis.robust import Array
from sweep.analysis.types import BASELINE_REFERENCE, ENGINE_DEFAULT_REFERENCE, AnalysisSettings, Ranked
from sweep.metrics import METRICS
from sweep.model import ArmConfig, ArmGain, Comparison, Gain, Stage, Tie

Interval = tuple[Array, Array, Array]  # estimate, variance, df per subject


def holm(p: Array) -> Array:
    """What Holm's procedure multiplies each p value of one family by; NaN entries are not part of it.

    The k-th smallest of m is multiplied by m - k + 1, or by more where a smaller one came out larger. An interval of
    confidence 1 - alpha / factor then excludes 0 exactly where the product is below alpha.
    """
    fine = np.flatnonzero(np.isfinite(p))
    order = fine[np.argsort(p[fine], kind="stable")]
    out = np.full(len(p), np.nan)
    steps = (len(order) - np.arange(len(order))).astype(np.float64)
    if len(order):
        largest = np.maximum.accumulate(steps * p[order])
        out[order] = np.where(p[order] > 0, largest / np.where(p[order] > 0, p[order], 1.0), steps)
    return out


@dataclass(frozen=True)
class Reporter:
    """Turns a cell's numbers into :class:`ArmGain` rows."""

    metric: str
    concurrency: int
    category: str | None
    settings: AnalysisSettings
    level: float | None  # the baseline's figure in the metric's unit

    def rows(self, cell: CellGains) -> list[ArmGain]:
        """Every trial, and the engine default, against the baseline and against the engine default.

        The default is not launched again to confirm. A confirmed arm meets it through the baselines of both: its own
        gain there less the default's here, which the choice of the winner has not touched.
        """
        out = self._against(cell, (cell.estimate, cell.variance, cell.df), BASELINE_REFERENCE)
        for confirm in (True, False):
            number = cell.frame.number.get((None, confirm))
            if number is not None and len(cell.used[number]) and number not in cell.refused:
                rows = self._against(cell, cell.against(number), ENGINE_DEFAULT_REFERENCE)
                return [*out, *(row for row in rows if row.trial is not None)]
        return out

    def _against(self, cell: CellGains, found: Interval, reference: str) -> list[ArmGain]:
        subjects = cell.frame.subjects
        estimate, variance, df = found
        error = np.sqrt(variance)
        measured = np.array([len(rows) > 0 for rows in cell.used], dtype=bool) & np.isfinite(estimate)
        usable = measured & np.array([k not in cell.refused for k in range(len(subjects))], dtype=bool)
        p = np.full(len(subjects), np.nan)
        safe = np.maximum(error, 1e-12)
        p[usable] = 2 * stats.t.sf(np.abs(estimate[usable]) / safe[usable], df[usable])
        confirm = np.array([s[1] for s in subjects], dtype=bool)
        trial = np.array([s[0] is not None for s in subjects], dtype=bool)
        families = [k for k in (usable & trial & confirm, usable & trial & ~confirm) if k.any()]
        factor, together = np.ones(len(subjects)), np.ones(len(subjects), dtype=np.int_)
        for family in families:
            factor[family] = holm(p[family]) * len(families)
            together[family] = family.sum() * len(families)
        adjusted = np.minimum(p * factor, 1.0)
        low, high = self._interval(found, np.ones(len(subjects)))
        wide = self._interval(found, factor)

        def gain(k: int) -> Gain:
            kind = Stage.CONFIRM if subjects[k][1] else Stage.SEARCH
            return Gain(math.expm1(estimate[k]), float(low[k]), float(high[k]), cell.basis(k), kind)

        def tie(k: int) -> Tie | None:
            if low[k] <= 0 <= high[k]:
                return None
            if adjusted[k] >= self.settings.alpha:
                return Tie("correction", float(wide[0][k]), float(wide[1][k]), int(together[k]))
            band = self.settings.tie_band
            return Tie("tie_band", -band, band) if abs(math.expm1(estimate[k])) <= band else None

        out = []
        for k, (number, is_confirm) in enumerate(subjects):
            twin = cell.frame.number.get((number, not is_confirm))
            if not is_confirm and twin is not None and usable[twin]:
                continue  # its confirm launches speak
            if not measured[k] and k not in cell.refused:
                continue
            search = twin if is_confirm and twin is not None and usable[twin] else None
            out.append(
                self._row(cell, k, number, reference)
                if not usable[k]
                else self._row(
                    cell,
                    k,
                    number,
                    reference,
                    gain=gain(k),
                    search=gain(search) if search is not None else None,
                    numbers=(float(estimate[k]), float(error[k]), float(df[k]), float(adjusted[k])),
                    tie=tie(k),
                )
            )
        return out

    def _interval(self, found: Interval, factor: Array) -> tuple[Array, Array]:
        """Gains at the ends of each subject's interval of confidence 1 - alpha / ``factor``."""
        estimate, variance, df = found
        reach = stats.t.ppf(1 - self.settings.alpha / 2 / factor, np.where(np.isfinite(df), df, 1.0))
        return np.expm1(estimate - reach * np.sqrt(variance)), np.expm1(estimate + reach * np.sqrt(variance))

    def _row(
        self,
        cell: CellGains,
        k: int,
        trial: int | None,
        reference: str,
        *,
        gain: Gain | None = None,
        search: Gain | None = None,
        numbers: tuple[float, float, float, float] | None = None,
        tie: Tie | None = None,
    ) -> ArmGain:
        accept = self._accept(cell, k)
        row = ArmGain(trial, self.metric, self.concurrency, self.category, reference, Comparison.NOT_COMPARABLE)
        if gain is None or numbers is None:
            return row
        log_gain, error, df, adjusted = numbers
        value = value_se = None
        if self.level is not None and reference == BASELINE_REFERENCE:
            sign = 1 if METRICS[self.metric].better == "higher" else -1
            value = self.level * math.exp(sign * log_gain)
            value_se = value * error
        return ArmGain(
            trial=trial,
            metric=self.metric,
            concurrency=self.concurrency,
            category=self.category,
            reference=reference,
            comparison=self.compare(gain.estimate, adjusted),
            gain=gain,
            search_gain=search,
            log_se=error,
            df=df,
            p_adjusted=adjusted,
            n_pairs=int(cell.pairs[k]),
            n_launches=len(cell.used[k]),
            value=value,
            value_se=value_se,
            accept_length=accept,
            break_even=accept / (1 + gain.estimate) if accept and self.metric == "output_throughput" else None,
            tie=tie,
        )

    def compare(self, gain: float, p_adjusted: float) -> Comparison:
        """Faster or slower only where the corrected test says so and the gain is outside the tie band."""
        if p_adjusted >= self.settings.alpha or abs(gain) <= self.settings.tie_band:
            return Comparison.TIE
        return Comparison.FASTER if gain > 0 else Comparison.SLOWER

    def _accept(self, cell: CellGains, k: int) -> float | None:
        key = (self.concurrency, self.category)
        found = [cell.frame.figures[i].accept[key] for i in cell.used[k] if key in cell.frame.figures[i].accept]
        return sum(found) / len(found) if found else None


def rank(
    cell: CellGains, rows: Sequence[ArmGain], arms: Mapping[int, ArmConfig], settings: AnalysisSettings
) -> tuple[Ranked, ...]:
    """Rank the comparable trials of a cell by their gain over the baseline, ties together."""
    by_trial = {row.trial: row for row in rows if row.reference == BASELINE_REFERENCE and row.gain is not None}
    number: dict[int, int] = {}
    for trial, row in by_trial.items():
        if trial is not None and row.gain is not None:
            number[trial] = cell.frame.number[trial, row.gain.stage is Stage.CONFIRM]
    confirmed = {trial for trial, k in number.items() if cell.frame.subjects[k][1]}
    left = sorted(number, key=lambda t: (-cell.estimate[number[t]], t))
    out: list[Ranked] = []
    while left:
        leader = next((t for t in left if t in confirmed), left[0])
        many = len(confirmed & set(left)) if leader in confirmed else max(len(left) - 1, 1)
        difference, variance, df = cell.against(number[leader])
        places = np.array([number[t] for t in left])
        reach = stats.t.ppf(1 - settings.alpha / 2 / many, df[places])
        below = difference[places] < -np.maximum(reach * np.sqrt(variance[places]), math.log1p(settings.tie_band))
        group = [t for t, under in zip(left, below, strict=True) if not under or t == leader]
        group.sort(key=lambda t: (t not in confirmed, arms[t].cost, -cell.estimate[number[t]], t))
        place = len(out) + 1
        out += [Ranked(place, t, by_trial[t], t in confirmed, len(group)) for t in group]
        gone = set(group)
        left = [t for t in left if t not in gone]
    return tuple(out)
