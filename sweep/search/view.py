"""The values the search reads and returns. The controller builds them from its rows; nothing here is live."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from sweep.model import ArmConfig, Objective, Scalar, Verdict


def fields(config: ArmConfig) -> dict[str, Any]:
    """Axis name -> value, extra flags beside the named axes."""
    flat = config.as_dict()
    flat.update(flat.pop("args", {}))
    return flat


@dataclass(frozen=True)
class SpaceView:
    """A search space as the search sees it.

    ``candidates``: every distinct feasible canonical configuration, in a stable order.
    ``axes``: axis name -> its values, named as in :meth:`ArmConfig.as_dict` (``algorithm`` ... ``cuda_graph``) or as
    the server flag of an extra axis.
    ``canonical``: one value per axis -> the configuration it comes to, or None where it is infeasible.
    """

    candidates: tuple[ArmConfig, ...]
    axes: Mapping[str, tuple[Scalar | None, ...]]
    canonical: Callable[[Mapping[str, Any]], ArmConfig | None]

    @cached_property
    def values(self) -> Mapping[str, tuple[Scalar | None, ...]]:
        """Axis name -> its values and those of the candidates, each once: a canonical form may lie beside the axis."""
        rows = [fields(c) for c in self.candidates]
        return {
            name: tuple(dict.fromkeys([*axis, *(row[name] for row in rows if name in row)]))
            for name, axis in self.axes.items()
        }

    @property
    def speculative(self) -> bool:
        """True where the space turns the knobs the cost model knows."""
        return len({(c.num_steps, c.topk, c.num_draft_tokens) for c in self.candidates if c.speculative}) > 1


@dataclass(frozen=True)
class Observation:
    """What one launch showed at one concurrency.

    ``throughput`` output tokens/s; ``accept_length`` tokens per verify step; ``accept_histogram[j]`` verify steps that
    accepted j drafts; ``step_time`` seconds per verify step where it was read from the server.
    """

    throughput: float | None = None
    accept_length: float | None = None
    accept_histogram: tuple[int, ...] | None = None
    step_time: float | None = None


@dataclass(frozen=True)
class Told:
    """One row of the study.

    ``verdict`` None is a trial still running. ``values`` and ``stderr`` (standard error, the value's unit) are by
    objective key; ``constraints`` by constraint text, satisfied when <= 0; ``observations`` by concurrency.
    ``dominates`` names the configuration fields whose equal-or-larger values share this failure. ``seconds`` is what
    the trial took, launch and measurement.
    """

    config: ArmConfig
    effective: ArmConfig | None = None
    verdict: Verdict | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    stderr: Mapping[str, float] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)
    observations: Mapping[int, Observation] = field(default_factory=dict)
    dominates: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ran(self) -> ArmConfig:
        """What the server ran where that is known, else what was asked."""
        return self.effective or self.config

    @property
    def complete(self) -> bool:
        return self.verdict is Verdict.COMPLETE

    def finite(self, objectives: Sequence[Objective]) -> list[float] | None:
        """The objective values in order, or None where one is missing or not a finite number."""
        values = [self.values.get(objective.key, math.nan) for objective in objectives]
        return values if all(math.isfinite(v) for v in values) else None


class Origin(StrEnum):
    """Why a configuration was proposed."""

    KNOWN_GOOD = "known_good"
    SEED = "seed"  # chosen to teach the cost model
    SAMPLER = "sampler"
    ENUMERATED = "enumerated"


@dataclass(frozen=True)
class Proposal:
    """A configuration to launch next, where it came from and why, in words for the user."""

    config: ArmConfig
    origin: Origin
    why: str


@dataclass(frozen=True)
class Prediction:
    """Tokens/s with a 95 % interval."""

    mean: float
    low: float
    high: float
