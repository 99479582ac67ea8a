"""The search-space YAML as frozen, strict values. An unknown key, a wrong type or a value out of range never passes.

Values are made by ``sweep.config.load_space`` (with file and line in every error) or by ``StudySpec.parse`` from what
``StudySpec.dump`` stored with the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from sweep import model as nouns
from sweep.config import fields
from sweep.config.fields import Name, Part, doc
from sweep.config.parts import Budget, KnownGood, Measurement, Model, ObjectiveSpec, Server, Space, Workload
from sweep.config.places import Host, RayOptions, Simulate
from sweep.metrics import parse_constraint, parse_objective


class StudySpec(Part):
    """Everything a study is: what to serve, what to try, what to ask of it, where, and for how long."""

    FORMAT: ClassVar[int] = 1

    name: Name = Field(description="Name of the study in the database.")
    engine: Name = doc("sglang, or simulated: a stand-in server on the hosts below.", "sglang")
    engine_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+([.+-]?[A-Za-z0-9.]+)?$")] | None = doc(
        "Whose rules are used before a host has been asked; null: the newest known. Hosts are always asked.",
        None,
        example="0.5.17",
    )
    model: Model
    server: Server = Field(default_factory=Server)
    space: Space
    known_good: tuple[KnownGood, ...] = doc("Tried first, in this order.", ())
    workload: Workload = Field(default_factory=Workload)
    objectives: Annotated[tuple[ObjectiveSpec, ...], BeforeValidator(fields.objectives)] = doc(
        "What is optimised; where left out, output_throughput at the first level.", ()
    )
    constraints: Annotated[tuple[str, ...], BeforeValidator(fields.one_or_many)] = doc(
        "What a configuration must keep: METRIC[@CONCURRENCY] < LIMIT [UNIT]; without a level, at every one.", ()
    )
    budget: Budget = Field(default_factory=Budget)
    sampler: Literal["auto", "model", "tpe", "nsga2", "gp", "random", "grid"] = doc(
        "Who proposes configurations; auto: model where numbers of speculation are axes, else tpe. A space no larger "
        "than budget.trials (8 where that is not set) is measured whole. See search.md.",
        "auto",
    )
    warm_start: bool | Name = doc(
        "Begin with what earlier studies of the same model and GPU in the database taught; or the name of one.", False
    )
    measurement: Measurement = Field(default_factory=Measurement)
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)] = (Host(name="local", kind="local"),)
    simulate: Simulate | None = None
    ray: RayOptions = Field(default_factory=RayOptions)
    seed: Annotated[int, Field(ge=0, lt=2**32)] = doc("Of the sampler and of the choice of prompts.", 1)
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
