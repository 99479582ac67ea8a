"""Numbers that can be believed: paired gains, drift, noise floor, ties and the sentences about them.

:func:`analyse` is the entry point; docs/measurement.md says what it does and why.
"""

from sweep.analysis.figures import LaunchFigures, extract
from sweep.analysis.study import analyse, analyse_figures, metrics_for
from sweep.analysis.types import (
    BASELINE_REFERENCE,
    ENGINE_DEFAULT_REFERENCE,
    AnalysisSettings,
    Finding,
    Ranked,
    StudyAnalysis,
)
from sweep.analysis.words import comparison as comparison_words
from sweep.model import ArmGain

__all__ = [
    "BASELINE_REFERENCE",
    "ENGINE_DEFAULT_REFERENCE",
    "AnalysisSettings",
    "ArmGain",
    "Finding",
    "LaunchFigures",
    "Ranked",
    "StudyAnalysis",
    "analyse",
    "analyse_figures",
    "comparison_words",
    "extract",
    "metrics_for",
]
