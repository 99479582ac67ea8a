"""The tables. Times are Unix seconds (UTC), durations seconds, gains fractions. JSON columns are never filtered on.

``docs/reference/database.md`` is made of this. A change needs a new version and a step in ``storage.migrations``.
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
    return Column("id", Integer, primary_key=True, doc="of the row")


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
    return Column(name[table], Integer, key, nullable=nullable, index=index, doc=f"the row of `{table}` it belongs to")


meta = Table(
    "specsweep_meta",
    metadata,
    Column("key", Text, primary_key=True, doc="schema_version"),
    Column("value", Text, nullable=False, doc="its value"),
    info={"doc": "One row per key. Its name is ours alone: it is how a foreign database is told from one of ours."},
)

studies = Table(
    "studies",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True, doc="unique in the database"),
    Column("created_at", Double, nullable=False, doc="when it was started"),
    Column("finished_at", Double, doc="when it ended"),
    Column("state", Text, nullable=False, doc="running, stopped or finished"),
    Column("engine", Text, nullable=False, doc="sglang or simulated"),
    Column("simulated", Boolean, nullable=False, doc="no GPU is measured"),
    Column("profile", Text, doc="of the simulation"),
    Column("spec", Json, nullable=False, doc="the resolved YAML; `${NAME}` stays a reference"),
    Column("yaml", Text, nullable=False, doc="the file as it was given"),
    Column("space_hash", Text, nullable=False, doc="of the configurations that can be served"),
    Column("seed", Integer, nullable=False, doc="of sampler and prompts"),
    Column("tool_version", Text, nullable=False, doc="of specsweep"),
    Column("objectives", Json, nullable=False, doc="[{metric, concurrency, maximize}]"),
    Column("constraints", Json, nullable=False, doc="[{metric, concurrency, below, limit, text}]"),
    Column("controller", Json, doc="who runs it: machine, boot, pid, start time; null: nobody"),
    Column("heartbeat_at", Double, doc="when the controller was last alive"),
    Column("stop_requested", Boolean, nullable=False, default=False, doc="`sweep stop` was called"),
    Column("notes", Json, nullable=False, doc="pins that were added and why, differences of a resume"),
    info={"doc": "A study: what was asked for, and who runs it."},
)

hosts = Table(
    "hosts",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("name", Text, nullable=False, doc="as in the YAML"),
    Column("kind", Text, nullable=False, doc="ssh or local"),
    Column("state", Text, nullable=False, doc="idle, busy or set_aside"),
    Column("note", Text, doc="why it was set aside"),
    Column("facts", Json, doc="what was found there: GPUs, driver, engine version, clock"),
    UniqueConstraint("study_id", "name"),
    info={"doc": "A host of a study."},
)

arms = Table(
    "arms",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("key", Text, nullable=False, doc="hash of the configuration as asked"),
    Column("role", Text, nullable=False, doc="candidate, baseline or engine_default"),
    Column("config", Json, nullable=False, doc="algorithm, draft_model, steps, topk, draft tokens, graphs, args"),
    UniqueConstraint("study_id", "key", "role"),
    info={"doc": "A server configuration in a role."},
)

trials = Table(
    "trials",
    metadata,
    _id(),
    _owner("studies", index=False),
    Column("number", Integer, nullable=False, doc="from 0 within its study"),
    _owner("arms"),
    Column("state", Text, nullable=False, doc="queued, running or finished"),
    Column("verdict", Text, doc="how it ended"),
    Column("phase", Text, doc="in which phase it failed"),
    Column("reason", Text, doc="what happened"),
    Column("evidence", Text, doc="the log line or figures that show it"),
    Column("advice", Text, doc="what to do"),
    Column("retry", Text, doc="whether and where it is tried again"),
    Column("dominates", Json, doc="fields whose larger values fail likewise"),
    Column("flags", Json, nullable=False, doc="{flag: evidence}"),
    Column("origin", Text, nullable=False, doc="known_good, seed, sampler or enumerated"),
    Column("why", Text, nullable=False, doc="why it was proposed"),
    Column("attempt", Integer, nullable=False, doc="from 1"),
    Column("host", Text, doc="where it ran"),
    Column("effective", Json, doc="configuration as the server reported it"),
    Column("effective_key", Text, doc="hash of `effective`"),
    Column("params", Json, nullable=False, doc="as the sampler knows them"),
    Column("objective_values", Json, doc="{objective: value}, drift removed"),
    Column("objective_stderr", Json, doc="{objective: standard error}"),
    Column("constraint_values", Json, doc="{constraint: violation}, kept where <= 0"),
    Column("created_at", Double, nullable=False, doc="when it was proposed"),
    Column("started_at", Double, doc="first launch"),
    Column("finished_at", Double, doc="verdict"),
    Column("log_path", Text, doc="of its newest launch, on the host"),
    UniqueConstraint("study_id", "number"),
    info={"doc": "A candidate that the search proposed."},
)

launches = Table(
    "launches",
    metadata,
    _id(),
    _owner("studies"),
    _owner("trials", nullable=True),
    _owner("arms"),
    Column("host", Text, nullable=False, doc="where"),
    Column("stage", Text, nullable=False, doc="calibrate, search or confirm"),
    Column("role", Text, nullable=False, doc="candidate, baseline or engine_default"),
    Column("sequence", Integer, nullable=False, doc="order of launches on the host"),
    Column("pair", Integer, doc="launches compared with one another share it"),
    Column("state", Text, nullable=False, doc="begun, started, ready or ended"),
    Column("verdict", Text, doc="how it ended"),
    Column("phase", Text, doc="in which phase it failed"),
    Column("reason", Text, doc="what happened"),
    Column("evidence", Text, doc="the log line"),
    Column("advice", Text, doc="what to do"),
    Column("argv", Json, doc="the command, secrets removed"),
    Column("env_keys", Json, doc="names of variables set"),
    Column("run_dir", Text, doc="on the host"),
    Column("log_path", Text, doc="on the host"),
    Column("pid", Integer, doc="of the server"),
    Column("port", Integer, doc="on the host's loopback"),
    Column("marker", Text, doc="in the environment of every process of the launch"),
    Column("begun_at", Double, nullable=False, doc="row written"),
    Column("started_at", Double, doc="process started"),
    Column("ready_at", Double, doc="answers requests"),
    Column("ended_at", Double, doc="verified that nothing is left"),
    Column("phases", Json, nullable=False, doc="{phase: seconds}"),
    Column("effective", Json, doc="configuration as the server reported it"),
    Column("server_info", Json, doc="its whole answer, secrets removed"),
    Column("probe", Json, doc="{accept_length, verify_steps, histogram}"),
    Column("stop_report", Json, doc="how it was ended, what was left"),
    Column("log_tail", Json, doc="last lines of the log"),
    info={"doc": "One server process. The row is written before anything is started."},
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
    Column("stage", Text, nullable=False, doc="search or confirm"),
    Column("concurrency", Integer, nullable=False, doc="requests in flight"),
    Column("round", Integer, nullable=False, doc="from 0; the same round of two launches is paired"),
    Column("prompts_hash", Text, nullable=False, doc="which prompts in which order"),
    Column("started_at", Double, nullable=False, doc="first send"),
    Column("elapsed_s", Double, nullable=False, doc="first send to last chunk"),
    Column("n_requests", Integer, nullable=False, doc="sent"),
    Column("n_ok", Integer, nullable=False, doc="successful"),
    Column("output_tokens", Integer, nullable=False, doc="as the server counts them"),
    *(Column(name, Double) for name in BLOCK_FIGURES),
    Column("accept_histogram", Json, doc="entry j: verify steps that accepted j drafts"),
    Column("client", Json, nullable=False, doc="lateness of the event loop, processes, path capacity, round trip"),
    Column("gpus", Json, nullable=False, doc="clock, temperature, power, throttle reasons by GPU"),
    Column("log_flags", Json, nullable=False, doc="what the log said meanwhile: retractions, graphs off, ..."),
    Column("invalid", Text, doc="why it may not be used; null: it may"),
    info={"doc": "One pass of a prompt list at one concurrency on one launch. Every metric has a column, in its unit."},
)

requests = Table(
    "requests",
    metadata,
    _id(),
    _owner("blocks"),
    Column("idx", Integer, nullable=False, doc="order in the block"),
    Column("prompt_id", Text, nullable=False, doc="of the prompt set"),
    Column("category", Text, nullable=False, doc="of the prompt"),
    Column("sent_s", Double, nullable=False, doc="since the block's start"),
    Column("ttft_s", Double, doc="send to first chunk"),
    Column("end_s", Double, nullable=False, doc="since the block's start"),
    Column("prompt_tokens", Integer, doc="as the server counts them"),
    Column("cached_tokens", Integer, doc="of the prompt, found in the cache"),
    Column("output_tokens", Integer, doc="as the server counts them"),
    Column("token_source", Text, doc="who counted them"),
    Column("verify_steps", Integer, doc="of the speculation"),
    Column("correct_drafts", Integer, doc="accepted in all steps"),
    Column("accept_histogram", Json, doc="entry j: verify steps that accepted j drafts"),
    Column("finish_reason", Text, doc="stop or length"),
    Column("retractions", Integer, doc="times it was thrown out and started again"),
    Column("chunks", Integer, nullable=False, doc="streamed pieces"),
    Column("error", Text, doc="why it failed; null: it did not"),
    Column("output_hash", Text, doc="of the text"),
    info={"doc": "One request. Deleted by `sweep db trim`."},
)

gains = Table(
    "gains",
    metadata,
    _id(),
    _owner("studies", index=False),
    _owner("trials", nullable=True),  # NULL: the engine default's own gain
    Column("metric", Text, nullable=False, doc="its figure"),
    Column("concurrency", Integer, nullable=False, doc="load"),
    Column("category", Text, doc="null: over all"),
    Column("reference", Text, nullable=False, doc="baseline or engine_default"),
    Column("comparison", Text, nullable=False, doc="faster, slower, tie or not_comparable"),
    Column("estimate", Double, doc="ratio - 1, positive is better; null: nothing may be said"),
    Column("low", Double, doc="95 % interval"),
    Column("high", Double, doc="95 % interval"),
    Column("basis", Text, doc="resident, alternate or bracketed"),
    Column("stage", Text, doc="search or confirm"),
    Column("search_gain", Json, doc="what the search had said, beside a confirmed gain"),
    Column("log_se", Double, doc="standard error of log(1 + gain)"),
    Column("df", Double, doc="its degrees of freedom"),
    Column("p_adjusted", Double, doc="corrected for many comparisons"),
    Column("n_pairs", Integer, nullable=False, doc="prompts or rounds compared"),
    Column("n_launches", Integer, nullable=False, doc="of the arm"),
    Column("value", Double, doc="the arm's own figure, drift removed"),
    Column("value_se", Double, doc="its standard error"),
    Column("accept_length", Double, doc="tokens per verify step"),
    Column("break_even", Double, doc="accept length at which the arm would equal the reference"),
    Index(None, "study_id", "metric", "concurrency", "reference", "category"),
    info={"doc": "What the analysis says of an arm against a reference; made anew from blocks and requests."},
)

analyses = Table(
    "analyses",
    metadata,
    Column("study_id", Integer, ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True, doc="the study"),
    Column("made_at", Double, nullable=False, doc="when"),
    Column("summary", Json, nullable=False, doc="what `best` and `pareto` read"),
    Column("result", Json, nullable=False, doc="all of it: noise, drift, crossover, findings"),
    info={"doc": "The newest analysis of a study."},
)

events = Table(
    "events",
    metadata,
    _id(),
    _owner("studies"),
    Column("at", Double, nullable=False, doc="when"),
    Column("host", Text, doc="where; null: the study"),
    Column("kind", Text, nullable=False, doc="what"),
    Column("detail", Json, nullable=False, doc="its particulars"),
    info={"doc": "What happened besides, in order."},
)
