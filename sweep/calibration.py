"""A/A studies: which studies they are, what they say about a later one of the same model, pins, workload and host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.records import StudyRow, StudyState
from storage.store import Store
from sweep.config import StudySpec
from sweep.model import Role

_MOST_ROUNDS = 1000


def only_references(spec: StudySpec, launches: int, wanted_gain: float) -> StudySpec:
    """The study reduced to ``launches`` baselines per host; ``wanted_gain`` is the fraction to be resolved."""
    measurement = spec.measurement.model_copy(
        update={
            "calibrate_launches": launches,
            "engine_default": False,
            "confirm_top": 0,
            "wanted_gain": wanted_gain,
            "pairing": "bracketed",
        }
    )
    return spec.model_copy(update={"measurement": measurement, "references_only": True})


def describe(store: Store, study: StudyRow) -> dict[str, Any]:
    """What an A/A study found, as the JSON of `sweep calibrate`; ``noise`` is empty before two launches were measured.

    ``between_launch_sd`` and ``within_launch_sd`` (of a prompt or a round) are standard deviations of log figures;
    ``minimum_detectable_gain``: found with probability 0.8 at the repeats chosen. ``repeats_needed``: see
    :func:`repeats_needed`.
    """
    launches = [m for m in store.measured_launches(study.id, requests=False) if m.role is Role.BASELINE]
    found = (store.analysis(study.id) or {}).get("noise", []) if len(launches) > 1 else []
    repeats = int(study.spec["workload"]["repeats"])
    return {
        "study": study.name,
        "simulated": study.simulated,
        "launches": len(launches),
        "hosts": sorted({m.host for m in launches}),
        "repeats": repeats,
        "noise": [{**row, "repeats": repeats, "repeats_needed": repeats_needed(row, repeats)} for row in found],
    }


def repeats_needed(noise: Mapping[str, Any], repeats: int) -> int | None:
    """Rounds per launch with which one search launch per candidate would resolve the wanted gain.

    A launch's variance is V = between + rest / rounds, and the log of the minimum detectable gain is proportional to
    its root; None where what differs from launch to launch alone is too much, so that only more launches help.
    """
    variance, between = noise["launch_mean_sd"] ** 2, noise["between_launch_sd"] ** 2
    allowed = variance * (math.log1p(noise["wanted_gain"]) / math.log1p(noise["minimum_detectable_gain"])) ** 2
    if allowed <= between:
        return None
    needed = math.ceil((variance - between) * repeats / (allowed - between))
    return max(1, needed) if needed <= _MOST_ROUNDS else None


def known_for(store: Store, spec: StudySpec) -> dict[str, Any] | None:
    """The newest finished A/A study of the same engine, model, pins, workload and one of the hosts; None without."""
    mine = spec.dump()
    same = ["engine", "model", "server", "workload", *(["simulate"] if spec.simulated else [])]
    hosts = {host.name for host in spec.hosts}
    for study in store.studies():
        kept = study.spec
        if not kept.get("references_only") or study.state is not StudyState.FINISHED:
            continue
        if all(kept.get(key) == mine[key] for key in same) and hosts & {host["name"] for host in kept["hosts"]}:
            answer = describe(store, study)
            if answer["noise"]:
                return answer
    return None
