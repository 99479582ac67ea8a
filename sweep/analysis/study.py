"""The one entry point: launches in, everything that may be said about the study out. Pure and deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from sweep.analysis import crossover as crossing
from sweep.analysis import words
from sweep.analysis.compare import Reporter, rank
from sweep.analysis.drift import slope_per_hour
from sweep.analysis.explain import explain
from sweep.analysis.figures import LaunchFigures, extract, prompt_is_unit
from sweep.analysis.gains import CellGains, Frame, measure
from sweep.analysis.noise import resolution
from sweep.analysis.types import (
    BASELINE_REFERENCE,
    AnalysisSettings,
    BaselinePoint,
    Drift,
    EnvelopeStep,
    Finding,
    NoiseFloor,
    Ranked,
    StudyAnalysis,
)
from sweep.analysis.validity import above_accept_length, gates
from sweep.metrics import METRICS
from sweep.model import ArmConfig, ArmGain, MeasuredLaunch, Objective, Role

_THROUGHPUT = "output_throughput"
_DEFAULT = AnalysisSettings()


def analyse(
    launches: Sequence[MeasuredLaunch],
    arms: Mapping[str, ArmConfig],
    *,
    objectives: Sequence[Objective],
    settings: AnalysisSettings = _DEFAULT,
) -> StudyAnalysis:
    """``launches``: the finished launches with their blocks and requests, in any order; ``arms``: by arm key."""
    metrics = metrics_for(objectives, settings)
    return analyse_figures([extract(launch, metrics, settings.slo) for launch in launches], arms, objectives, settings)


def metrics_for(objectives: Sequence[Objective], settings: AnalysisSettings = _DEFAULT) -> tuple[str, ...]:
    """What :func:`sweep.analysis.figures.extract` must be asked for."""
    return tuple(dict.fromkeys((_THROUGHPUT, *(o.metric for o in objectives), *settings.metrics)))


def analyse_figures(
    figures: Sequence[LaunchFigures],
    arms: Mapping[str, ArmConfig],
    objectives: Sequence[Objective],
    settings: AnalysisSettings = _DEFAULT,
) -> StudyAnalysis:
    """As :func:`analyse`, from launches already reduced: a caller may keep those by launch id."""
    figures = sorted(figures, key=lambda f: (f.host, f.sequence, f.launch_id))
    study = _Study(figures, arms, objectives, settings)
    study.measure_all()
    return study.result()


class _Study:
    def __init__(
        self,
        figures: Sequence[LaunchFigures],
        arms: Mapping[str, ArmConfig],
        objectives: Sequence[Objective],
        settings: AnalysisSettings,
    ) -> None:
        self.frame = Frame(figures)
        self.arms = arms
        self.objectives = tuple(objectives)
        self.settings = settings
        self.configs = {f.trial: arms.get(f.arm_key, ArmConfig()) for f in figures if f.trial is not None}
        self.rows: list[ArmGain] = []
        self.rankings: dict[tuple[str, int], tuple[Ranked, ...]] = {}
        self.levels: dict[tuple[str, int], float] = {}
        self.noise: list[NoiseFloor] = []
        self.drift: list[Drift] = []
        self.refused: dict[int, str] = {}
        self.findings: dict[int, list[Finding]] = {
            trial: list(found) for trial, found in gates(figures, arms, settings).items()
        }

    # ------------------------------------------------------------------ cells

    def measure_all(self) -> None:
        wanted = {(o.metric, o.concurrency) for o in self.objectives}
        measured = self.frame.concurrencies()
        wanted |= {(metric, level) for metric in metrics_for((), self.settings) for level in measured}
        categories = self.frame.categories()
        for metric, level in sorted(wanted):
            if not any((metric, level) in f.levels for f in self.frame.figures):
                continue
            self._whole(metric, level)
            for category in categories if self._by_category(metric, level, len(categories)) else ():
                cell = measure(self.frame, metric, level, category, self.settings)
                self.rows += Reporter(metric, level, category, self.settings, None).rows(cell)

    def _by_category(self, metric: str, level: int, categories: int) -> bool:
        """Throughput at every load; latencies where an objective lies (at every load they would double the work)."""
        if categories < 2 or (metric != _THROUGHPUT and level not in {o.concurrency for o in self.objectives}):
            return False
        of_cells = any(m == metric and at == level and c for f in self.frame.figures for m, at, c in f.cells)
        return prompt_is_unit(metric, level) or of_cells

    def _whole(self, metric: str, level: int) -> None:
        base = [
            f.levels[metric, level]
            for f in self.frame.figures
            if f.role is Role.BASELINE and not f.confirm and (metric, level) in f.levels
        ]
        base = base or [
            f.levels[metric, level]
            for f in self.frame.figures
            if f.role is Role.BASELINE and (metric, level) in f.levels
        ]
        reference = float(np.exp(np.mean(np.log(base)))) if base else None
        if reference is not None:
            self.levels[metric, level] = reference
        cell = measure(self.frame, metric, level, None, self.settings)
        rows = Reporter(metric, level, None, self.settings, reference).rows(cell)
        self.rows += rows
        objective = (metric, level) in {(o.metric, o.concurrency) for o in self.objectives}
        if objective or metric == _THROUGHPUT:
            lossless = [r for r in rows if r.trial is None or not self.configs[r.trial].lossy]
            self.rankings[metric, level] = rank(cell, lossless, self.configs, self.settings)
            self._noise(cell, metric, level)
        if objective:
            self._refused(cell)
            self._drift(cell, metric, level)
        if metric == _THROUGHPUT:
            self._impossible(cell, rows)

    def _noise(self, cell: CellGains, metric: str, level: int) -> None:
        found = [k for k, rows in enumerate(cell.used) if len(rows) and not cell.frame.subjects[k][1]]
        spread = float(np.median(cell.model.weights @ cell.spread[:, found])) if found else 0.5
        extra = float(np.median(cell.own_variance[found])) if found else 0.0
        self.noise.append(resolution(metric, level, cell.model, spread, extra, cell.data.unit_sd, self.settings))

    def _refused(self, cell: CellGains) -> None:
        for k, why in cell.refused.items():
            trial, confirm = cell.frame.subjects[k]
            twin = cell.frame.number.get((trial, not confirm))
            if trial is not None and (twin is None or twin in cell.refused or not len(cell.used[twin])):
                self.refused.setdefault(trial, why)

    def _drift(self, cell: CellGains, metric: str, level: int) -> None:
        sign = 1 if METRICS[metric].better == "higher" else -1
        by_host: defaultdict[str, list[BaselinePoint]] = defaultdict(list)
        for figure in sorted(self.frame.figures, key=lambda f: f.at):
            if figure.role is Role.BASELINE and (metric, level) in figure.levels:
                by_host[figure.host].append(BaselinePoint(figure.launch_id, figure.at, figure.levels[metric, level]))
        for host, points in sorted(by_host.items()):
            stretches = [c for c in self.frame.chunks if c.host == host and not c.confirm]
            slopes = [slope_per_hour(c, cell.data.level, cell.model.mean_v) for c in stretches]
            known = [s for s in slopes if s is not None and s[1] > 0]
            if not known:
                continue
            weight = sum(1 / error**2 for _, error in known)
            slope = sum(value / error**2 for value, error in known) / weight
            self.drift.append(Drift(host, metric, level, tuple(points), sign * slope, weight**-0.5))

    def _impossible(self, cell: CellGains, rows: Sequence[ArmGain]) -> None:
        for row in rows:
            if row.reference != BASELINE_REFERENCE or row.trial is None or row.gain is None:
                continue
            subject = next(
                cell.frame.number[row.trial, c]
                for c in (True, False)
                if (row.trial, c) in cell.frame.number and len(cell.used[cell.frame.number[row.trial, c]])
            )
            launch = cell.frame.figures[int(cell.used[subject][-1])].launch_id
            finding = above_accept_length(row, launch, self.settings.tie_band)
            if finding is not None:
                self.findings.setdefault(row.trial, []).append(finding)

    # ------------------------------------------------------------------ whole

    def result(self) -> StudyAnalysis:
        index = {(r.trial, r.metric, r.concurrency, r.category, r.reference): r for r in self.rows}
        throughput: dict[int, dict[int, ArmGain]] = {}
        categories: defaultdict[tuple[int, int], dict[str, ArmGain]] = defaultdict(dict)
        for row in self.rows:
            if row.metric != _THROUGHPUT or row.reference != BASELINE_REFERENCE or row.trial is None:
                continue
            if row.category is None:
                throughput.setdefault(row.trial, {})[row.concurrency] = row
            else:
                categories[row.trial, row.concurrency][row.category] = row
        crossings = [crossing.crossover(t, list(rows.values()), self.settings.alpha) for t, rows in throughput.items()]
        levels = {level: ranked for (metric, level), ranked in self.rankings.items() if metric == _THROUGHPUT}
        steps = crossing.envelope(levels, throughput)
        busy = self._busy()
        reasons = [
            explain(row, categories[trial, level], self.levels[_THROUGHPUT, level], busy[level])
            for trial, rows in throughput.items()
            for level, row in rows.items()
            if (_THROUGHPUT, level) in self.levels
        ]
        ranking = {o.key: self.rankings.get((o.metric, o.concurrency), ()) for o in self.objectives}
        return StudyAnalysis(
            objectives=self.objectives,
            gains=tuple(self.rows),
            ranking=ranking,
            noise=tuple(self.noise),
            drift=tuple(self.drift),
            crossovers=tuple(c for c in crossings if c is not None),
            envelope=steps,
            explanations=tuple(e for e in reasons if e is not None),
            findings={trial: tuple(found) for trial, found in sorted(self.findings.items())},
            not_comparable=dict(sorted(self.refused.items())),
            unconfirmed={
                key: tuple(r.trial for r in rows if r.rank == 1 and not r.confirmed) for key, rows in ranking.items()
            },
            baseline_values={
                o.key: self.levels[o.metric, o.concurrency]
                for o in self.objectives
                if (o.metric, o.concurrency) in self.levels
            },
            sentences=self._sentences(ranking, steps),
            _index=index,
        )

    def _busy(self) -> dict[int, float]:
        found: defaultdict[int, list[float]] = defaultdict(list)
        for figure in self.frame.figures:
            if figure.role is Role.BASELINE:
                for level, value in figure.busy.items():
                    found[level].append(value)
        return {level: float(np.mean(values)) for level, values in found.items()}

    def _sentences(self, ranking: Mapping[str, tuple[Ranked, ...]], steps: Sequence[EnvelopeStep]) -> tuple[str, ...]:
        def name(trial: int) -> str:
            return self.configs[trial].label()

        out = [words.winner(ranking[o.key], name, o) for o in self.objectives]
        wanted = {(o.metric, o.concurrency) for o in self.objectives}
        out += [words.floor(n) for n in self.noise if (n.metric, n.concurrency) in wanted]
        whole = words.envelope(steps, name) if len({r.concurrency for r in self.rows}) > 1 else None
        return (*out, *([whole] if whole else []))


__all__ = ["analyse", "analyse_figures", "metrics_for"]
