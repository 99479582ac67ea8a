"""A study as pandas frames: trials, blocks, requests, gains. Units as in ``storage.schema``; gains are fractions.

Integer columns are ``Int64`` so that a missing figure stays missing instead of making its column floating point.
What a JSON column holds becomes columns (configuration, objective values) or JSON text (histograms).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import sqlalchemy as sa

from storage import schema
from storage.records import StudyRow, outcome
from storage.store import Store

CONFIG_COLUMNS = ("algorithm", "draft_model", "num_steps", "topk", "num_draft_tokens", "cuda_graph")
_DTYPES = {sa.Integer: "Int64", sa.Double: "float64", sa.Boolean: "boolean", sa.Text: "str"}
_CONFIG_DTYPES = dict(zip(CONFIG_COLUMNS, ("str", "str", "Int64", "Int64", "Int64", "boolean"), strict=True))

_TRIAL_DTYPES = {
    "study": "str",
    "simulated": "boolean",
    "trial": "Int64",
    **_CONFIG_DTYPES,
    "args": "str",
    **dict.fromkeys(
        ("config_key", "effective_key", "state", "verdict", "phase", "reason", "evidence", "advice"), "str"
    ),
    **dict.fromkeys(("flags", "origin"), "str"),
    "attempt": "Int64",
    "host": "str",
    **dict.fromkeys(("created_at", "started_at", "finished_at"), "float64"),
}


def trials(store: Store, study: StudyRow) -> pd.DataFrame:
    """One row a trial: number, asked configuration, verdict with evidence, one column per objective (its key)."""
    rows: list[dict[str, Any]] = []
    values = {o.key: "float64" for o in study.objectives}
    for trial in store.trials(study.id):
        effective = trial.effective.config if trial.effective else None
        rows.append(
            {
                "study": study.name,
                "simulated": study.simulated,
                "trial": trial.number,
                **_config(trial.config.as_dict()),
                "config_key": trial.config.key,
                "effective_key": effective.key if effective else None,
                **outcome(trial),
                "flags": ",".join(trial.flags),
                "origin": trial.origin,
                "attempt": trial.attempt,
                "host": trial.host,
                "created_at": trial.created_at,
                "started_at": trial.started_at,
                "finished_at": trial.finished_at,
                **{key: trial.values.get(key) for key in values},
            }
        )
    dtypes = {**_TRIAL_DTYPES, **values}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def blocks(store: Store, study: StudyRow) -> pd.DataFrame:
    """One row a block, references included (``trial`` missing), with every derived figure of ``sweep.metrics``."""
    launches, trials_, arms = schema.launches, schema.trials, schema.arms
    query = (
        sa.select(
            launches.c.id.label("launch"),
            trials_.c.number.label("trial"),
            launches.c.role,
            launches.c.host,
            launches.c.sequence,
            launches.c.verdict.label("launch_verdict"),
            arms.c.config,
            *schema.blocks.c,
        )
        .join(launches, launches.c.id == schema.blocks.c.launch_id)
        .join(arms, arms.c.id == launches.c.arm_id)
        .outerjoin(trials_, trials_.c.id == launches.c.trial_id)
        .where(launches.c.study_id == study.id)
        .order_by(schema.blocks.c.id)
    )
    return _frame(store, query, drop=("launch_id",), rename={"id": "block"}, simulated=study.simulated)


def requests(store: Store, study: StudyRow) -> pd.DataFrame:
    """One row a request. Times are seconds since the block's start."""
    launches = schema.launches
    query = (
        sa.select(
            launches.c.id.label("launch"),
            schema.trials.c.number.label("trial"),
            launches.c.role,
            schema.blocks.c.concurrency,
            schema.blocks.c.round,
            *schema.requests.c,
        )
        .join(schema.blocks, schema.blocks.c.id == schema.requests.c.block_id)
        .join(launches, launches.c.id == schema.blocks.c.launch_id)
        .outerjoin(schema.trials, schema.trials.c.id == launches.c.trial_id)
        .where(launches.c.study_id == study.id)
        .order_by(schema.requests.c.id)
    )
    rename = {"id": "request", "block_id": "block", "idx": "index"}
    return _frame(store, query, drop=(), rename=rename, simulated=study.simulated)


def gains(store: Store, study: StudyRow) -> pd.DataFrame:
    """One row a gain: trial (missing: the engine default), metric, concurrency, category (missing: all), reference."""
    query = (
        sa.select(schema.trials.c.number.label("trial"), *schema.gains.c)
        .outerjoin(schema.trials, schema.trials.c.id == schema.gains.c.trial_id)
        .where(schema.gains.c.study_id == study.id)
        .order_by(schema.gains.c.id)
    )
    return _frame(store, query, drop=("id", "study_id", "trial_id"), rename={}, simulated=study.simulated)


FRAMES: Mapping[str, Callable[[Store, StudyRow], pd.DataFrame]] = {
    "trials": trials,
    "blocks": blocks,
    "requests": requests,
    "gains": gains,
}


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    args = config.get("args")
    return {**{name: config[name] for name in CONFIG_COLUMNS}, "args": None if args is None else json.dumps(args)}


def _frame(
    store: Store, query: sa.Select[Any], *, drop: Sequence[str], rename: Mapping[str, str], simulated: bool
) -> pd.DataFrame:
    """Columns in the query's order; a ``config`` column is spread out."""
    with store.database.read() as connection:
        rows = connection.execute(query).all()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(query.selected_columns)
    out: dict[str, pd.Series[Any]] = {"simulated": pd.Series([simulated] * len(rows), dtype="boolean")}
    for column, cells in zip(query.selected_columns, columns, strict=True):
        name = str(column.name)
        if name in drop:
            continue
        if name == "config":
            spread = [_config(cell) for cell in cells]
            for part, dtype in {**_CONFIG_DTYPES, "args": "str"}.items():
                out[part] = pd.Series([cell[part] for cell in spread], dtype=dtype)
        elif isinstance(column.type, sa.JSON):
            texts = [None if cell is None else json.dumps(cell, separators=(",", ":")) for cell in cells]
            out[name] = pd.Series(texts, dtype="str")
        else:
            dtype = next(dtype for kind, dtype in _DTYPES.items() if isinstance(column.type, kind))
            out[rename.get(name, name)] = pd.Series(list(cells), dtype=dtype)
    return pd.DataFrame(out)
