"""Raw axes to distinct, servable configurations: canonical forms, duplicates collapsed, the rest with its reason."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from search_spaces import rules
from search_spaces.rules import Infeasible
from sweep.errors import ConfigError
from sweep.model import ArmConfig, Scalar

MAX_RAW = 2_000_000
_NUMBERS = ("num_steps", "topk", "num_draft_tokens")
_OWN_AXES = ("algorithm", "draft_model", *_NUMBERS, "cuda_graph")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Axes(Protocol):
    """The ``space`` part of a study's description."""

    @property
    def algorithm(self) -> Sequence[str]: ...
    @property
    def draft_model(self) -> Sequence[_Named]: ...
    @property
    def num_steps(self) -> Sequence[int | None]: ...
    @property
    def topk(self) -> Sequence[int | None]: ...
    @property
    def num_draft_tokens(self) -> Sequence[int | None]: ...
    @property
    def cuda_graph(self) -> Sequence[bool]: ...
    @property
    def args(self) -> Mapping[str, Sequence[Scalar]]: ...


class _Server(Protocol):
    @property
    def args(self) -> Mapping[str, Any]: ...


class Description(Protocol):
    """What a space is made from; ``sweep.config.StudySpec`` is one."""

    @property
    def space(self) -> _Axes: ...
    @property
    def server(self) -> _Server: ...
    @property
    def engine_version(self) -> str | None: ...
    @property
    def known_good_arms(self) -> Sequence[ArmConfig]: ...
    @property
    def smallest_host(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every configuration of a study's axes. ``distinct + duplicates + infeasible`` is the number of raw combinations.

    ``candidates``: canonical, servable, in the order of the axes; ``known_good``: canonical, in the YAML's order, those
    that can be served; ``infeasible``: as asked, with the reason; ``axes``: axis name (or flag) to its raw values.
    """

    axes: Mapping[str, tuple[Any, ...]]
    candidates: tuple[ArmConfig, ...]
    duplicates: int
    infeasible: tuple[tuple[ArmConfig, Infeasible], ...]
    known_good: tuple[ArmConfig, ...]
    version: str
    _judge: _Judge

    @classmethod
    def from_spec(
        cls,
        spec: Description,
        version: str | None = None,
        gpu_kind: str | None = None,
        model_arch: str | None = None,
        *,
        allow_empty: bool = False,
    ) -> SearchSpace:
        """Enumerate. ``version`` as found on the hosts (else the YAML's, else the newest table); ``gpu_kind`` and
        ``model_arch`` as in :func:`search_spaces.rules.resolve`. Raises ConfigError for a space that is too large, for
        a ``known_good`` that cannot be served and, unless ``allow_empty``, for a space with nothing to serve at all.
        """
        axes = _axes(spec.space)
        raw = math.prod(len(values) for values in axes.values())
        if raw > MAX_RAW:
            raise ConfigError(f"the space has {raw} combinations, more than {MAX_RAW}; make an axis shorter")
        table = rules.table(version or spec.engine_version)
        judge = _Judge(table.version, gpu_kind, model_arch, dict(spec.server.args), spec.smallest_host)
        found: dict[ArmConfig, None] = {}
        infeasible: list[tuple[ArmConfig, Infeasible]] = []
        for asked in _raw(axes):
            answer = judge(asked)
            if isinstance(answer, Infeasible):
                infeasible.append((asked, answer))
            else:
                found[answer] = None
        duplicates = raw - len(found) - len(infeasible)
        known: dict[ArmConfig, None] = {}
        for asked in spec.known_good_arms:
            answer = judge(asked)
            if isinstance(answer, Infeasible):
                raise ConfigError(f"known_good: {asked.label()} cannot be served: {answer.reason}")
            known[answer] = None
            found.setdefault(answer)  # a number it leaves out may stand for one that is not on the axis
        if not found and not allow_empty:
            raise ConfigError(f"no configuration of the space can be served, for example: {infeasible[0][1].reason}")
        return cls(axes, tuple(found), duplicates, tuple(infeasible), tuple(known), table.version, judge)

    def canonical(self, params: Mapping[str, Any]) -> ArmConfig | Infeasible:
        """The configuration that a choice of raw axis values (keys as in ``axes``) comes to."""
        extra = {name: value for name, value in params.items() if name not in _OWN_AXES}
        return self._judge(
            ArmConfig(
                **{name: params.get(name) for name in _OWN_AXES if name != "cuda_graph"},
                cuda_graph=bool(params.get("cuda_graph", True)),
                extra=tuple(sorted(extra.items())),
            )
        )

    @property
    def fingerprint(self) -> str:
        """12 hex digits over axes, pins and rule table: equal for equal spaces."""
        whole = [self.version, {name: list(values) for name, values in self.axes.items()}, dict(self._judge.pins)]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]


def _axes(space: _Axes) -> dict[str, tuple[Any, ...]]:
    own: dict[str, tuple[Any, ...]] = {
        "algorithm": tuple(space.algorithm),
        "draft_model": tuple(item.name for item in space.draft_model) or (None,),
        "num_steps": tuple(space.num_steps),
        "topk": tuple(space.topk),
        "num_draft_tokens": tuple(space.num_draft_tokens),
        "cuda_graph": tuple(space.cuda_graph),
    }
    return own | {flag: tuple(values) for flag, values in sorted(space.args.items())}


def _raw(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[ArmConfig]:
    flags = [name for name in axes if name not in _OWN_AXES]
    extras = [tuple(zip(flags, values, strict=True)) for values in product(*(axes[flag] for flag in flags))]
    for algorithm, drafter, steps, topk, draft_tokens, graph in product(*(axes[name] for name in _OWN_AXES)):
        for extra in extras:
            yield ArmConfig(algorithm, drafter, steps, topk, draft_tokens, graph, extra)


@dataclass(frozen=True, slots=True)
class _Judge:
    """The canonical form of one asked configuration under a study's pins, or why it cannot be served."""

    version: str
    gpu_kind: str | None
    model_arch: str | None
    pins: Mapping[str, Any]
    gpus: int  # of the smallest host: any host may get any arm

    def __call__(self, asked: ArmConfig) -> ArmConfig | Infeasible:
        name = (asked.algorithm or "NONE").upper()
        algorithm = rules.ALIASES.get(name, name)
        if algorithm == "NONE":
            return Infeasible("no speculation is the baseline, which is measured anyway", "baseline")
        drafter, steps, topk = asked.draft_model, asked.num_steps, asked.topk
        extra = asked.extra
        if algorithm in rules.TAKES_NO_DRAFTER:
            drafter = steps = topk = None  # derived by the server; asking for them changes nothing that is measured
        else:
            extra = tuple(item for item in extra if not item[0].startswith("speculative-ngram-"))
        if drafter is None and algorithm in rules.NEEDS_DRAFTER:
            return Infeasible(f"{algorithm} needs a draft model; give space.draft_model", "drafter_missing")
        flags = {**self.pins, **dict(extra)}
        arm_gpus = _whole(flags.get("tp-size"), 1) * _whole(flags.get("pp-size"), 1)
        if arm_gpus > self.gpus:
            return Infeasible(f"tp-size x pp-size takes {arm_gpus} GPUs and a host has {self.gpus}", "gpus")
        answer = self._resolve(algorithm, steps, topk, asked.num_draft_tokens, flags)
        if isinstance(answer, Infeasible):
            return answer
        if "auto_choice" in answer.rewrites:
            return Infeasible("the engine's own choice is a reference, which is measured anyway", "engine_default")
        return ArmConfig(
            answer.algorithm, drafter, answer.num_steps, answer.topk, answer.num_draft_tokens, asked.cuda_graph, extra
        )

    def _resolve(
        self, algorithm: str, steps: int | None, topk: int | None, draft_tokens: int | None, flags: Mapping[str, Any]
    ) -> rules.Resolved | Infeasible:
        both = flags.get("attention-backend")
        answer: rules.Resolved | Infeasible | None = None
        sides = (flags.get("prefill-attention-backend", both), flags.get("decode-attention-backend", both))
        for backend in dict.fromkeys(sides):
            answer = rules.resolve(
                algorithm,
                steps,
                topk,
                draft_tokens,
                attention_backend=backend if isinstance(backend, str) else None,
                page_size=_whole(flags.get("page-size"), 1),
                version=self.version,
                gpu_kind=self.gpu_kind,
                model_arch=self.model_arch,
                ngram_breadth=_whole(flags.get("speculative-ngram-max-bfs-breadth"), rules.NGRAM_BREADTH),
            )
            if isinstance(answer, Infeasible):
                break
        assert answer is not None
        return answer


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
