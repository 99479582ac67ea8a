"""The Pareto front over a study's objectives, from rows of trials and the baseline's level."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa

from storage import schema
from storage.ranking import analysis_summary, feasible
from storage.store import Store
from sweep.model import ArmConfig, Flag, Verdict


def pareto(store: Store, study_id: int) -> dict[str, Any]:
    """Every complete trial with a figure in all objectives, and the baseline; ``on_front`` where no other dominates.

    Trials that were screened out or break a constraint are points but neither on the front nor dominate anything.
    """
    study = store.study_by_id(study_id)
    objectives = study.objectives
    keys = [o.key for o in objectives]
    trials = schema.trials.c
    query = (
        sa.select(trials.number, trials.flags, trials.objective_values, trials.constraint_values, schema.arms.c.config)
        .join(schema.arms, schema.arms.c.id == trials.arm_id)
        .where(trials.study_id == study_id, trials.verdict == Verdict.COMPLETE.value)
        .order_by(trials.number)
    )
    with store.database.read() as connection:
        reference = analysis_summary(connection, study_id)["baseline"]
        rows = connection.execute(query).all()
    points: list[dict[str, Any]] = []
    eligible: list[bool] = []
    if keys and all(reference.get(key) is not None for key in keys):
        values = {key: reference[key] for key in keys}
        config = ArmConfig().as_dict()
        points.append({"trial": None, "is_baseline": True, "values": values, "config": config, "flags": []})
        eligible.append(True)
    for number, flags, values, violations, config in rows:
        if not keys or any(key not in (values or {}) for key in keys):
            continue
        points.append(
            {
                "trial": number,
                "is_baseline": False,
                "values": {key: values[key] for key in keys},
                "config": config,
                "flags": list(flags),
            }
        )
        eligible.append(
            feasible(violations) and not {Flag.SCREENED_OUT.value, Flag.NOT_COMPARABLE.value} & flags.keys()
        )
    chosen = [index for index, ok in enumerate(eligible) if ok]
    signs = [-1.0 if o.maximize else 1.0 for o in objectives]
    costs = np.array([[s * points[i]["values"][k] for s, k in zip(signs, keys, strict=True)] for i in chosen])
    front = {chosen[i] for i in _front(costs)} if chosen else set()
    for index, point in enumerate(points):
        point["on_front"] = index in front
    return {
        "study": study.name,
        "simulated": study.simulated,
        "objectives": keys,
        "directions": {o.key: "maximize" if o.maximize else "minimize" for o in objectives},
        "points": points,
    }


def _front(costs: np.ndarray[Any, np.dtype[np.float64]]) -> set[int]:
    """Rows (all minimised) that no other row dominates; equal rows stand together."""
    front: set[int] = set()
    kept = np.empty((0, costs.shape[1]))
    # In lexicographic order a row can only be dominated by an earlier one, so comparing with the front is enough.
    for index in np.lexsort(costs.T[::-1]):
        row = costs[index]
        dominated = (kept <= row).all(axis=1) & (kept < row).any(axis=1)
        if not dominated.any():
            front.add(int(index))
            kept = np.vstack([kept, row])
    return front
