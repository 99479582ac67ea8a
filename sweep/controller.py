"""Is a study being run, and by whom: the one place that decides whether a controller is alive."""

from __future__ import annotations

import time

from launchers.locks import Holder, holder_alive, on_this_machine
from storage.records import StudyRow

HOLDER_SILENT_S = 60.0  # a controller on another machine that has not been heard of for this long is gone


def controlled(study: StudyRow) -> bool:
    """True where a living controller holds the study: seen as a process on this machine, by its heartbeat elsewhere."""
    if study.controller is None:
        return False
    holder = Holder.from_dict(study.controller)
    if on_this_machine(holder):
        return holder_alive(holder)
    return time.time() - (study.heartbeat_at or study.created_at) < HOLDER_SILENT_S
