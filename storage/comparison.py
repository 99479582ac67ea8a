"""Two studies side by side, and one configuration over all studies. Fractions; positive is always better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from storage import reading
from storage.ranking import BASELINE
from storage.records import StudyRow, TrialRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.model import ArmConfig, ArmGain, Objective, Role, Stage, Verdict

# What must be equal for figures of two studies to be of the same load.
WORKLOAD = ("prompts", "categories", "per_category", "max_tokens", "temperature", "ignore_eos", "endpoint")
BASELINE_KEY = ArmConfig().key


def compare(
    store: Store,
    before: StudyRow,
    after: StudyRow,
    *,
    fail_on: float | None = None,
    after_store: Store | None = None,
) -> dict[str, Any]:
    """What got better, worse or stayed within noise from ``before`` to ``after``, arm by arm. ``after`` may be of
    another database, ``after_store``.

    Arms are matched by effective configuration, the baseline included, and compared in every objective that both
    studies have. ``change`` is {estimate, low, high}: the ratio of the figures minus 1, turned so that positive is
    better, with a 95 % interval from both standard errors (t with the smaller degrees of freedom). ``word``: better,
    worse (the interval leaves 0 out), within_noise, unknown (no standard error), lost (complete before, failed after),
    recovered. ``regressions`` are the arms that are lost, or worse by more than ``fail_on`` (a fraction).

    Raises UsageError where the loads differ or no objective is shared: such figures have no ratio.
    """
    _same_load(before, after)
    shared = [objective for objective in before.objectives if objective in after.objectives]
    if not shared:
        raise UsageError(f"studies {before.name!r} and {after.name!r} share no objective")
    first, second = _Side(store, before), _Side(after_store or store, after)
    arms: list[dict[str, Any]] = []
    for key in first.arms.keys() & second.arms.keys():
        old, new = first.arms[key], second.arms[key]
        row: dict[str, Any] = {
            "config": _config(new).as_dict(),
            "label": _config(new).label(),
            "trials": [_number(old), _number(new)],
        }
        if (old is None or old.verdict is Verdict.COMPLETE) and (new is None or new.verdict is Verdict.COMPLETE):
            row["objectives"] = {o.key: _change(first, second, old, new, o) for o in shared}
            row["word"] = None
        else:
            row["objectives"] = {}
            row["word"] = _outcome(old, new)
        row["verdicts"] = [_verdict(old), _verdict(new)]
        arms.append(row)
    arms.sort(key=lambda row: (row["trials"][0] is not None, row["trials"][0] or 0))
    return {
        "studies": [before.name, after.name],
        "simulated": before.simulated or after.simulated,
        "objectives": [o.key for o in shared],
        "differences": _differences(before, after, first, second),
        "arms": arms,
        "only_in": [
            sorted(_config(side.arms[key]).label() for key in side.arms.keys() - other.arms.keys())
            for side, other in ((first, second), (second, first))
        ],
        "fail_on": fail_on,
        "regressions": [] if fail_on is None else _regressions(arms, fail_on),
    }


def history(store: Store, config: ArmConfig, objective: Objective) -> list[dict[str, Any]]:
    """Every trial of every study that effectively ran this configuration, oldest study first, with its figure."""
    out: list[dict[str, Any]] = []
    for study in reversed(store.studies()):
        rows = {row.trial: row for row in _whole(reading.gains(store, study.id), objective)}
        for trial in store.trials(study.id):
            if _config(trial).key != config.key:
                continue
            row = rows.get(trial.number)
            out.append(
                {
                    "study": study.name,
                    "simulated": study.simulated,
                    "trial": trial.number,
                    "finished_at": trial.finished_at,
                    "host": trial.host,
                    "engine_version": trial.effective.version if trial.effective else None,
                    "model": (study.spec.get("model") or {}).get("path"),
                    "verdict": _verdict(trial),
                    "value": row.value if row else trial.values.get(objective.key),
                    "accept_length": row.accept_length if row else None,
                    "gain": row.gain.as_dict() if row and row.gain else None,
                }
            )
    return out


class _Side:
    """One study: its arms by effective key (None: the baseline), gains and baseline levels."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.study = study
        self.arms: dict[str, TrialRow | None] = {BASELINE_KEY: None}
        for trial in store.trials(study.id):
            key = _config(trial).key
            kept = self.arms.get(key)
            # Of several attempts at one configuration the newest complete one speaks, else the newest finished one.
            if trial.verdict is not None and (kept is None or _complete(trial) or not _complete(kept)):
                self.arms[key] = trial
        gains = reading.gains(store, study.id)
        self.gains = {(row.trial, o.key): row for o in study.objectives for row in _whole(gains, o)}
        analysis = store.analysis(study.id) or {}
        self.levels: Mapping[str, float] = (analysis.get("baseline") or {}).get("by_objective") or {}
        self.noise = {f"{line['metric']}@{line['concurrency']}": line for line in analysis.get("noise", [])}
        launches = store.launches(study.id)
        self.versions = sorted({x.effective.version for x in launches if x.effective and x.effective.version})
        measured = [x for x in launches if x.verdict is Verdict.COMPLETE and x.stage is not Stage.CONFIRM]
        self.baselines = sum(x.role is Role.BASELINE for x in measured)
        facts = [host.facts or {} for host in store.hosts(study.id)]
        self.gpus = sorted({gpu["name"] for found in facts for gpu in found.get("gpus", [])})

    def figure(self, trial: TrialRow | None, key: str) -> tuple[float, float | None, float] | None:
        """(value, standard error of its log, degrees of freedom)"""
        if trial is None:
            level, line = self.levels.get(key), self.noise.get(key)
            if level is None:
                return None
            error = line["launch_mean_sd"] / math.sqrt(max(1, self.baselines)) if line else None
            return level, error, line["df"] if line else 1.0
        row = self.gains.get((trial.number, key))
        if row is None or row.value is None:
            return None
        return row.value, row.value_se / row.value if row.value_se is not None else None, row.df or 1.0


def _change(first: _Side, second: _Side, old: TrialRow | None, new: TrialRow | None, o: Objective) -> dict[str, Any]:
    a, b = first.figure(old, o.key), second.figure(new, o.key)
    if a is None or b is None or a[0] <= 0 or b[0] <= 0:
        return {"values": [a and a[0], b and b[0]], "change": None, "word": "unknown"}
    ratio = math.log(b[0] / a[0]) * (1 if o.maximize else -1)
    if a[1] is None or b[1] is None:
        change: dict[str, float | None] = {"estimate": math.expm1(ratio), "low": None, "high": None}
        return {"values": [a[0], b[0]], "change": change, "word": "unknown"}
    reach = float(stats.t.ppf(0.975, min(a[2], b[2]))) * math.hypot(a[1], b[1])
    low, high = math.expm1(ratio - reach), math.expm1(ratio + reach)
    word = "better" if low > 0 else "worse" if high < 0 else "within_noise"
    change = {"estimate": math.expm1(ratio), "low": low, "high": high}
    return {"values": [a[0], b[0]], "change": change, "word": word}


def _outcome(old: TrialRow | None, new: TrialRow | None) -> str:
    if _complete(new):
        return "recovered"
    return "lost" if _complete(old) else "failed_in_both"


def _regressions(arms: Sequence[Mapping[str, Any]], fail_on: float) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for arm in arms:
        if arm["word"] == "lost":
            out.append({"label": arm["label"], "objective": None, "change": None, "verdict": arm["verdicts"][1]})
        for key, found in arm["objectives"].items():
            if found["word"] == "worse" and found["change"]["estimate"] < -fail_on:
                out.append(
                    {"label": arm["label"], "objective": key, "change": found["change"], "verdict": arm["verdicts"][1]}
                )
    return out


def _same_load(before: StudyRow, after: StudyRow) -> None:
    loads = [study.spec.get("workload") or {} for study in (before, after)]
    pairs = [(key, loads[0].get(key), loads[1].get(key)) for key in WORKLOAD]
    differ = [f"{key} {one} and {other}" for key, one, other in pairs if one != other]
    if before.simulated != after.simulated:
        differ.append("one is simulated")
    if differ:
        raise UsageError(
            f"studies {before.name!r} and {after.name!r} cannot be compared, they measured different loads: "
            f"{'; '.join(differ)}"
        )


def _differences(before: StudyRow, after: StudyRow, first: _Side, second: _Side) -> list[dict[str, Any]]:
    """What else is not the same, [{what, values}]: it may be the reason of a change."""
    pairs: list[tuple[str, Any, Any]] = [
        ("engine version", first.versions, second.versions),
        ("GPUs", first.gpus, second.gpus),
        ("specsweep", before.tool_version, after.tool_version),
    ]
    specs = [before.spec, after.spec]
    pairs.append(("model", specs[0].get("model"), specs[1].get("model")))
    args = [(spec.get("server") or {}).get("args") or {} for spec in specs]
    pairs += [(f"server {flag}", args[0].get(flag), args[1].get(flag)) for flag in sorted({*args[0], *args[1]})]
    return [{"what": what, "values": [a, b]} for what, a, b in pairs if a != b]


def _whole(rows: Sequence[ArmGain], objective: Objective) -> list[ArmGain]:
    """Gains over the baseline in one objective, all categories together."""
    wanted = (objective.metric, objective.concurrency, BASELINE, None)
    return [row for row in rows if (row.metric, row.concurrency, row.reference, row.category) == wanted]


def _config(trial: TrialRow | None) -> ArmConfig:
    if trial is None:
        return ArmConfig()
    return trial.effective.config if trial.effective else trial.config


def _complete(trial: TrialRow | None) -> bool:
    return trial is None or trial.verdict is Verdict.COMPLETE


def _number(trial: TrialRow | None) -> int | None:
    return None if trial is None else trial.number


def _verdict(trial: TrialRow | None) -> str | None:
    if trial is None:
        return Verdict.COMPLETE.value
    return trial.verdict.value if trial.verdict else None
