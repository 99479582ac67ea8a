"""The parts of the search-space YAML that say what to serve, what to try, what to ask and how to measure.

Every key carries its own description (:func:`sweep.config.fields.doc`); ``docs/reference/yaml.md`` is made of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from launchers.supervisor import MIN_SECRET
from sweep import metrics
from sweep import model as nouns
from sweep.config import fields
from sweep.config.fields import Name, Part, Positive, Text, doc

Scalar = str | int | float | bool
FlagValue = Scalar | tuple[Scalar, ...] | None
Count = Annotated[int, Field(ge=1)]
Axis = Annotated[tuple[Annotated[int, Field(ge=1, le=fields.MAX_AXIS)] | None, ...], BeforeValidator(fields.axis)]


class Model(Part):
    """The target model, the same on every host."""

    path: Text = Field(description="Path on the hosts, or a hub name.")
    revision: str | None = doc("Hub revision, where the path is a hub name; null: the newest.", None, example="main")
    trust_remote_code: bool = doc("Let the model's own Python code run.", False)


class Server(Part):
    """Pins: arguments and environment of every arm, the references included."""

    args: Annotated[dict[str, FlagValue], BeforeValidator(fields.flags)] = doc(
        "Any server option without its dashes; true and false are switches, a list is several values.", {}
    )
    env: Annotated[dict[str, str], BeforeValidator(fields.environment)] = doc(
        "Environment variables. A secret is written ${NAME}: read from your environment at start, never stored; it has "
        f"{MIN_SECRET} characters or more, since shorter ones cannot be kept out of logs.",
        {},
        example={"HF_TOKEN": "${HF_TOKEN}"},
    )


class DraftModel(Part):
    """A drafter. A path alone is enough; its last part is then the name."""

    name: Name = Field(description="Name in tables; default: the last part of the path.")
    path: Text = Field(description="What the server loads: a path on the hosts or a hub name.")
    revision: str | None = doc("Hub revision; null: the newest.", None, example="main")

    @property
    def noun(self) -> nouns.Drafter:
        return nouns.Drafter(self.name, self.path, self.revision)


class Space(Part):
    """The axes: every combination that the engine can serve. A number axis may hold null: the flag is left out.
    An axis is a list, one value, or for whole numbers a range ``{low, high, step}``."""

    algorithm: Annotated[tuple[Text, ...], BeforeValidator(fields.axis)] = Field(
        description="Speculative algorithms: EAGLE, EAGLE3, STANDALONE, NGRAM, ..."
    )
    draft_model: Annotated[tuple[DraftModel, ...], BeforeValidator(fields.drafters)] = doc(
        "Draft models, for the algorithms that need one.", ()
    )
    num_steps: Axis = doc("Depth of the draft.", (None,), unit="steps")
    topk: Axis = doc("Width of the draft; with 1 it is a chain and num_draft_tokens follows (num_steps + 1).", (None,))
    num_draft_tokens: Axis = doc("Size of the tree that is verified, its root included.", (None,), unit="tokens")
    cuda_graph: Annotated[tuple[bool, ...], BeforeValidator(fields.axis)] = doc(
        "CUDA graphs for decoding; [true, false] tries both.", (True,)
    )
    args: Annotated[
        dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(fields.axis)]], BeforeValidator(fields.flags)
    ] = doc("Any other server option as an axis.", {}, example={"speculative-attention-mode": ["prefill", "decode"]})

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

    algorithm: Text = Field(description="One of space.algorithm.")
    draft_model: str | None = doc("Name of one of space.draft_model.", None)
    num_steps: Count | None = doc("A value of space.num_steps.", None)
    topk: Count | None = doc("A value of space.topk.", None)
    num_draft_tokens: Count | None = doc("A value of space.num_draft_tokens.", None)
    cuda_graph: bool | None = doc("A value of space.cuda_graph.", None, example=True)
    args: Annotated[dict[str, Scalar], BeforeValidator(fields.flags)] = doc(
        "A value of each of space.args.", {}, example={"speculative-attention-mode": "decode"}
    )


class Slo(Part):
    """What a request must keep to count as good (goodput)."""

    ttft_ms: Positive | None = doc("Longest time to first token.", None, unit="ms", example=500)
    tpot_ms: Positive | None = doc("Longest time per further output token.", None, unit="ms", example=30)
    e2e_ms: Positive | None = doc("Longest time from send to last token.", None, unit="ms", example=20000)

    @property
    def noun(self) -> metrics.Slo:
        return metrics.Slo(self.ttft_ms, self.tpot_ms, self.e2e_ms)


class Workload(Part):
    """What is asked of every server."""

    prompts: Text = doc("builtin, our own set, or the path of a file (looked for beside the YAML too).", "builtin")
    format: Text = doc("Of the file: jsonl, sharegpt, mtbench; auto looks.", "auto")
    categories: Annotated[tuple[Text, ...], BeforeValidator(fields.one_or_many)] | None = doc(
        "Categories of prompts that are used; null: all.", None
    )
    per_category: Count = doc("Prompts of each category in a block.", 4, unit="prompts")
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = doc("Answers stop by themselves, or here.", 256, unit="tokens")
    temperature: Annotated[float, Field(ge=0, le=2)] = doc("0 is greedy.", 0.0)
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(max_length=32),
        BeforeValidator(fields.axis),
    ] = doc("Load levels, one after the other on each launch.", (1,), unit="requests in flight")
    repeats: Annotated[int, Field(ge=1, le=100)] = doc("Blocks of each level on a launch.", 2, unit="blocks")
    requests_per_level: Count | None = doc(
        "Requests of a block above concurrency 1; null: two waves, each prompt at least once.",
        None,
        unit="requests",
        example=96,
    )
    endpoint: Literal["generate", "chat"] = doc(
        "generate carries the accept counters of each request; chat is what your users may call.", "generate"
    )
    ignore_eos: bool = doc("true: every answer has max_tokens.", False)
    stream_interval: Count | None = doc(
        "Tokens per streamed chunk; null: the server's own.", None, unit="tokens", example=1
    )
    warmup_requests: Annotated[int, Field(ge=0, le=1000)] = doc(
        "Sent before the first block and not counted.", 3, unit="requests"
    )
    seed: int | None = doc("Of the choice of prompts; null: the study's.", None, example=1)
    request_rate: Positive | None = doc(
        "Requests arrive at random times at this rate (Poisson); null: a closed loop at the concurrency.",
        None,
        unit="requests/s",
        example=4,
    )
    client_processes: Count | Literal["auto"] = doc(
        "Of the benchmark client, at most one a core; auto: one, and more where one would be the limit.", "auto"
    )
    timeout_s: Positive = doc("Of one request.", 600.0, unit="s")
    slo: Slo | None = doc("What a good request keeps; goodput needs it.", None)
    chat_template_args: dict[str, Any] = doc(
        "Arguments of the model's chat template.", {}, example={"enable_thinking": False}
    )


class ObjectiveSpec(Part):
    """What is optimised; the first ranks. ``output_throughput@8`` is short for metric and concurrency."""

    metric: Text = Field(description="A metric of the table in metrics.md.")
    concurrency: Count | None = doc("At which level; null: the workload's first.", None)
    direction: Literal["maximize", "minimize"] | None = doc(
        "Follows from the metric; where it is given it must agree.", None, example="maximize"
    )


class Budget(Part):
    """When to end; whichever comes first. Times are for the whole study, confirm stage included."""

    trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = doc("Configurations tried; null: all.", None)
    hours: Positive | None = doc("No further trial is started after so long.", None, unit="h")
    until: Annotated[str, BeforeValidator(fields.clock)] | None = doc(
        "Likewise after this time of day, HH:MM, local time.", None, example="07:00"
    )
    regret: Annotated[float, Field(gt=0, lt=1)] | None = doc(
        "With the model sampler: end the search when the best configuration is expected to beat the best measured one "
        "by no more than this; null: never.",
        0.01,
        unit="fraction",
    )


class Measurement(Part):
    """How often the baseline is measured, how the winner is confirmed, and how long to wait."""

    baseline_every: Count = doc("Trials between two baseline launches of a host.", 4, unit="trials")
    baseline_minutes: Positive = doc("At most so long between two baseline launches of a host.", 60.0, unit="min")
    calibrate_launches: Annotated[int, Field(ge=0, le=20)] = doc(
        "Baseline launches at the start of a study (baseline against itself): what the noise is.", 2, unit="launches"
    )
    engine_default: bool = doc("Also measure the engine's automatic choice.", True)
    confirm_top: Annotated[int, Field(ge=0, le=20)] = doc(
        "So many of the best are measured again with fresh launches and prompts.", 2, unit="arms"
    )
    confirm_launches: Annotated[int, Field(ge=1, le=20)] = doc(
        "Of each confirmed arm, and of the baseline beside it.", 2, unit="launches"
    )
    pairing: Literal["auto", "bracketed", "alternate", "resident"] = doc(
        "How candidates meet the baseline; see measurement.md.", "auto"
    )
    wanted_gain: Annotated[float, Field(gt=0, lt=1)] = doc(
        "The gain for which `calibrate` reckons the launches needed.", 0.03, unit="fraction", example=0.03
    )
    launch_timeout_s: Positive = doc("From start to ready.", 1800.0, unit="s")
    stall_timeout_s: Positive = doc("No token and no log line for so long: hung.", 300.0, unit="s")
    tolerance: Annotated[float, Field(gt=0, lt=1)] = doc(
        "Baselines around a trial further apart than this and than noise allows: not comparable, measured again.",
        0.05,
        unit="fraction",
    )
    screening: bool = doc(
        "End the launch of a candidate that cannot win any more at any load it was measured at (screened_out).", True
    )
    max_attempts: Annotated[int, Field(ge=1, le=10)] = doc(
        "Of one configuration when the surroundings fail.", 2, unit="attempts"
    )
    expected_launch_s: Positive = doc("For `plan`, until launches have been seen.", 90.0, unit="s")
