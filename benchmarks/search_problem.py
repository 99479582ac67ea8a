"""A search problem: a noise-free truth over configurations, what one launch shows, and shapes to build it from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from sweep.model import ArmConfig, Objective, Verdict
from sweep.search.view import Observation, SpaceView, Told

AXES: dict[str, tuple[Any, ...]] = {
    "algorithm": ("EAGLE3",),
    "draft_model": ("first", "second"),
    "num_steps": tuple(range(1, 9)),
    "topk": (1, 2, 4, 8),
    "num_draft_tokens": (2, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "cuda_graph": (True, False),
}
# Relative error of the accept length of one launch; the size of its histogram follows from it.
LENGTH_CV = 0.01
LAUNCH_S, BENCH_S = 180.0, 60.0

Chances = Callable[[ArmConfig], np.ndarray]  # conditional acceptance by depth
Step = Callable[[ArmConfig, int], float]  # step time at a concurrency


@dataclass(frozen=True)
class Problem:
    """One truth. ``chances`` None: only accept lengths (``lengths``) are known, as in a published table."""

    space: SpaceView
    levels: tuple[int, ...]
    step: Step
    chances: Chances | None = None
    lengths: Mapping[ArmConfig, float] = field(default_factory=dict)
    fails: Callable[[ArmConfig], bool] = lambda config: False
    noise: float = 0.025
    _best: dict[int, float] = field(default_factory=dict)

    @property
    def objectives(self) -> list[Objective]:
        return [Objective("output_throughput", b, True) for b in self.levels]

    def length(self, config: ArmConfig) -> float:
        if self.chances is None:
            return self.lengths[config]
        return 1.0 + float(np.cumprod(self.chances(config)).sum())

    def value(self, config: ArmConfig, level: int) -> float:
        """Noise-free tokens/s; a configuration that cannot launch has none."""
        return 0.0 if self.fails(config) else level * self.length(config) / self.step(config, level)

    def best(self, level: int) -> float:
        if level not in self._best:
            self._best[level] = max(self.value(c, level) for c in self.space.candidates)
        return self._best[level]

    def regret(self, chosen: Sequence[ArmConfig]) -> tuple[float, float]:
        """Shortfall of each objective's chosen configuration as a fraction of its best: (mean, worst); 1 with none."""
        if not chosen:
            return 1.0, 1.0
        short = [1.0 - self.value(c, b) / self.best(b) for c, b in zip(chosen, self.levels, strict=True)]
        return sum(short) / len(short), max(short)

    def launch(self, config: ArmConfig, rng: np.random.Generator) -> Told:
        """What one launch of a real search would tell."""
        if self.fails(config):
            dominates = ("num_draft_tokens",)
            return Told(config, None, Verdict.LAUNCH_OOM, dominates=dominates, seconds=LAUNCH_S)
        length, histogram = self._accepted(config, rng)
        seen = {}
        for b in self.levels:
            shown = self.value(config, b) * float(np.exp(self.noise * rng.standard_normal()))
            seen[b] = Observation(shown, length, histogram)
        values = {o.key: float(seen[o.concurrency].throughput or 0.0) for o in self.objectives}
        return Told(config, config, Verdict.COMPLETE, values, observations=seen, seconds=LAUNCH_S + BENCH_S)

    def _accepted(self, config: ArmConfig, rng: np.random.Generator) -> tuple[float, tuple[int, ...] | None]:
        if self.chances is None:
            return self.lengths[config] * float(np.exp(LENGTH_CV * rng.standard_normal())), None
        q = self.chances(config)
        reach = np.concatenate([[1.0], np.cumprod(q)])
        share = np.append(reach[:-1] - reach[1:], reach[-1])
        k = np.arange(len(share))
        mean = float(share @ k)
        steps = int(max((share @ k**2 - mean**2) / (LENGTH_CV * (1.0 + mean)) ** 2, 200))
        counts = rng.multinomial(steps, share / share.sum())
        return 1.0 + float(counts @ k) / steps, tuple(int(c) for c in counts)


def canonical(params: Mapping[str, Any]) -> ArmConfig | None:
    """A chain verifies num_steps + 1 tokens; a tree no more than it can draft."""
    steps, topk, draft = params["num_steps"], params["topk"], params["num_draft_tokens"]
    if topk == 1:
        draft = steps + 1
    elif draft - 1 > topk + (steps - 1) * topk**2:
        return None
    return ArmConfig("EAGLE3", params["draft_model"], steps, topk, draft, params["cuda_graph"])


@cache
def grid() -> SpaceView:
    every = (canonical(dict(zip(AXES, v, strict=True))) for v in itertools.product(*AXES.values()))
    return SpaceView(tuple(dict.fromkeys(c for c in every if c)), AXES, canonical)


def width(config: ArmConfig) -> float:
    return max(1.0, min(config.topk, (config.num_draft_tokens - 1) / config.num_steps))


def depths(config: ArmConfig) -> np.ndarray:
    """0, 1, ... for the drafts in a row that can be accepted: no more than are verified."""
    return np.arange(min(config.num_steps, config.num_draft_tokens - 1))


def powered(p0: Mapping[str, float], decay: float, gamma: float, *, as_given: bool = False) -> Chances:
    """q_j = min(0.97, 1 - (1 - p0 decay^j)^(w^gamma)). ``as_given``: j counts every drafting step, verified or not."""

    def chances(config: ArmConfig) -> np.ndarray:
        p = p0[config.draft_model] * decay ** (np.arange(config.num_steps) if as_given else depths(config))
        return np.minimum(0.97, 1.0 - (1.0 - p) ** (width(config) ** gamma))

    return chances


def linear(c_d: float, c_v: float, c_g: float) -> Step:
    """(1 + c_d steps (1 + 0.02 topk) + c_v (draft - 1)) x (1 with graphs, c_g without)."""

    def step(config: ArmConfig, level: int) -> float:
        cost = 1.0 + c_d * config.num_steps * (1.0 + 0.02 * config.topk) + c_v * (config.num_draft_tokens - 1)
        return cost * (1.0 if config.cuda_graph else c_g)

    return step


def parts(rng: np.random.Generator, *, as_given: bool = False) -> tuple[Chances, Step]:
    p0 = rng.uniform(0.5, 0.85)
    p = {"first": p0, "second": p0 + rng.uniform(-0.06, 0.06)}
    chances = powered(p, rng.uniform(0.9, 1.0), rng.uniform(0.3, 0.7), as_given=as_given)
    return chances, linear(rng.uniform(0.03, 0.12), rng.uniform(0.002, 0.015), rng.uniform(1.3, 1.8))
