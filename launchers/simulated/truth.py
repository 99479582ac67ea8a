"""What a simulated server would measure without noise: closed forms and exact expectations from a profile.

The formulas are the server's own (``launchers.simulated.server.Arm``). Throughputs are simulated output tokens per
second: a server run at time scale X shows them divided by X. Gains are fractions against the baseline with CUDA graphs.
"""

from __future__ import annotations

import functools
import json
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from launchers.simulated import server
from launchers.simulated.server import Arm
from sweep.errors import UsageError
from sweep.model import BASELINE, ArmConfig

PROFILES = Path(__file__).parent / "profiles"
Profile = Mapping[str, Any]


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def profile_path(name: str) -> Path:
    """The file of a shipped profile, or ``name`` itself where it is a path; UsageError naming what there is."""
    path = Path(name) if name.endswith(".json") else PROFILES / f"{name}.json"
    if not path.is_file():
        raise UsageError(f"no simulation profile {name!r}; there are: {', '.join(profile_names())}")
    return path


def load(name: str) -> dict[str, Any]:
    """A profile by name or path."""
    value = json.loads(profile_path(name).read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


@functools.cache
def _parser(version: str) -> Any:
    return server.build_parser(version)


def resolved(profile: Profile, config: ArmConfig, *, draft_path: str | None = None) -> Namespace:
    """Server arguments of an arm after the server's own rewrites. ``draft_path`` defaults to the drafter's name.

    Raises ``server.ConfigError`` where the server would refuse them.
    """
    argv = ["--model-path", "target"]
    if config.algorithm:
        argv += ["--speculative-algorithm", config.algorithm]
        draft = draft_path or config.draft_model
        if draft:
            argv += ["--speculative-draft-model-path", draft]
        numbers = (("num-steps", config.num_steps), ("eagle-topk", config.topk))
        for flag, value in (*numbers, ("num-draft-tokens", config.num_draft_tokens)):
            if value is not None:
                argv += [f"--speculative-{flag}", str(value)]
    if not config.cuda_graph:
        argv += ["--cuda-graph-backend-decode", "disabled"]
    for flag, setting in config.extra:
        argv += [f"--{flag}"] if setting is True else [] if setting is False else [f"--{flag}", str(setting)]
    if not any(flag == "attention-backend" for flag, _ in config.extra):
        argv += ["--attention-backend", "triton"]
    args: Namespace = _parser(profile["speaks_as"]).parse_args(argv)
    server.resolve(args, dict(profile), lambda _: None)
    return args


def arm_model(profile: Profile, config: ArmConfig, *, draft_path: str | None = None) -> Arm:
    """Timing and acceptance of an arm, rewrites applied (topk 1 fixes the draft tokens, and so on)."""
    return server.arm_of(resolved(profile, config, draft_path=draft_path), dict(profile))


def main_categories(profile: Profile) -> list[str]:
    """The categories that count, equally weighted, where none is named: all but ``other``."""
    return [name for name in profile["categories"] if name != "other"] or ["other"]


def step_time(profile: Profile, config: ArmConfig, batch: int) -> float:
    """Seconds of one decode or draft-and-verify step with ``batch`` running requests."""
    return arm_model(profile, config).step_s(batch)


@functools.lru_cache(maxsize=4096)
def expected_steps(tokens: int, survival: tuple[float, ...]) -> float:
    """Verify steps that emit ``tokens`` tokens, a step emitting 1 + the drafts accepted, averaged over prompts.

    ``survival[j]`` is P(more than j accepted). A prompt's draws are the server's golden-ratio sequence from a start of
    its own (``Scheduler._draw``), so the mean is taken over evenly spaced starts.
    """
    if tokens <= 0:
        return 0.0
    starts = (np.arange(64) + 0.5) / 64
    draws = (starts[:, None] + server.GOLDEN * np.arange(1, tokens + 1)) % 1.0
    accepted = (draws[:, :, None] < np.asarray(survival)).sum(axis=2)
    return float((np.cumsum(accepted + 1, axis=1) < tokens).sum(axis=1).mean() + 1.0)


def _steps(arm: Arm, category: str, tokens: int) -> float:
    return expected_steps(tokens, tuple(arm.survival(category)))


def accept_length(profile: Profile, config: ArmConfig, category: str | None = None) -> float:
    """Tokens emitted per verify step; over several categories: all tokens over all steps, at equal output lengths."""
    arm = arm_model(profile, config)
    names = [category] if category else main_categories(profile)
    return len(names) / sum(1.0 / (1.0 + sum(arm.survival(name))) for name in names)


def throughput(
    profile: Profile,
    config: ArmConfig,
    concurrency: int,
    category: str | None = None,
    *,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> float:
    """Output tokens per second of ``concurrency`` equal requests started together: their prefill, then their steps.

    Lengths default to the profile's nominal ones. Over several categories: at concurrency 1 the geometric mean of the
    prompts' speeds (the pairing rule), above it all tokens over the mean time.
    """
    arm = arm_model(profile, config)
    prompt = prompt_tokens or int(profile["nominal"]["prompt_tokens"])
    output = output_tokens or int(profile["nominal"]["output_tokens"])
    names = [category] if category else main_categories(profile)
    prefill = arm.prefill_s(concurrency * prompt)
    seconds = [prefill + _steps(arm, name, output - 1) * arm.step_s(concurrency) for name in names]
    if concurrency == 1:
        return output / math.exp(sum(math.log(s) for s in seconds) / len(seconds))
    return concurrency * output / (sum(seconds) / len(seconds))


def gain(
    profile: Profile, config: ArmConfig, concurrency: int, category: str | None = None, **lengths: int | None
) -> float:
    """Throughput ratio against the baseline, minus one."""
    mine = throughput(profile, config, concurrency, category, **lengths)
    return mine / throughput(profile, BASELINE, concurrency, category, **lengths) - 1.0


@dataclass(frozen=True, slots=True)
class TruePrompt:
    """One request of a simulated block: the last user message, its category, the tokens of the templated prompt."""

    text: str
    category: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TrueBlock:
    """``seconds`` from the first send to the last token; per request its seconds and output tokens, in prompt order;
    ``histogram[j]`` verify steps of all that accepted j drafts."""

    seconds: float
    request_s: tuple[float, ...]
    output_tokens: tuple[int, ...]
    histogram: tuple[int, ...]

    @property
    def throughput(self) -> float:
        return sum(self.output_tokens) / self.seconds

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens per second of each request."""
        return tuple(n / s for n, s in zip(self.output_tokens, self.request_s, strict=True))


def simulate_block(
    profile: Profile,
    config: ArmConfig,
    prompts: Sequence[TruePrompt],
    concurrency: int,
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    max_running: int = 48,
) -> TrueBlock:
    """A whole block in virtual time through the server's scheduler: closed loop, a client that needs no time.

    The draws are the server's own, so this is what a noise-free launch shows, queueing, ramp and tail included.
    """
    plain = dict(profile)
    arm = arm_model(profile, config)
    scheduler = server.Scheduler(arm, max_running=max_running)
    order = []
    for number, prompt in enumerate(prompts):
        length = server.natural_length(plain, prompt.text)
        natural = not ignore_eos and length <= max_tokens
        request = server.Request(
            rid=str(number),
            arrival=math.inf,
            prompt_tokens=prompt.prompt_tokens,
            cached=0,
            target=length if natural else max_tokens,
            natural=natural,
        )
        exponent = server.prompt_exponent(plain, prompt.category, prompt.text)
        request.survival = arm.survival(prompt.category, exponent)
        request.offset = arm.draw_offset(prompt.text)
        order.append(request)
    pending = iter(order)
    ends: dict[str, float] = {}

    def send(now: float) -> None:
        request = next(pending, None)
        if request is not None:
            request.arrival = now
            scheduler.waiting.append(request)

    for _ in range(concurrency):
        send(0.0)
    now = 0.0
    while (iteration := scheduler.begin(now)) is not None:
        now = iteration.end
        for request in scheduler.complete(iteration):
            if request.finish is not None and request.rid not in ends:
                ends[request.rid] = now
                send(now)
    return TrueBlock(
        seconds=now,
        request_s=tuple(ends[request.rid] - request.arrival for request in order),
        output_tokens=tuple(request.emitted for request in order),
        histogram=tuple(sum(counts) for counts in zip_longest(*(r.histogram for r in order), fillvalue=0)),
    )
