"""The nouns of specsweep: frozen values that cross processes, Ray and the database. Live things never do.

All on one page, longer than 300 lines on purpose: every other module speaks in these words.

Words follow the field: target model, draft model (drafter), num_steps, topk, num_draft_tokens, accept length.
Units are in the names: ``_s`` seconds, ``_mib`` mebibytes, ``_mhz``; times of day are Unix seconds (UTC).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Scalar = str | int | float | bool
FlagValue = Scalar | Sequence[Scalar] | None


# ---------------------------------------------------------------------------------------------- words


class Role(StrEnum):
    """What an arm is for. References are neither trials nor ranked."""

    BASELINE = "baseline"
    ENGINE_DEFAULT = "engine_default"
    CANDIDATE = "candidate"


class Stage(StrEnum):
    """Why a launch was made."""

    CALIBRATE = "calibrate"  # A/A launches of the baseline that teach the noise
    SEARCH = "search"  # measures a candidate for the search, or a reference that brackets it
    CONFIRM = "confirm"  # fresh launch, fresh prompts: the only source of a reported winner's gain


class Basis(StrEnum):
    """How candidate and baseline were paired."""

    RESIDENT = "resident"
    ALTERNATE = "alternate"
    BRACKETED = "bracketed"


class Comparison(StrEnum):
    """What may be said about a candidate against a reference."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    NOT_COMPARABLE = "not_comparable"


class Verdict(StrEnum):
    """How a trial ended. Only ``complete`` carries values."""

    COMPLETE = "complete"
    LAUNCH_OOM = "launch_oom"
    LAUNCH_CONFIG_ERROR = "launch_config_error"
    LAUNCH_TIMEOUT = "launch_timeout"
    HUNG = "hung"
    CRASHED = "crashed"
    DRAFTER_INEFFECTIVE = "drafter_ineffective"
    MEASUREMENT_INVALID = "measurement_invalid"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"

    @property
    def infeasible(self) -> bool:
        """True where the configuration itself is at fault: told to the sampler as a violated constraint."""
        return self in _INFEASIBLE

    @property
    def requeue(self) -> bool:
        """True where the surroundings are at fault: the same configuration is tried again."""
        return self in _REQUEUE


_INFEASIBLE = frozenset(
    {
        Verdict.LAUNCH_OOM,
        Verdict.LAUNCH_CONFIG_ERROR,
        Verdict.LAUNCH_TIMEOUT,
        Verdict.HUNG,
        Verdict.CRASHED,
        Verdict.DRAFTER_INEFFECTIVE,
    }
)
_REQUEUE = frozenset({Verdict.INFRA_ERROR, Verdict.CANCELLED, Verdict.MEASUREMENT_INVALID})


class Flag(StrEnum):
    """What is remarkable about a finished trial."""

    COERCED = "coerced"
    SCREENED_OUT = "screened_out"
    OUTPUT_DIFFERS = "output_differs"
    CUDA_GRAPH_OFF = "cuda_graph_off"
    RETRACTIONS = "retractions"
    CACHED_TOKENS = "cached_tokens"
    ABOVE_ACCEPT_LENGTH = "above_accept_length"
    LENGTHS_DIFFER = "lengths_differ"
    CLIENT_LIMITED = "client_limited"
    NOT_COMPARABLE = "not_comparable"
    THROTTLED = "throttled"
    SIMULATED = "simulated"
    FORCED_ACCEPT_LENGTH = "forced_accept_length"
    NEIGHBOURS = "neighbours"  # other slots of the same host had a server while this one was measured


FORCED_ACCEPT_LENGTH = "SGLANG_SIMULATE_ACC_LEN"  # environment that makes SGLang pretend an accept length


class Phase(StrEnum):
    """Where in its life a server was, in order."""

    START = "start"  # process started, imports
    CONFIG = "config"  # arguments resolved
    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    GRAPH_CAPTURE = "graph_capture"
    WARMUP = "warmup"
    READY = "ready"
    PROBE = "probe"
    BENCHMARK = "benchmark"
    STOP = "stop"


class Retry(StrEnum):
    """May the same configuration be launched again after this diagnosis?"""

    NEVER = "never"
    ONCE = "once"
    LATER = "later"  # the surroundings are at fault: again after a pause, on this host or another


# ---------------------------------------------------------------------------------------------- arms


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft model by the name used in tables, with the path the server loads."""

    name: str
    path: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ArmConfig:
    """One server configuration as asked for. ``algorithm=None`` is the baseline; all three of steps, topk and
    draft tokens ``None`` beside an algorithm is the engine's own default.

    ``draft_model`` is a :class:`Drafter` name. ``extra`` holds every other server flag that is an axis, as a sorted
    tuple of (flag without dashes, value) pairs so that the value stays hashable.
    """

    algorithm: str | None = None
    draft_model: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    cuda_graph: bool = True
    extra: tuple[tuple[str, Scalar], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Stable JSON form, the ``config`` object of every ``--json`` output."""
        out: dict[str, Any] = {
            "algorithm": self.algorithm,
            "draft_model": self.draft_model,
            "num_steps": self.num_steps,
            "topk": self.topk,
            "num_draft_tokens": self.num_draft_tokens,
            "cuda_graph": self.cuda_graph,
        }
        if self.extra:
            out["args"] = dict(self.extra)
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ArmConfig:
        """Inverse of :meth:`as_dict`."""
        extra = value.get("args") or {}
        return cls(
            algorithm=value.get("algorithm"),
            draft_model=value.get("draft_model"),
            num_steps=value.get("num_steps"),
            topk=value.get("topk"),
            num_draft_tokens=value.get("num_draft_tokens"),
            cuda_graph=bool(value.get("cuda_graph", True)),
            extra=tuple(sorted(extra.items())),
        )

    @property
    def key(self) -> str:
        """12 hex digits that identify this configuration."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def speculative(self) -> bool:
        return self.algorithm is not None

    @property
    def is_engine_default(self) -> bool:
        return self.speculative and self.num_steps is None and self.topk is None and self.num_draft_tokens is None

    @property
    def lossy(self) -> bool:
        """True where the arm may emit tokens that the target alone would not: SGLang's accept thresholds below 1
        (``--speculative-accept-threshold-single`` and ``-acc``). A class of its own, never ranked among the others."""
        return any(flag in LOSSY_BELOW_ONE and isinstance(v, int | float) and v < 1 for flag, v in self.extra)

    @property
    def cost(self) -> tuple[int, int]:
        """Order of the cheaper arm in a tie: fewer draft tokens, then fewer steps."""
        return (self.num_draft_tokens or 0, self.num_steps or 0)

    def label(self) -> str:
        """Short human name, e.g. ``EAGLE3 k25-custom 3/4/16`` (steps/topk/draft tokens), ``, no graphs`` where off."""
        if not self.speculative:
            text = "no speculation"
        elif self.is_engine_default:
            text = f"{self.algorithm} {self.draft_model or ''}".strip() + " (engine default)"
        else:
            numbers = "/".join("-" if n is None else str(n) for n in (self.num_steps, self.topk, self.num_draft_tokens))
            text = " ".join(part for part in (self.algorithm, self.draft_model, numbers) if part)
        for flag, value in self.extra:
            text += f" {flag}={value}"
        return text if self.cuda_graph else text + ", no graphs"


BASELINE = ArmConfig()
LOSSY_BELOW_ONE = frozenset({"speculative-accept-threshold-single", "speculative-accept-threshold-acc"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One key where the server runs something else than asked. ``rule`` names the known rewrite, None if unknown."""

    key: str
    asked: Any
    effective: Any
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """What the server says it runs, read back after ready.

    ``config`` is the arm as it really runs (results are keyed on it); ``pins`` the other arguments that matter for a
    comparison. ``status``: ``exact``, ``coerced`` (all differences are known rewrites) or ``mismatch``.
    """

    config: ArmConfig
    pins: Mapping[str, Any]
    differences: tuple[Difference, ...] = ()
    version: str | None = None

    @property
    def status(self) -> str:
        if not self.differences:
            return "exact"
        return "coerced" if all(d.rule for d in self.differences) else "mismatch"


# ---------------------------------------------------------------------------------------------- launches


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why something ended as it did, in words a tired engineer can act on.

    ``evidence`` is a line of the log (or of our own observation); ``advice`` says what to do; ``dominates`` names the
    arm fields whose equal-or-larger values share the fate (e.g. ``("num_draft_tokens",)`` for an out-of-memory).
    """

    verdict: Verdict
    phase: Phase
    reason: str  # short stable word, e.g. "gpu_oom", "port_in_use", "algorithm_mismatch"
    evidence: str
    advice: str
    retry: Retry = Retry.NEVER
    dominates: tuple[str, ...] = ()
    log_path: str | None = None
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to start, without saying where. Engines make it, launchers run it.

    In ``argv`` and ``env`` the tokens ``@PORT@`` (the free port found on the host), ``@DIR@`` (the launch's own
    directory on the host) and ``@PYTHON@`` (the host's python) are replaced by the launcher. ``files`` are written
    into that directory with mode 0600 before the start; secrets travel only there or in ``secret_env``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    gpus: tuple[int, ...] = ()
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A running server. ``base_url`` is reachable from where the benchmark client runs."""

    launch_id: str
    host: str
    base_url: str
    port: int
    pid: int
    pgid: int
    marker: str
    run_dir: str
    log_path: str
    epoch: int
    started_at: float
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi shows it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    memory_used_mib: int


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process in the GPU's compute list."""

    gpu_uuid: str
    pid: int
    memory_mib: int
    user: str | None = None
    command: str | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What was found on a host before anything ran there."""

    name: str
    kind: str  # ssh | local
    hostname: str
    user: str
    machine_id: str
    boot_id: str
    python: str
    python_version: str
    engine_version: str | None
    gpus: tuple[Gpu, ...]
    gpu_processes: tuple[GpuProcess, ...]
    driver_version: str | None
    disk_free_mib: int
    clock_offset_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a server was ended and what was verified afterwards. ``clean``: no process left, and the GPU memory back."""

    clean: bool
    exit_code: int | None
    took_s: float
    leftover_pids: tuple[int, ...] = ()
    memory_left_mib: int = 0
    note: str = ""


# ---------------------------------------------------------------------------------------------- measurement


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. ``messages`` is an OpenAI-style chat; ``id`` is unique within its set."""

    id: str
    category: str
    messages: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One pass of a fixed prompt list at one concurrency on one launch."""

    stage: Stage
    concurrency: int
    round: int
    prompts: tuple[Prompt, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    endpoint: str = "generate"  # generate | chat
    stream_interval: int | None = None
    request_rate: float | None = None  # requests/s, Poisson; None is the closed loop
    timeout_s: float = 600.0  # of one request
    stall_s: float | None = None  # no chunk on any stream for so long ends the block; None: only timeout_s does
    client_processes: int | None = None  # None: as many as warm-up asks for
    chat_template_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompts_hash(self) -> str:
        """12 hex digits over the ordered prompt list: pairs are only made between equal ones."""
        text = json.dumps([[p.id, [dict(m) for m in p.messages]] for p in self.prompts])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the block's start; a failed one has ``error`` and no ``output_tokens``.

    ``verify_steps`` and ``correct_drafts`` are SGLang's ``spec_verify_ct`` and ``spec_num_correct_drafts``;
    ``accept_histogram[j]`` counts verify steps that accepted j drafts.
    """

    index: int
    prompt_id: str
    category: str
    sent_s: float
    ttft_s: float | None
    end_s: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    token_source: str | None = None  # meta | usage | tokenized
    verify_steps: int | None = None
    correct_drafts: int | None = None
    accept_histogram: tuple[int, ...] | None = None
    finish_reason: str | None = None
    retractions: int | None = None
    chunks: int = 0
    error: str | None = None
    output_ids: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.output_tokens)

    @property
    def speed(self) -> float | None:
        """Output tokens per second from send to last chunk; None for a failed request."""
        if not self.ok or self.output_tokens is None or self.end_s <= self.sent_s:
            return None
        return self.output_tokens / (self.end_s - self.sent_s)


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the client itself cost. ``lag_p99_s`` is how late its event loop woke; ``cpu_share`` of one core.

    ``prompt_format`` says how prompts were put to the server: ``chat_template`` (token ids by the server's template),
    ``plain_text`` (role markers, the server has no tokenizer endpoint) or ``chat_endpoint``.
    Where a block had several client ``processes``, lags and share are those of the worst, the round trip is their
    median, and ``by_process`` holds each one's ``requests``, ``lag_p50_s``, ``lag_p99_s`` and ``cpu_share``.
    """

    lag_p50_s: float
    lag_p99_s: float
    cpu_share: float
    chunks: int
    rtt_s: float | None = None
    path_capacity_chunks_per_s: float | None = None
    prompt_format: str | None = None
    processes: int = 1
    by_process: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """Medians over one block, per GPU. ``throttle_reasons`` are nvidia-smi's active reasons other than idle."""

    gpu_uuid: str
    sm_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockResult:
    """A measured block: the raw rows and what surrounded them. Derived figures live in ``sweep.metrics``."""

    stage: Stage
    concurrency: int
    round: int
    prompts_hash: str
    started_at: float
    elapsed_s: float  # first send to last chunk
    requests: tuple[RequestRecord, ...]
    client: ClientHealth
    gpus: tuple[GpuTelemetry, ...] = ()
    log_flags: Mapping[str, str] = field(default_factory=dict)  # flag -> evidence line, e.g. cuda_graph_off
    invalid: str | None = None  # reason why this block may not be used
    stalled: bool = False  # it was ended because no token came any more (BlockSpec.stall_s)

    @property
    def output_tokens(self) -> int:
        return sum(r.output_tokens or 0 for r in self.requests if r.ok)


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch with its finished blocks, as the analysis reads it back from the rows.

    ``sequence`` orders the launches of one host; ``pair`` joins launches that were alternated with each other.
    """

    launch_id: int
    arm_key: str
    role: Role
    trial: int | None
    host: str
    stage: Stage
    sequence: int
    started_at: float
    blocks: tuple[BlockResult, ...]
    pair: int | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """Candidate against a reference: ``estimate`` = ratio − 1 as a fraction, positive is better, 95 % interval."""

    estimate: float
    low: float
    high: float
    basis: Basis
    stage: Stage

    def as_dict(self) -> dict[str, Any]:
        """The ``gain`` object of every ``--json`` output."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tie:
    """Why a gain whose own 95 % interval excludes 0 is called a tie.

    ``reason`` is ``correction``: ``low`` and ``high`` are the interval that decided, widened by Holm's correction
    because ``comparisons`` arms (times stages) were judged together; or ``tie_band``: ``low`` and ``high`` are the band
    of gains (fractions) that count as equal, whatever is shown.
    """

    reason: str
    low: float
    high: float
    comparisons: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The ``tie_because`` object of ``--json`` outputs."""
        return asdict(self)


GainKey = tuple[int | None, str, int, str | None, str]  # trial, metric, concurrency, category, reference


@dataclass(frozen=True, slots=True)
class ArmGain:
    """One arm's gain in one metric at one concurrency over one reference: a line of the analysis, as it is stored.

    ``trial`` is the trial's number, None for the engine default; ``category`` None is over all; ``reference`` is
    ``baseline`` or ``engine_default``. ``gain`` None where nothing may be said; it is the confirm stage's where there
    is one, with what the search had said kept in ``search_gain``. ``log_se`` is the standard error of log(1 + gain)
    with ``df`` degrees of freedom, ``p_adjusted`` its two-sided p after Holm's correction. ``value`` is the
    drift-corrected figure in the metric's unit with its standard error; ``accept_length`` and ``break_even`` (where the
    arm would equal the reference) are tokens per step. ``tie``: why it is called a tie, where its interval says
    otherwise.
    """

    trial: int | None
    metric: str
    concurrency: int
    category: str | None
    reference: str
    comparison: Comparison
    gain: Gain | None = None
    search_gain: Gain | None = None
    log_se: float | None = None
    df: float | None = None
    p_adjusted: float | None = None
    n_pairs: int = 0
    n_launches: int = 0
    value: float | None = None
    value_se: float | None = None
    accept_length: float | None = None
    break_even: float | None = None
    tie: Tie | None = None

    @property
    def key(self) -> GainKey:
        """What tells it from the study's other gains."""
        return self.trial, self.metric, self.concurrency, self.category, self.reference


@dataclass(frozen=True, slots=True)
class Objective:
    """What is optimised: a metric of ``sweep.metrics`` at one concurrency. ``key`` is ``metric@concurrency``."""

    metric: str
    concurrency: int
    maximize: bool

    @property
    def key(self) -> str:
        return f"{self.metric}@{self.concurrency}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """``metric`` at ``concurrency`` (None: at every measured one) must be below or above ``limit`` (metric's unit)."""

    metric: str
    concurrency: int | None
    below: bool
    limit: float
    text: str
