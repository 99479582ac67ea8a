"""Which trial an export speaks of: the one named, else the first of the ranking."""

from __future__ import annotations

from storage import details, queries
from storage.records import StudyRow, TrialRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.model import Verdict


def chosen(store: Store, study: StudyRow, number: int | None) -> TrialRow:
    """UsageError for a trial that is not there or not complete, and for a study without a complete one."""
    if number is None:
        rows = queries.best(store, study.id, limit=1)["best"]
        if not rows:
            raise UsageError(f"no trial of study {study.name!r} is complete yet: there is no winner to export")
        number = int(rows[0]["trial"])
    trial = details.find_trial(store, study.id, number)
    if trial.verdict is not Verdict.COMPLETE:
        raise UsageError(f"trial {number} of study {study.name!r} is not complete ({trial.verdict or trial.state})")
    return trial
