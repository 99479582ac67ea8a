"""The tables. Times are Unix seconds (UTC), durations seconds, gains fractions. JSON columns are never filtered on.

A change here needs a new version and a step in ``storage.migrations``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

VERSION = 1

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Json = JSON(none_as_null=True)


def _id() -> Column[Any]:
    return Column("id", Integer, primary_key=True)


def _owner(table: str, *, nullable: bool = False, index: bool = True) -> Column[Any]:
    """A reference that takes this row along when its owner is deleted."""
    name = {
        "studies": "study_id",
        "arms": "arm_id",
        "trials": "trial_id",
        "launches": "launch_id",
        "blocks": "block_id",
    }
    key = ForeignKey(f"{table}.id", ondelete="CASCADE")
    return Column(name[table], Integer, key, nullable=nullable, index=index)


# One row per key; holds schema_version. Its name is ours alone: it is how a foreign database is told from one of ours.
meta = Table("specsweep_meta", metadata, Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

studies = Table(
    "studies",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("state", Text, nullable=False),  # running | stopped | finished
    Column("engine", Text, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("profile", Text),
    Column("spec", Json, nullable=False),  # the resolved study specification, ${VAR} references unresolved
    Column("yaml", Text, nullable=False),
    Column("space_hash", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("objectives", Json, nullable=False),  # [{metric, concurrency, maximize}]
    Column("constraints", Json, nullable=False),  # [{metric, concurrency, below, limit, text}]
    Column("controller", Json),  # who runs it: machine, boot, pid, start time
    Column("heartbeat_at", Double),  # when the controller was last alive
    Column("stop_requested", Boolean, nullable=False, default=False),
    Column("notes", Json, nullable=False),  # pins added by us and why, resume differences, ...
)

hosts = Table(
    "hosts",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),  # idle | busy | set_aside
    Column("note", Text),
    Column("facts", Json),
    UniqueConstraint("study_id", "name"),
)

arms = Table(
    "arms",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("key", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("config", Json, nullable=False),
    UniqueConstraint("study_id", "key", "role"),
)

trials = Table(
    "trials",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("number", Integer, nullable=False),
    _owner("arms"),
    Column("state", Text, nullable=False),  # queued | running | finished
    Column("verdict", Text),
    Column("phase", Text),
    Column("reason", Text),
    Column("evidence", Text),
    Column("advice", Text),
    Column("retry", Text),
    Column("dominates", Json),
    Column("flags", Json, nullable=False),  # {flag: evidence}
    Column("origin", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("host", Text),
    Column("effective", Json),
    Column("effective_key", Text),
    Column("params", Json, nullable=False),
    Column("objective_values", Json),  # {objective key: value}
    Column("objective_stderr", Json),
    Column("constraint_values", Json),  # {constraint text: violation, feasible when <= 0}
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("log_path", Text),
    UniqueConstraint("study_id", "number"),
)

launches = Table(
    "launches",
    metadata,
    _id(),
    _owner("studies"),
    _owner("trials", nullable=True),
    _owner("arms"),
    Column("host", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("pair", Integer),
    Column("state", Text, nullable=False),  # begun | started | ready | ended
    Column("verdict", Text),
    Column("phase", Text),
    Column("reason", Text),
    Column("evidence", Text),
    Column("advice", Text),
    Column("argv", Json),  # redacted
    Column("env_keys", Json),
    Column("run_dir", Text),
    Column("log_path", Text),
    Column("pid", Integer),
    Column("port", Integer),
    Column("marker", Text),
    Column("begun_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ready_at", Double),
    Column("ended_at", Double),
    Column("phases", Json, nullable=False),  # {phase: seconds it took}
    Column("effective", Json),
    Column("server_info", Json),  # redacted
    Column("probe", Json),  # {accept_length, verify_steps, histogram}
    Column("stop_report", Json),
    Column("log_tail", Json),  # [line]
)

# Every metric of ``sweep.metrics`` in its unit, spelt out here because a new one is a new column and so a new version.
BLOCK_FIGURES = (
    "output_throughput",
    "request_throughput",
    "goodput",
    *(f"{stem}_{statistic}" for stem in ("ttft", "tpot", "e2e") for statistic in ("mean", "p50", "p90", "p95", "p99")),
    "per_user_speed_p50",
    "per_user_speed_p5",
    "accept_length",
    "accept_length_request_mean",
    "accept_rate",
    "success_ratio",
    "achieved_concurrency",
)

blocks = Table(
    "blocks",
    metadata,
    _id(),
    _owner("launches"),
    Column("stage", Text, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("prompts_hash", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("elapsed_s", Double, nullable=False),
    Column("n_requests", Integer, nullable=False),
    Column("n_ok", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    *(Column(name, Double) for name in BLOCK_FIGURES),
    Column("accept_histogram", Json),
    Column("client", Json, nullable=False),
    Column("gpus", Json, nullable=False),
    Column("log_flags", Json, nullable=False),
    Column("invalid", Text),
)

requests = Table(
    "requests",
    metadata,
    _id(),
    _owner("blocks"),
    Column("idx", Integer, nullable=False),
    Column("prompt_id", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("sent_s", Double, nullable=False),  # since the block's start
    Column("ttft_s", Double),
    Column("end_s", Double, nullable=False),  # since the block's start
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("output_tokens", Integer),
    Column("token_source", Text),
    Column("verify_steps", Integer),
    Column("correct_drafts", Integer),
    Column("accept_histogram", Json),
    Column("finish_reason", Text),
    Column("retractions", Integer),
    Column("chunks", Integer, nullable=False),
    Column("error", Text),
    Column("output_hash", Text),
)

gains = Table(
    "gains",
    metadata,
    _id(),
    _owner("studies", index=False),
    _owner("trials", nullable=True),  # NULL: the engine default's own gain
    Column("metric", Text, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("category", Text),  # NULL: over all categories
    Column("reference", Text, nullable=False),  # baseline | engine_default
    Column("comparison", Text, nullable=False),
    Column("estimate", Double),  # NULL with low, high, basis and stage where nothing may be said
    Column("low", Double),
    Column("high", Double),
    Column("basis", Text),
    Column("stage", Text),
    Column("search_gain", Json),  # what the search had said, where the gain is the confirm stage's
    Column("log_se", Double),
    Column("df", Double),
    Column("p_adjusted", Double),
    Column("n_pairs", Integer, nullable=False),
    Column("n_launches", Integer, nullable=False),
    Column("value", Double),  # the arm's own figure in the metric's unit, drift removed
    Column("value_se", Double),
    Column("accept_length", Double),
    Column("break_even", Double),
    Index(None, "study_id", "metric", "concurrency", "reference", "category"),
)

analyses = Table(
    "analyses",
    metadata,
    Column("study_id", Integer, ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True),
    Column("made_at", Double, nullable=False),
    Column("summary", Json, nullable=False),  # the part of the result that `best` and `pareto` read
    Column("result", Json, nullable=False),
)

events = Table(
    "events",
    metadata,
    _id(),
    _owner("studies"),
    Column("at", Double, nullable=False),
    Column("host", Text),
    Column("kind", Text, nullable=False),
    Column("detail", Json, nullable=False),
)
