"""The Pareto front over a study's objectives, or over any metrics that were measured, with its hypervolume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from storage import schema
from storage.figures import figures, parse
from storage.ranking import feasible
from storage.store import Store
from sweep.errors import UsageError
from sweep.model import ArmConfig, Flag, Verdict

Costs = npt.NDArray[np.float64]


def pareto(store: Store, study_id: int, objectives: Sequence[str] | None = None) -> dict[str, Any]:
    """Every complete trial with a figure in all objectives, and the baseline; ``on_front`` where no other dominates.

    ``objectives``: ``metric@concurrency`` each, the study's own where None; UsageError for one that was not measured.
    Trials that are lossy, were screened out or break a constraint are points but neither on the front nor dominate
    anything.

    ``hypervolume``: the share of the box between the worst and the best figure of each objective (baseline included)
    that the front dominates (Zitzler and Thiele 1998), None where the box is flat; ``over_baseline`` is the volume
    dominated beyond the baseline in units of the baseline's own figures, 0 where no point beats it everywhere.
    """
    study = store.study_by_id(study_id)
    trials = schema.trials.c
    query = (
        sa.select(trials.number, trials.flags, trials.constraint_values, schema.arms.c.config)
        .join(schema.arms, schema.arms.c.id == trials.arm_id)
        .where(trials.study_id == study_id, trials.verdict == Verdict.COMPLETE.value)
        .order_by(trials.number)
    )
    with store.database.read() as connection:
        chosen = (
            study.objectives if objectives is None else tuple(parse(connection, study, text) for text in objectives)
        )
        if len({o.key for o in chosen}) < len(chosen):
            raise UsageError("an objective is named twice")
        columns = figures(connection, study, chosen)
        rows = connection.execute(query).all()
    points: list[dict[str, Any]] = []
    eligible: list[int] = []

    def add(number: int | None, config: dict[str, Any], flags: list[str], ok: bool) -> None:
        if not columns or any(number not in column for column in columns.values()):
            return
        if ok:
            eligible.append(len(points))
        points.append(
            {
                "trial": number,
                "is_baseline": number is None,
                "values": {key: column[number][0] for key, column in columns.items()},
                "stderr": {key: column[number][1] for key, column in columns.items()},
                "config": config,
                "flags": flags,
            }
        )

    add(None, ArmConfig().as_dict(), [], True)
    out_of_it = {Flag.SCREENED_OUT.value, Flag.NOT_COMPARABLE.value}
    for number, flags, violations, config in rows:
        lossless = not ArmConfig.from_dict(config).lossy
        add(number, config, list(flags), lossless and feasible(violations) and not out_of_it & flags.keys())
    signs = np.array([-1.0 if o.maximize else 1.0 for o in chosen])
    costs = signs * np.array([[points[i]["values"][o.key] for o in chosen] for i in eligible]).reshape(-1, len(chosen))
    front = _front(costs) if eligible else set()
    on_front = {eligible[i] for i in front}
    for index, point in enumerate(points):
        point["on_front"] = index in on_front
    base = next((costs[i] for i, index in enumerate(eligible) if points[index]["is_baseline"]), None)
    return {
        "study": study.name,
        "simulated": study.simulated,
        "objectives": [o.key for o in chosen],
        "directions": {o.key: "maximize" if o.maximize else "minimize" for o in chosen},
        "hypervolume": _normalised(costs, sorted(front)),
        "over_baseline": _over_baseline(costs[sorted(front)], base),
        "points": points,
    }


def hypervolume(costs: Costs, reference: Costs) -> float:
    """Volume between ``reference`` (k) and the points ``costs`` (n x k, all minimised); exact, by slicing along the
    last objective. Points that are not better than the reference everywhere add nothing."""
    inside = costs[(costs < reference).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(reference[0] - inside.min())
    order = inside[np.argsort(inside[:, -1])]
    edges = [*order[1:, -1], reference[-1]]
    volume = 0.0
    for count, (row, edge) in enumerate(zip(order, edges, strict=True), start=1):
        if edge > row[-1]:
            volume += float(edge - row[-1]) * hypervolume(order[:count, :-1], reference[:-1])
    return volume


def _normalised(costs: Costs, front: Sequence[int]) -> float | None:
    if len(costs) < 2:
        return None
    best, worst = costs.min(axis=0), costs.max(axis=0)
    if (worst <= best).any():
        return None
    return hypervolume((costs[list(front)] - best) / (worst - best), np.ones(costs.shape[1]))


def _over_baseline(front: Costs, baseline: Costs | None) -> float | None:
    if baseline is None or (baseline == 0).any():
        return None
    scale = np.abs(baseline)
    return hypervolume(front / scale, baseline / scale)


def _front(costs: Costs) -> set[int]:
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
