"""How far a study's search is: what it knew before, what is left to find, why it ended."""

from __future__ import annotations

from typing import Any

from storage.records import StudyRow
from storage.store import Store

# The events that a running study leaves.
SEARCH = "search"  # {sampler, candidates, enumerates}
OUTLOOK = "outlook"  # {regret, launches, tolerance}, after each trial
ENDED = "search_ended"  # {reason, why}
WARM_START = "warm_start"  # {studies: [{study, launches}]}
TRIAL = "trial"


def search_state(store: Store, study: StudyRow) -> dict[str, Any]:
    """{sampler, regret, tolerance, launches_left, ended: {reason, why} or None, warm_start: [{study, launches}]}.

    ``regret`` (fraction): what the best configuration is expected to gain over the best measured one, by the cost
    model; ``launches_left`` until that is within the ``tolerance``. Both None where no model says so, or before
    anything was measured. ``ended``: why nothing more is proposed, once that is so.
    """
    begun = store.events(study.id, kind=SEARCH)
    outlooks = store.events(study.id, kind=OUTLOOK)
    ends = store.events(study.id, kind=ENDED)
    warm = store.events(study.id, kind=WARM_START)
    last = outlooks[-1].detail if outlooks else {}
    # A resumed study goes on: what ended an earlier run of it does not hold once a trial was proposed after it.
    going = [event.id for event in store.events(study.id, kind=TRIAL)[-1:]]
    ended = ends[-1].detail if ends and ends[-1].id > max(going, default=0) else None
    return {
        "sampler": begun[-1].detail["sampler"] if begun else study.spec.get("sampler"),
        "regret": last.get("regret"),
        "tolerance": last.get("tolerance"),
        "launches_left": last.get("launches"),
        "ended": None if ended is None else {"reason": ended["reason"], "why": ended["why"]},
        "warm_start": list(warm[0].detail["studies"]) if warm else [],
    }
