"""The search-space YAML as frozen, strict values. An unknown key, a wrong type or a value out of range never passes.

Values are made by ``sweep.config.load_space`` (with file and line in every error) or by ``StudySpec.parse`` from what
``StudySpec.dump`` stored with the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from sweep import metrics
from sweep import model as nouns
from sweep.config import fields
from sweep.config.fields import Name, Part, Positive, Text
from sweep.config.places import Host, RayOptions, Simulate
from sweep.metrics import parse_constraint, parse_objective

Scalar = str | int | float | bool
FlagValue = Scalar | tuple[Scalar, ...] | None
Count = Annotated[int, Field(ge=1)]
Axis = Annotated[tuple[Annotated[int, Field(ge=1, le=fields.MAX_AXIS)] | None, ...], BeforeValidator(fields.axis)]


class Model(Part):
    """The target model: a path on the hosts (or a hub name), the same on every host."""

    path: Text
    revision: str | None = None
    trust_remote_code: bool = False


class Server(Part):
    """Pins: arguments and environment of every arm, the references included."""

    args: Annotated[dict[str, FlagValue], BeforeValidator(fields.flags)] = Field(default_factory=dict)
    env: Annotated[dict[str, str], BeforeValidator(fields.environment)] = Field(default_factory=dict)


class DraftModel(Part):
    """A drafter: the name used in tables and the path the server loads."""

    name: Name
    path: Text
    revision: str | None = None

    @property
    def noun(self) -> nouns.Drafter:
        return nouns.Drafter(self.name, self.path, self.revision)


class Space(Part):
    """The axes. A number axis may hold null: the flag is left out. ``args``: any other server flag as an axis."""

    algorithm: Annotated[tuple[Text, ...], BeforeValidator(fields.axis)]
    draft_model: Annotated[tuple[DraftModel, ...], BeforeValidator(fields.drafters)] = ()
    num_steps: Axis = (None,)
    topk: Axis = (None,)
    num_draft_tokens: Axis = (None,)
    cuda_graph: Annotated[tuple[bool, ...], BeforeValidator(fields.axis)] = (True,)
    args: Annotated[
        dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(fields.axis)]], BeforeValidator(fields.flags)
    ] = Field(default_factory=dict)

    @field_validator("draft_model")
    @classmethod
    def _names_differ(cls, value: tuple[DraftModel, ...]) -> tuple[DraftModel, ...]:
        names = [item.name for item in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two draft models are named {name!r}; give each a name of its own")
        return value


class KnownGood(Part):
    """A configuration tried first. What is left out takes the axis's only value, or is left to the rules."""

    algorithm: Text
    draft_model: str | None = None
    num_steps: Count | None = None
    topk: Count | None = None
    num_draft_tokens: Count | None = None
    cuda_graph: bool | None = None
    args: Annotated[dict[str, Scalar], BeforeValidator(fields.flags)] = Field(default_factory=dict)


class Slo(Part):
    """What a request must keep to count as good (goodput); milliseconds."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None

    @property
    def noun(self) -> metrics.Slo:
        return metrics.Slo(self.ttft_ms, self.tpot_ms, self.e2e_ms)


class Workload(Part):
    """What is asked of every server."""

    prompts: Text = "builtin"  # or the path of a file
    format: Text = "auto"  # of the file: jsonl, sharegpt, mtbench
    categories: Annotated[tuple[Text, ...], BeforeValidator(fields.one_or_many)] | None = None  # None: all
    per_category: Count = 4
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = 256
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(max_length=32),
        BeforeValidator(fields.axis),
    ] = (1,)
    repeats: Annotated[int, Field(ge=1, le=100)] = 2
    requests_per_level: Count | None = None  # requests of a block above concurrency 1; None: chosen by the level
    endpoint: Literal["generate", "chat"] = "generate"
    ignore_eos: bool = False
    stream_interval: Count | None = None  # tokens per streamed chunk; None: the server's own
    warmup_requests: Annotated[int, Field(ge=0, le=1000)] = 3
    seed: int | None = None  # None: the study's
    request_rate: Positive | None = None  # requests/s, Poisson arrivals; None: closed loop
    timeout_s: Positive = 600.0
    slo: Slo | None = None
    chat_template_args: dict[str, Any] = Field(default_factory=dict)


class ObjectiveSpec(Part):
    """What is optimised. The direction follows from the metric; where it is given it must agree."""

    metric: Text
    concurrency: Count | None = None  # None: the workload's first level
    direction: Literal["maximize", "minimize"] | None = None


class Budget(Part):
    """When to end; whichever comes first. Times are for the whole study, confirm stage included."""

    trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    hours: Positive | None = None
    until: Annotated[str, BeforeValidator(fields.clock)] | None = None  # HH:MM, local time


class Measurement(Part):
    """How often the baseline is measured, how the winner is confirmed, and how long to wait."""

    baseline_every: Count = 4  # trials between two baseline launches of a host
    baseline_minutes: Positive = 60.0  # at most so long between two baseline launches of a host
    calibrate_launches: Annotated[int, Field(ge=0, le=20)] = 2  # baseline launches at the start (A/A), per study
    engine_default: bool = True  # also measure SGLang's automatic choice
    confirm_top: Annotated[int, Field(ge=0, le=20)] = 2
    confirm_launches: Annotated[int, Field(ge=1, le=20)] = 2  # of each confirmed arm and of the baseline beside it
    pairing: Literal["auto", "bracketed", "alternate", "resident"] = "auto"  # how candidates meet the baseline
    wanted_gain: Annotated[float, Field(gt=0, lt=1)] = 0.03  # the gain for which launches needed are reckoned
    launch_timeout_s: Positive = 1800.0
    stall_timeout_s: Positive = 300.0  # seconds without a token or a log line that count as hung
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05  # brackets further apart than this are not comparable
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 2  # of one configuration when the surroundings fail
    expected_launch_s: Positive = 90.0  # for the plan, until launches have been seen


class StudySpec(Part):
    """Everything a study is: what to serve, what to try, what to ask of it, where, and for how long."""

    FORMAT: ClassVar[int] = 1

    name: Name
    engine: Name = "sglang"
    engine_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+([.+-]?[A-Za-z0-9.]+)?$")] | None = None
    model: Model
    server: Server = Field(default_factory=Server)
    space: Space
    known_good: tuple[KnownGood, ...] = ()
    workload: Workload = Field(default_factory=Workload)
    objectives: Annotated[tuple[ObjectiveSpec, ...], BeforeValidator(fields.objectives)] = ()
    constraints: Annotated[tuple[str, ...], BeforeValidator(fields.one_or_many)] = ()
    budget: Budget = Field(default_factory=Budget)
    sampler: Literal["tpe", "random", "grid", "nsga2", "gp", "model"] = "tpe"
    measurement: Measurement = Field(default_factory=Measurement)
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)] = (Host(name="local", kind="local"),)
    simulate: Simulate | None = None
    ray: RayOptions = Field(default_factory=RayOptions)
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    simulated_by_flag: bool = False  # set by --simulate, stored so that resume needs no flag; never in a YAML
    references_only: bool = False  # set by `sweep calibrate`, likewise: the baseline against itself, no trials

    @property
    def simulated(self) -> bool:
        """True where no real server is measured; every row and every output says so."""
        return self.engine == "simulated"

    @property
    def drafters(self) -> dict[str, nouns.Drafter]:
        """Draft models by name."""
        return {item.name: item.noun for item in self.space.draft_model}

    @property
    def gpus_per_arm(self) -> int:
        """GPUs one server takes: tp-size times pp-size of the pins (an axis over either: its largest value)."""
        product = 1
        for flag in ("tp-size", "pp-size"):
            values = self.space.args.get(flag) or (self.server.args.get(flag, 1),)
            product *= max([v for v in values if isinstance(v, int) and not isinstance(v, bool)], default=1)
        return product

    @property
    def missing_for_resident(self) -> str | None:
        """Why two servers may not live on the same GPUs beside each other; None where the pins allow it.

        The size of the KV pool must be ours (else the second server takes what is left), and an idle scheduler must
        not keep a CPU and the GPU busy.
        """
        tokens, sleeps = self.server.args.get("max-total-tokens"), self.server.args.get("sleep-on-idle")
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            return "max-total-tokens is not pinned to a number"
        if sleeps is not True:
            return "sleep-on-idle is not pinned to true"
        return None

    def gpus_of(self, host: Host) -> tuple[int, ...]:
        """Indices of the GPUs this study may use on a host; as many as an arm takes where the YAML leaves them out."""
        return tuple(range(self.gpus_per_arm)) if host.gpus is None else host.gpus

    @property
    def smallest_host(self) -> int:
        """GPUs of the host with the fewest: any host may get any arm."""
        return min(len(self.gpus_of(host)) for host in self.hosts)

    @property
    def goals(self) -> tuple[nouns.Objective, ...]:
        """The objectives as nouns; output throughput at the first concurrency where none is given."""
        first = self.workload.concurrency[0]
        wanted = self.objectives or (ObjectiveSpec(metric="output_throughput"),)
        return tuple(
            parse_objective(item.metric, concurrency=item.concurrency or first, direction=item.direction)
            for item in wanted
        )

    @property
    def limits(self) -> tuple[nouns.Constraint, ...]:
        """The constraints as nouns."""
        return tuple(parse_constraint(text) for text in self.constraints)

    @property
    def known_good_arms(self) -> tuple[nouns.ArmConfig, ...]:
        """``known_good`` as arms, as asked, in order."""
        return tuple(self.known_arm(known) for known in self.known_good)

    def known_arm(self, known: KnownGood) -> nouns.ArmConfig:
        """A ``known_good`` entry as an arm; what it leaves out takes the axis's value where there is only one."""

        def only(values: tuple[Any, ...]) -> Any:
            return values[0] if len(values) == 1 else None

        extra = {flag: values[0] for flag, values in self.space.args.items() if len(values) == 1} | known.args
        names = tuple(item.name for item in self.space.draft_model)
        return nouns.ArmConfig(
            algorithm=known.algorithm,
            draft_model=known.draft_model or only(names),
            num_steps=known.num_steps or only(self.space.num_steps),
            topk=known.topk or only(self.space.topk),
            num_draft_tokens=known.num_draft_tokens or only(self.space.num_draft_tokens),
            cuda_graph=known.cuda_graph if known.cuda_graph is not None else only(self.space.cuda_graph) is not False,
            extra=tuple(sorted(extra.items())),
        )

    def dump(self) -> dict[str, Any]:
        """JSON form, stored with the study. ``${NAME}`` references stay references."""
        out: dict[str, Any] = self.model_dump(mode="json")
        return {"format": self.FORMAT, **out}

    @classmethod
    def parse(cls, dump: Mapping[str, Any]) -> StudySpec:
        """Inverse of :meth:`dump`; raises pydantic's ValidationError."""
        value = {key: item for key, item in dump.items() if key != "format"}
        return cls.model_validate(fields.freeze(value))
