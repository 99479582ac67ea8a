"""What the tests of the stored studies ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.store import Store
from sweep.analysis import StudyAnalysis, analyse_figures, extract, metrics_for
from sweep.config import StudySpec
from sweep.model import MeasuredLaunch, Verdict

STORED = Path(__file__).parents[2] / "benchmarks" / "data" / "h200"


def analysed(store: Store, launches: Sequence[MeasuredLaunch] | None = None) -> StudyAnalysis:
    """``launches``: these instead of all of them."""
    study = store.study(None)
    goals = StudySpec.parse(study.spec).goals
    complete = {trial.number for trial in store.trials(study.id) if trial.verdict is Verdict.COMPLETE}
    measured = store.measured_launches(study.id) if launches is None else launches
    wanted = [m for m in measured if m.trial is None or m.trial in complete]
    arms = {arm.key: arm.config for arm in store.arms(study.id)}
    return analyse_figures([extract(m, metrics_for(goals)) for m in wanted], arms, goals)


def gains_at(analysis: StudyAnalysis, level: int) -> dict[int | None, tuple[float, float, float]]:
    """Trial (None: the engine default) -> (low, estimate, high) against the baseline, all categories, last stage."""
    return {
        g.trial: (g.gain.low, g.gain.estimate, g.gain.high)
        for g in analysis.gains
        if (g.concurrency, g.metric, g.category, g.reference) == (level, "output_throughput", None, "baseline")
        and g.gain is not None
    }
