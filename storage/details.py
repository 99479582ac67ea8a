"""Answers about one trial: all that is known of it, its log, its launch command."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from storage import schema
from storage.ranking import analysis_summary, ties
from storage.records import LaunchRow, TrialRow, outcome
from storage.store import Store
from sweep.errors import UsageError


def find_trial(store: Store, study_id: int, number: int) -> TrialRow:
    """Raises UsageError with the numbers there are."""
    try:
        return store.trial(study_id, number)
    except LookupError as error:
        last = len(store.trials(study_id)) - 1
        there = f"trials are numbered 0 to {last}" if last >= 0 else "it has no trials yet"
        raise UsageError(f"no trial {number} in study {store.study_by_id(study_id).name!r}; {there}") from error


def show(store: Store, study_id: int, number: int) -> dict[str, Any]:
    """The trial with its launches, their blocks, asked against effective, evidence, advice and gains."""
    study = store.study_by_id(study_id)
    trial = find_trial(store, study_id, number)
    effective = trial.effective
    blocks = _blocks(store, trial.id)
    with store.database.read() as connection:
        query = sa.select(schema.gains).where(schema.gains.c.trial_id == trial.id).order_by(schema.gains.c.id)
        gains = [dict(row._mapping) for row in connection.execute(query)]
        because = ties(analysis_summary(connection, study_id))
    for gain in gains:
        tie = because.get((number, *(gain[name] for name in ("metric", "concurrency", "category", "reference"))))
        gain["tie_because"] = tie.as_dict() if tie is not None else None
    analysis = store.analysis(study_id) or {}
    opened, outputs = (
        [event.detail for event in store.events(study_id, kind=kind) if event.detail["trial"] == number]
        for kind in ("outputs_open", "outputs")
    )
    return {
        "study": study.name,
        "simulated": study.simulated,
        "trial": trial.number,
        "label": trial.config.label(),
        **outcome(trial),
        "flags": list(trial.flags),
        "flag_evidence": trial.flags,
        "config": trial.config.as_dict(),
        "effective": effective.config.as_dict() if effective else None,
        "effective_status": effective.status if effective else None,
        "differences": [asdict(difference) for difference in effective.differences] if effective else [],
        "engine_version": effective.version if effective else None,
        "values": trial.values,
        "stderr": trial.stderr,
        "constraints": trial.constraints,
        "outputs": outputs,
        # Launches whose texts leave the baseline's at places that no baseline server has been asked about.
        "outputs_unasked": max(0, len(opened) - len(outputs)),  # an older version stored no open ones
        # What the analysis says beside the gains: where the trial stops paying, and why it gains what it gains.
        "crossover": next((c for c in analysis.get("crossover", ()) if c["trial"] == number), None),
        "explanations": [e for e in analysis.get("explanations", ()) if e["trial"] == number],
        "gains": [{k: v for k, v in gain.items() if k not in {"id", "study_id", "trial_id"}} for gain in gains],
        "origin": trial.origin,
        "why": trial.why,
        "attempt": trial.attempt,
        "host": trial.host,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "finished_at": trial.finished_at,
        "log_path": trial.log_path,
        "launches": [_launch(x) | {"blocks": blocks[x.id]} for x in store.launches(study_id, trial_id=trial.id)],
    }


def _launch(launch: LaunchRow) -> dict[str, Any]:
    return {
        "launch": launch.id,
        "host": launch.host,
        "stage": launch.stage.value,
        "sequence": launch.sequence,
        "pair": launch.pair,
        **outcome(launch),
        "argv": list(launch.argv),
        "pid": launch.pid,
        "port": launch.port,
        "begun_at": launch.begun_at,
        "started_at": launch.started_at,
        "ready_at": launch.ready_at,
        "ended_at": launch.ended_at,
        "phases": launch.phases,
        "probe": launch.probe,
        "stop": launch.stop_report,
        "log_path": launch.log_path,
        "log_tail": list(launch.log_tail),
    }


def _blocks(store: Store, trial_id: int) -> defaultdict[int, list[dict[str, Any]]]:
    """Launch id -> its blocks with every derived figure."""
    query = (
        sa.select(schema.blocks)
        .join(schema.launches, schema.launches.c.id == schema.blocks.c.launch_id)
        .where(schema.launches.c.trial_id == trial_id)
        .order_by(schema.blocks.c.id)
    )
    out: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    with store.database.read() as connection:
        for row in connection.execute(query):
            block = dict(row._mapping)
            block["block"] = block.pop("id")
            out[block.pop("launch_id")].append(block)
    return out


def log_lines(store: Store, study_id: int, number: int, lines: int) -> tuple[LaunchRow, list[str]]:
    """The trial's newest launch and the last lines of its server's log: the file where it is on this machine (also
    while the server runs), else the tail that was stored. Raises UsageError for a trial without a launch."""
    launch = _newest_launch(store, study_id, number)
    local = {host.name for host in store.hosts(study_id) if host.kind == "local"}
    # A path of another host may exist here too and be somebody else's file.
    if launch.log_path and launch.host in local and Path(launch.log_path).is_file():
        with Path(launch.log_path).open(encoding="utf-8", errors="replace") as log:
            return launch, [line.rstrip("\n") for line in deque(log, maxlen=lines)]
    return launch, list(launch.log_tail[-lines:])


def launch_command(store: Store, study_id: int, number: int) -> dict[str, Any]:
    """The command that started the trial's newest launch: {command, argv, env, host}. Secrets are not in it: the API
    key travels in a file, and environment values that are secret stay ``${VAR}``."""
    launch = _newest_launch(store, study_id, number)
    if not launch.argv:
        raise UsageError(f"trial {number} was not started: {launch.evidence or launch.state}")
    study = store.study_by_id(study_id)
    env: Mapping[str, Any] = (study.spec.get("server") or {}).get("env") or {}
    words = [f"{key}={_shell_value(str(value))}" for key, value in env.items()]
    return {
        "study": study.name,
        "simulated": study.simulated,
        "trial": number,
        "host": launch.host,
        "command": " ".join([*words, shlex.join(launch.argv)]),
        "argv": list(launch.argv),
        "env": {key: str(value) for key, value in env.items()},
    }


def _shell_value(value: str) -> str:
    """Quoted; a value that is one ``${VAR}`` stays a reference that the shell resolves."""
    return f'"{value}"' if re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", value) else shlex.quote(value)


def _newest_launch(store: Store, study_id: int, number: int) -> LaunchRow:
    trial = find_trial(store, study_id, number)
    launches = store.launches(study_id, trial_id=trial.id)
    if not launches:
        raise UsageError(f"trial {number} has had no launch yet ({trial.state.value})")
    return launches[-1]
