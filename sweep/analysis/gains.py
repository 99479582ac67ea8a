"""Gains of all subjects of a study in one cell. A subject is a trial (or the engine default) in one stage.

A subject's log gain is the mean over its launches of (log figure - baseline predicted at that launch's time); pairs of
servers alive together take the paired difference instead. Variance = V * (1/launches + prediction) + what its own
rounds add + what prompts add; the degrees of freedom of the sum are Satterthwaite's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.analysis.cell import CellData, Tables, interaction
from sweep.analysis.drift import Chunk, Index, brackets_disagree, chunks
from sweep.analysis.figures import LaunchFigures, partners
from sweep.analysis.noise import NoiseModel, Prediction, learn
from sweep.analysis.robust import Array, Mask
from sweep.analysis.types import AnalysisSettings
from sweep.model import Basis, Role

Subject = tuple[int | None, bool]  # trial (None: engine default), confirm stage


class Frame:
    """A study's launches with everything that does not depend on the cell."""

    def __init__(self, figures: Sequence[LaunchFigures]) -> None:
        self.figures = tuple(figures)
        self.partner = np.array([-1 if p is None else p for p in partners(self.figures)], dtype=np.int_)
        self.chunks: list[Chunk] = chunks(self.figures)
        self.tables = Tables(self.figures, self.partner, _arms(self.figures))
        count = len(self.figures)
        self.chunk_of = np.full(count, -1, dtype=np.int_)
        self.place_of = np.full(count, -1, dtype=np.int_)
        for number, chunk in enumerate(self.chunks):
            new = self.chunk_of[chunk.members] < 0
            self.chunk_of[chunk.members[new]] = number
            self.place_of[chunk.members[new]] = np.flatnonzero(new)
        by_subject: dict[Subject, list[int]] = defaultdict(list)
        for index, figure in enumerate(self.figures):
            if figure.role is Role.BASELINE:
                continue
            trial = None if figure.role is Role.ENGINE_DEFAULT else figure.trial
            by_subject[trial, figure.confirm].append(index)
        self.subjects: list[Subject] = sorted(by_subject, key=lambda s: (s[1], s[0] is not None, s[0] or 0))
        self.number: dict[Subject, int] = {subject: k for k, subject in enumerate(self.subjects)}
        self.launches: list[Index] = [np.array(by_subject[s], dtype=np.int_) for s in self.subjects]

    def concurrencies(self) -> list[int]:
        return sorted({level for f in self.figures for metric, level in f.levels if metric == "output_throughput"})

    def categories(self) -> list[str]:
        found = {c for f in self.figures if f.role is Role.BASELINE for _, c in f.accept if c is not None}
        for figure in self.figures:
            if figure.role is Role.BASELINE:
                found.update(figure.categories.values())
                found.update(c for _, _, c in figure.cells if c is not None)
        return sorted(found)


def _arms(figures: Sequence[LaunchFigures]) -> Index:
    numbers: dict[tuple[str, str, bool, int | None], int] = {}
    keys = [(f.host, f.arm_key, f.confirm, f.trial) for f in figures]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int_)


@dataclass(frozen=True)
class CellGains:
    """All subjects of a frame in one cell, in the frame's order; NaN where nothing was measured.

    ``walk_estimate`` is K x subjects; ``refused`` maps a subject to why it may not be compared.
    """

    frame: Frame
    data: CellData
    model: NoiseModel
    prediction: Prediction
    used: tuple[Index, ...]
    walk_estimate: Array
    estimate: Array
    variance: Array
    df: Array
    own_variance: Array
    own_df: Array
    spread: Array
    pairs: Index
    refused: dict[int, str]

    def against(self, reference: int) -> tuple[Array, Array, Array]:
        """(difference, variance, df) of every subject minus subject ``reference``; shared baselines cancel."""
        rows = self.walk_estimate - self.walk_estimate[:, [reference]]
        estimate = self.model.weights @ rows
        cross = self._cross(reference)
        counts = np.array([max(len(u), 1) for u in self.used])
        launch = 1 / counts + 1 / counts[reference] + self.spread + self.spread[:, [reference]] - 2 * cross
        walk = self.model.weights @ ((rows - estimate[None]) ** 2)
        main = self.model.weights @ (self.model.v[:, None] * launch) + walk
        own = self.own_variance + self.own_variance[reference]
        own_df = np.minimum(self.own_df, self.own_df[reference])
        return estimate, *_total(main, self.model.df, own, own_df)

    def _cross(self, reference: int) -> Array:
        """K x subjects: covariance (in units of V) of the prediction errors with the reference subject's."""
        launches = self.used[reference]
        per_launch = np.zeros((len(self.model.v), len(self.frame.figures)))
        for number in np.unique(self.frame.chunk_of[launches]):
            spread = self.prediction.spread[number]
            if spread is None:
                continue
            places = self.frame.place_of[launches[self.frame.chunk_of[launches] == number]]
            members = self.frame.chunks[number].members
            here = self.frame.chunk_of[members] == number
            per_launch[:, members[here]] = spread[:, places, :].sum(axis=1)[:, here] / len(launches)
        out = np.zeros((len(self.model.v), len(self.used)))
        for number, rows in enumerate(self.used):
            if len(rows):
                out[:, number] = per_launch[:, rows].mean(axis=1)
        return out

    def basis(self, subject: int) -> Basis:
        """How the subject's launches were paired with the baseline; the weakest of them where they differ."""
        kinds = set()
        for launch in self.used[subject]:
            if self.frame.partner[launch] >= 0:
                kinds.add(Basis.RESIDENT)
            else:
                kinds.add(Basis.BRACKETED if self.frame.figures[launch].pair is None else Basis.ALTERNATE)
        return next(b for b in (Basis.BRACKETED, Basis.ALTERNATE, Basis.RESIDENT) if b in kinds)


def _total(main: Array, df: float, own: Array, own_df: Array) -> tuple[Array, Array]:
    """Variance and df of launches plus what is the arm's own; an own part below 0 only makes the first smaller."""
    launches = np.maximum(main + np.minimum(own, 0.0), 0.0)
    more = np.maximum(own, 0.0)
    return launches + more, satterthwaite([(launches, df), (more, own_df)])


def satterthwaite(parts: Sequence[tuple[Array, Array | float]]) -> Array:
    """Degrees of freedom of a sum of independent variance estimates (Satterthwaite 1946)."""
    total = np.sum([variance for variance, _ in parts], axis=0)
    spread = np.sum([variance**2 / df for variance, df in parts], axis=0)
    return np.asarray(np.where(spread > 0, total**2 / np.maximum(spread, 1e-300), 1e6))


def measure(frame: Frame, metric: str, concurrency: int, category: str | None, settings: AnalysisSettings) -> CellGains:
    """Gains of every subject over the baseline in one cell."""
    data = frame.tables.cell(metric, concurrency, category)
    model, prediction = learn(data, frame.chunks, _repeats(frame), settings)
    found = np.isfinite(prediction.difference[0]) & ~data.baseline
    refused_launches: dict[int, str] = {}
    for chunk in frame.chunks:
        if not chunk.confirm:
            disagreeing = brackets_disagree(chunk, data.level, settings.bracket_tolerance, model.within)
            refused_launches.update({i: why for i, why in disagreeing.items() if frame.partner[i] < 0})
    for index in np.flatnonzero(data.unsteady & ~data.baseline):
        refused_launches[int(index)] = "its rounds contradict each other, too few agree to say which are right"
    subjects = len(frame.subjects)
    shape = (len(model.v), subjects)
    walk, spread = np.full(shape, np.nan), np.zeros(shape)
    own, own_df = np.zeros(subjects), np.full(subjects, 1e6)
    used: list[Index] = []
    refused: dict[int, str] = {}
    for number, launches in enumerate(frame.launches):
        rows = launches[found[launches]]
        bad = [int(i) for i in rows if int(i) in refused_launches]
        if bad:
            fine = np.array([i for i in rows if int(i) not in refused_launches], dtype=np.int_)
            if len(fine):
                rows = fine
            else:
                refused[number] = refused_launches[bad[0]]
        elif not len(rows) and (
            np.isfinite(data.level[launches]).any()
            or (category is None and _unpaired(frame, number, data.baseline, (metric, concurrency)))
        ):
            hosts = sorted({frame.figures[i].host for i in launches})
            refused[number] = (
                f"no baseline was measured on {', '.join(hosts)} with the same prompts and as many client processes"
            )
        used.append(rows)
        if not len(rows):
            continue
        walk[:, number] = prediction.difference[:, rows].mean(axis=1)
        spread[:, number] = _mean_spread(frame, prediction, rows)
        parts = [(np.array(model.own[rows].sum() / len(rows) ** 2), np.array(np.nanmin(model.own_df[rows])))]
        if data.by_prompt:
            prompts, prompts_df = interaction(data, rows, everything=not settings.launch_effects)
            parts.append((np.array(prompts), np.array(prompts_df)))
        own[number] = sum(float(part) for part, _ in parts)
        own_df[number] = float(satterthwaite(parts)) if any(float(v) for v, _ in parts) else 1e6
    estimate = model.weights @ walk
    counts = np.array([max(len(rows), 1) for rows in used])
    main = model.weights @ (model.v[:, None] * (1 / counts[None] + spread)) + model.weights @ (walk - estimate) ** 2
    variance, degrees = _total(main, model.df, own, own_df)
    return CellGains(
        frame=frame,
        data=data,
        model=model,
        prediction=prediction,
        used=tuple(used),
        walk_estimate=walk,
        estimate=estimate,
        variance=variance,
        df=degrees,
        own_variance=own,
        own_df=own_df,
        spread=spread,
        pairs=np.array([int(data.units[rows].sum()) for rows in used], dtype=np.int_),
        refused=refused,
    )


def _unpaired(frame: Frame, number: int, baseline: Mask, level: tuple[str, int]) -> bool:
    """The subject of the search and baselines have figures at this level, and share no unit: measured again, they will.
    A confirm launch is left out, since its baseline may be yet to come."""
    mine = any(level in frame.figures[i].levels for i in frame.launches[number])
    theirs = any(level in frame.figures[i].levels for i in np.flatnonzero(baseline))
    return mine and theirs and not frame.subjects[number][1]


def _repeats(frame: Frame) -> list[tuple[int, Index]]:
    out = []
    for launches in frame.launches:
        if len(launches) > 1:
            for number in np.unique(frame.chunk_of[launches]):
                places = frame.place_of[launches[frame.chunk_of[launches] == number]]
                if len(places) > 1:
                    out.append((int(number), places))
    return out


def _mean_spread(frame: Frame, prediction: Prediction, rows: Index) -> Array:
    """Variance of the mean prediction error over a subject's launches, in units of V, per walk."""
    total: Array = np.zeros(len(prediction.difference))
    for number in np.unique(frame.chunk_of[rows]):
        spread = prediction.spread[number]
        if spread is not None:
            places = frame.place_of[rows[frame.chunk_of[rows] == number]]
            total = total + spread[:, places[:, None], places[None, :]].sum(axis=(1, 2))
    return total / len(rows) ** 2
