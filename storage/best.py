"""The best configurations of a study: ranked, filtered, near the first, or one ranking per host, load, prompt kind or
drafter.

Reads rows of ``trials``, ``gains`` and ``analyses`` alone (blocks only of the few trials shown), so that it stays
quick however many requests were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.figures import analysed, analysed_keys, levels, parse
from storage.ranking import BASELINE, Candidate, analysis_summary, feasible, once, ranked, ranks, ties
from storage.records import StudyRow, TrialRow
from storage.store import Store
from storage.trials import trial_query
from storage.where import Selection, facts_of
from sweep.errors import UsageError
from sweep.model import ArmGain, Comparison, GainKey, Objective, Stage, Tie, Verdict

ENGINE_DEFAULT = "engine_default"
PER = ("host", "category", "concurrency", "draft_model")


@dataclass(frozen=True, slots=True)
class _Asked:
    """One ranking to make: by which objective, of which prompts, which of its candidates."""

    objective: Objective
    category: str | None = None
    lossy: bool = False
    keep: Callable[[Candidate], bool] = lambda candidate: True


def best(
    store: Store,
    study_id: int,
    *,
    objective: str | None = None,
    limit: int | None = 10,
    where: str | None = None,
    within: float | None = None,
    per: str | None = None,
    lossy: bool = False,
) -> dict[str, Any]:
    """The ranking by one objective (the study's first where None) against both references.

    Only complete trials are ranked, and lossless arms alone: ``lossy`` ranks those that may change what is answered,
    a class of their own. ``where``: a condition as in ``sweep.expressions`` over the fields of
    ``storage.where``; one that pins the concurrency moves the objective there. ``within``: only what lies within this
    fraction of the first one's figure. ``per`` (one of :data:`PER`): adds ``groups``, a ranking each. Raises UsageError
    for an objective that was not measured and for a condition that cannot be read.
    """
    study = store.study_by_id(study_id)
    with store.database.read() as connection:
        found = analysis_summary(connection, study.id)
        chosen = parse(connection, study, objective)
        if not analysed(connection, study, chosen):
            there = ", ".join(analysed_keys(connection, study))
            raise UsageError(f"{chosen.key} cannot be ranked in study {study.name!r}; there are: {there}")
        selection = Selection(connection, study, where) if where is not None else None
        if selection is not None and selection.pins_concurrency and per != "concurrency":
            chosen = selection.at_one_level(chosen, levels(connection, study.id))
        default = _engine_default(connection, study)
        whole = _ranking(connection, study, found, _Asked(chosen, lossy=lossy), selection, within, limit)
        groups: list[dict[str, Any]] = [
            {str(per): name, "objective": asked.objective.key}
            | _ranking(connection, study, found, asked, selection, within, limit)
            for name, asked in _groups(connection, study, chosen, per, lossy)
        ]
    return {
        "study": study.name,
        "simulated": study.simulated,
        "state": study.state.value,
        "objective": chosen.key,
        "objectives": [o.key for o in study.objectives],
        "baseline": {"by_objective": found["baseline"]},
        "engine_default": {"by_objective": default},
        "lossy": lossy,
        "forced_accept_length": study.forced_accept_length,
        "where": where,
        "within": within,
        "sentences": found["sentences"],
        **whole,
        **({"per": per, "groups": [group for group in groups if group["best"]]} if per is not None else {}),
    }


def _ranking(
    connection: Connection,
    study: StudyRow,
    summary: Mapping[str, Any],
    asked: _Asked,
    selection: Selection | None,
    within: float | None,
    limit: int | None,
) -> dict[str, Any]:
    """{beats_baseline, ranked, best: [...]} of one ranking."""
    candidates = ranked(connection, study.id, asked.objective, summary, category=asked.category, lossy=asked.lossy)
    if selection is not None:
        candidates = selection.kept(candidates, asked.objective)
    candidates = once([candidate for candidate in candidates if asked.keep(candidate)])
    if within is not None:
        candidates = _near_the_first(candidates, within)
    shown = candidates if limit is None else candidates[:limit]
    ids = [candidate.trial_id for candidate in shown]
    trials = _trials(connection, ids)
    detail = _gains_of(connection, ids, asked.objective, ties(summary))
    measured = _measured(connection, ids, asked.objective.concurrency)
    return {
        "beats_baseline": any(c.comparison is Comparison.FASTER and c.group() == 0 for c in candidates),
        "ranked": len(candidates),
        "best": [
            _best_row(trials[c.trial_id], rank, detail[c.trial_id], measured.get(c.trial_id, {}), asked)
            | {"also_trials": list(c.also)}
            for c, rank in zip(shown, ranks(candidates), strict=False)
        ],
    }


def _near_the_first(candidates: Sequence[Candidate], within: float) -> list[Candidate]:
    """The first and what is at most ``within`` (fraction of its figure) worse. Gains are positive where better for
    every metric, so their ratio is the figures' ratio."""
    if not candidates or candidates[0].estimate is None:
        return list(candidates[:1])
    least = (1 + candidates[0].estimate) * (1 - within)
    group = candidates[0].group()
    return [c for c in candidates if c.group() == group and c.estimate is not None and 1 + c.estimate >= least]


def _groups(
    connection: Connection, study: StudyRow, chosen: Objective, per: str | None, lossy: bool
) -> list[tuple[str | int | None, _Asked]]:
    if per is None:
        return []
    if per == "concurrency":
        goals = [Objective(chosen.metric, level, chosen.maximize) for level in levels(connection, study.id)]
        return [(goal.concurrency, _Asked(goal, lossy=lossy)) for goal in goals if analysed(connection, study, goal)]
    if per == "category":
        gains = schema.gains.c
        query = sa.select(gains.category).where(
            gains.study_id == study.id,
            gains.metric == chosen.metric,
            gains.concurrency == chosen.concurrency,
            gains.category.is_not(None),
        )
        return [(name, _Asked(chosen, category=name, lossy=lossy)) for name in sorted(set(connection.scalars(query)))]
    facts = facts_of(connection, study)
    names = sorted({row[per] for row in facts.values()}, key=lambda name: (name is None, name))

    def only(name: str | None) -> Callable[[Candidate], bool]:
        return lambda candidate: facts[candidate.number][per] == name

    return [(name, _Asked(chosen, lossy=lossy, keep=only(name))) for name in names]


def _best_row(
    trial: TrialRow, rank: int, gains: Sequence[ArmGain], measured: Mapping[str, Any], asked: _Asked
) -> dict[str, Any]:
    objective = asked.objective
    whole = {g.reference: g for g in gains if g.category == asked.category}
    gain, default = whole.get(BASELINE), whole.get(ENGINE_DEFAULT)
    categories = {g.category: g for g in gains if g.reference == BASELINE and g.category is not None}
    accept_length = gain.accept_length if gain is not None and gain.accept_length is not None else None
    value = gain.value if gain is not None else None
    if value is None and asked.category is None:
        value = trial.values.get(objective.key)
    throughput = value if objective.metric == "output_throughput" and asked.category is None else None
    return {
        "rank": rank,
        "trial": trial.number,
        "label": trial.config.label(),
        "config": trial.config.as_dict(),
        "lossy": trial.config.lossy,
        "effective": (trial.effective.config if trial.effective else trial.config).as_dict(),
        "value": value,
        "throughput": measured.get("throughput") if throughput is None and asked.category is None else throughput,
        "accept_length": accept_length if accept_length is not None else measured.get("accept_length"),
        "gain": _interval(gain),
        "gain_over_engine_default": _interval(default),
        "search_gain": gain.search_gain.as_dict() if gain is not None and gain.search_gain is not None else None,
        "by_category": {
            str(category): g.gain.as_dict() | {"comparison": g.comparison.value}
            for category, g in sorted(categories.items())
            if g.gain
        },
        "break_even_accept_length": gain.break_even if gain is not None else None,
        "verdict": Verdict.COMPLETE.value,
        "comparison": (gain.comparison if gain is not None else Comparison.NOT_COMPARABLE).value,
        "tie_because": _tie(gain),
        "comparison_with_engine_default": default.comparison.value if default is not None else None,
        "tie_with_engine_default_because": _tie(default),
        "origin": trial.origin,
        "why": trial.why,
        "feasible": feasible(trial.constraints),
        "flags": list(trial.flags),
        "host": trial.host,
    }


def _interval(gain: ArmGain | None) -> dict[str, Any] | None:
    return gain.gain.as_dict() if gain is not None and gain.gain is not None else None


def _tie(gain: ArmGain | None) -> dict[str, Any] | None:
    """None where the gain's own interval says what the word says."""
    return gain.tie.as_dict() if gain is not None and gain.tie is not None else None


# ---------------------------------------------------------------------------------------------- rows


def _trials(connection: Connection, trial_ids: Sequence[int]) -> dict[int, TrialRow]:
    query = trial_query().where(schema.trials.c.id.in_(trial_ids))
    return {row.id: codec.trial_in(row) for row in connection.execute(query)}


def _gains_of(
    connection: Connection, trial_ids: Sequence[int], objective: Objective, because: Mapping[GainKey, Tie]
) -> dict[int, list[ArmGain]]:
    """Trial id -> its gains in one objective, every category and reference."""
    gains = schema.gains.c
    query = sa.select(schema.gains, schema.trials.c.number).join(schema.trials, schema.trials.c.id == gains.trial_id)
    where = (
        gains.trial_id.in_(trial_ids),
        gains.metric == objective.metric,
        gains.concurrency == objective.concurrency,
    )
    out: defaultdict[int, list[ArmGain]] = defaultdict(list)
    for row in connection.execute(query.where(*where)):
        out[row.trial_id].append(codec.gain_in(row, because))
    return out


def _measured(connection: Connection, trial_ids: Sequence[int], concurrency: int) -> dict[int, dict[str, float]]:
    """Trial id -> mean throughput and accept length of its valid blocks, of the confirm stage where there is one."""
    blocks, launches = schema.blocks.c, schema.launches.c
    query = (
        sa.select(
            launches.trial_id,
            launches.stage,
            sa.func.avg(blocks.output_throughput).label("throughput"),
            sa.func.avg(blocks.accept_length).label("accept_length"),
        )
        .join(schema.launches, launches.id == blocks.launch_id)
        .where(
            launches.trial_id.in_(trial_ids),
            launches.verdict == Verdict.COMPLETE.value,
            blocks.concurrency == concurrency,
            blocks.invalid.is_(None),
        )
        .group_by(launches.trial_id, launches.stage)
    )
    out: dict[int, dict[str, float]] = {}
    for row in connection.execute(query):
        if row.trial_id not in out or row.stage == Stage.CONFIRM.value:
            out[row.trial_id] = {"throughput": row.throughput, "accept_length": row.accept_length}
    return out


def _engine_default(connection: Connection, study: StudyRow) -> dict[str, float]:
    """Objective key -> the engine default's figure, where it was measured."""
    gains = schema.gains.c
    query = sa.select(gains.metric, gains.concurrency, gains.value).where(
        gains.study_id == study.id,
        gains.trial_id.is_(None),
        gains.reference == BASELINE,
        gains.category.is_(None),
        gains.value.is_not(None),
    )
    found = {f"{metric}@{level}": value for metric, level, value in connection.execute(query)}
    return {o.key: found[o.key] for o in study.objectives if o.key in found}
