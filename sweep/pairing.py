"""How a study's candidates meet the baseline: the one place that decides, and says why."""

from __future__ import annotations

from dataclasses import dataclass

from sweep.config import StudySpec
from sweep.model import Basis


@dataclass(frozen=True, slots=True)
class Pairing:
    """``mode`` is the basis of the search's gains; the confirm stage always alternates. ``why`` in words."""

    mode: Basis
    why: str


def choose(spec: StudySpec) -> Pairing:
    """What ``measurement.pairing`` asks for; with ``auto`` the best that the pins allow."""
    asked, every = spec.measurement.pairing, spec.measurement.baseline_every
    missing = spec.missing_for_resident
    if asked == "alternate":
        return Pairing(
            Basis.ALTERNATE,
            "asked for: each candidate is launched twice between two baselines of the same host (B C C B), so that a "
            "linear drift cancels; that is three launches for each trial",
        )
    if asked == "resident" or (asked == "auto" and missing is None):
        return Pairing(
            Basis.RESIDENT,
            f"{'asked for' if asked == 'resident' else 'the pins allow it'}: baseline and candidate are launched "
            "beside each other on the same GPUs and their blocks alternate (B C C B); where the memory does not hold "
            "both, or an idle neighbour is seen to cost something, the search goes on bracketed",
        )
    said = "asked for" if asked == "bracketed" else f"servers cannot share their GPUs ({missing})"
    return Pairing(
        Basis.BRACKETED,
        f"{said}: one server at a time holds the GPUs, candidates are searched between baselines of the same host "
        f"(every {every} trials and last); the confirm stage alternates fresh launches of the best and the baseline",
    )


def candidate_launches(spec: StudySpec) -> int:
    """Search launches of one trial."""
    return 2 if choose(spec).mode is Basis.ALTERNATE else 1
