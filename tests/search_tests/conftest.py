"""A small truth to search in: acceptance by depth and width, step time linear in drafting and verification."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sweep.model import ArmConfig, Objective, Verdict
from sweep.search.view import Observation, SpaceView, Told

AXES: dict[str, tuple[Any, ...]] = {
    "algorithm": ("EAGLE3",),
    "draft_model": ("a", "b"),
    "num_steps": (1, 2, 3, 4, 5, 6, 7),
    "topk": (1, 2, 4, 8),
    "num_draft_tokens": (2, 4, 8, 16, 32),
    "cuda_graph": (True, False),
}


def canonical(params: Mapping[str, Any]) -> ArmConfig | None:
    steps, topk, draft = params["num_steps"], params["topk"], params["num_draft_tokens"]
    if topk == 1:
        draft = steps + 1
    elif draft - 1 > topk + (steps - 1) * topk**2:
        return None
    return ArmConfig(params["algorithm"], params["draft_model"], steps, topk, draft, params["cuda_graph"])


def make_space(**axes: tuple[Any, ...]) -> SpaceView:
    every = {**AXES, **axes}
    cells = (canonical(dict(zip(every, values, strict=True))) for values in itertools.product(*every.values()))
    return SpaceView(tuple(dict.fromkeys(c for c in cells if c)), every, canonical)


@dataclass(frozen=True)
class Truth:
    """Noise-free unless ``noise``; levels are the concurrencies every launch measures."""

    levels: tuple[int, ...] = (1,)
    noise: float = 0.0
    p0: Mapping[str, float] | None = None

    @property
    def objectives(self) -> list[Objective]:
        return [Objective("output_throughput", b, True) for b in self.levels]

    def chances(self, config: ArmConfig) -> np.ndarray:
        assert config.num_steps
        assert config.topk
        assert config.num_draft_tokens
        p = (self.p0 or {"a": 0.7, "b": 0.62})[str(config.draft_model)]
        width = max(1.0, min(config.topk, (config.num_draft_tokens - 1) / config.num_steps))
        depth = np.arange(min(config.num_steps, config.num_draft_tokens - 1))
        return 1.0 - (1.0 - p * 0.95**depth) ** (width**0.5)

    def length(self, config: ArmConfig) -> float:
        return 1.0 + float(np.cumprod(self.chances(config)).sum())

    def step(self, config: ArmConfig, level: int) -> float:
        assert config.num_steps
        assert config.topk
        assert config.num_draft_tokens
        verify = 0.006 * np.sqrt(level) * (config.num_draft_tokens - 1)
        cost = 1.0 + 0.07 * config.num_steps * (1.0 + 0.02 * config.topk) + verify
        return float(0.01 * level**0.1 * cost * (1.0 if config.cuda_graph else 1.5))

    def speed(self, config: ArmConfig, level: int = 1) -> float:
        return level * self.length(config) / self.step(config, level)

    def told(self, config: ArmConfig, number: int = 0, *, histogram: bool = True) -> Told:
        rng = np.random.default_rng([number, 3])
        q = self.chances(config)
        reach = np.concatenate([[1.0], np.cumprod(q)])
        counts = tuple(int(c) for c in np.round(4000 * np.append(reach[:-1] - reach[1:], reach[-1])))
        seen = {}
        for b in self.levels:
            shown = self.speed(config, b) * float(np.exp(self.noise * rng.standard_normal()))
            seen[b] = Observation(shown, self.length(config), counts if histogram else None)
        values = {o.key: float(seen[o.concurrency].throughput or 0.0) for o in self.objectives}
        return Told(config, config, Verdict.COMPLETE, values, observations=seen, seconds=200.0)


@pytest.fixture
def space() -> SpaceView:
    return make_space()


@pytest.fixture
def spaces() -> Callable[..., SpaceView]:
    return make_space


@pytest.fixture
def truths() -> type[Truth]:
    return Truth


@pytest.fixture
def arm() -> Callable[..., ArmConfig]:
    def make(steps: int, topk: int, draft: int, drafter: str = "a", *, graph: bool = True) -> ArmConfig:
        return ArmConfig("EAGLE3", drafter, steps, topk, draft, graph)

    return make
