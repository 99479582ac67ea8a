"""Studies with a known truth: request rows as a runner would have stored them, from arms whose gains we set.

What is drawn: prompt effects (30 %), arm by prompt interaction (4 %, concurrency 1), launch effects (0.5-2 %), request
and block noise with Student-t tails (3 degrees of freedom) and half-speed blocks, host levels (10 % apart), drift by
kind. What is true: ``exp(log_gain[a])`` times the baseline, for prompts drawn like these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sweep.model import (
    BASELINE,
    ArmConfig,
    BlockResult,
    ClientHealth,
    MeasuredLaunch,
    RequestRecord,
    Role,
    Stage,
)

CATEGORIES = ("code", "math", "writing")
_CLIENT = ClientHealth(lag_p50_s=0.0002, lag_p99_s=0.001, cpu_share=0.1, chunks=1000)
_START = 1_750_000_000.0


@dataclass(frozen=True)
class World:
    """One study's nature. Standard deviations and drifts are of logs."""

    seed: int
    log_gain: tuple[float, ...]
    concurrency: int = 1
    launch_sd: float = 0.01
    noise_sd: float = 0.02  # of a request at concurrency 1, of a block above
    interaction_sd: float = 0.04
    tails: bool = True
    bad_blocks: float = 0.01
    ramp_per_hour: float = 0.0
    step: float = 0.0
    sawtooth: float = 0.0  # depth of a cycle of 1.5 h that falls slowly and recovers at once
    hosts: int = 1
    prompts: int = 24
    rounds: int = 3
    slot_s: float = 420.0
    baseline_speed: float = 90.0


@dataclass
class Bench:
    """Measures arms of a world, one launch after another on each host, as the runner's agenda does."""

    world: World
    arms: tuple[ArmConfig, ...] = ()
    launches: list[MeasuredLaunch] = field(default_factory=list)
    _clock: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.world.seed)
        count = len(self.world.log_gain)
        if not self.arms:
            self.arms = tuple(
                ArmConfig("EAGLE3", "drafter", 1 + k % 7, 1 + k // 7, 2 + (k * 7) % 23) for k in range(count)
            )
        self.hosts = [f"host-{k}" for k in range(self.world.hosts)]
        self._host_level = dict(zip(self.hosts, self.rng.normal(0, 0.1, self.world.hosts), strict=True))
        self._phase = {host: self.rng.uniform(0, 1) for host in self.hosts}
        self._sign = {host: self.rng.choice([-1.0, 1.0]) for host in self.hosts}
        self._step_at = {host: self.rng.uniform(2, 6 + 1.3 * count / self.world.hosts) for host in self.hosts}
        self._prompts = {stage: self._draw_prompts(stage) for stage in ("search", "confirm")}

    def _draw_prompts(self, stage: str) -> dict[str, np.ndarray]:
        w = self.world
        return {
            "effect": self.rng.normal(0, 0.3, w.prompts),
            "arm": self.rng.normal(0, w.interaction_sd, (len(w.log_gain), w.prompts)),
        }

    def level(self, host: str, slot: float) -> float:
        """Log level of the host at a time, drift included."""
        w, hours = self.world, slot * self.world.slot_s / 3600
        out = self._host_level[host]
        out += self._sign[host] * (w.ramp_per_hour * hours + w.step * (slot > self._step_at[host]))
        out -= w.sawtooth * ((hours / 1.5 + self._phase[host]) % 1.0)
        return float(out)

    def launch(
        self,
        host: str,
        arm: int | None,
        stage: Stage,
        *,
        role: Role | None = None,
        gain: float = 0.0,
        pair: int | None = None,
    ) -> MeasuredLaunch:
        """One launch; ``arm`` None is the baseline or, with ``gain``, the engine default."""
        w = self.world
        slot = self._clock.get(host, 0)
        self._clock[host] = slot + 1
        own = w.log_gain[arm] if arm is not None else gain
        log_level = self.level(host, slot) + own + self.rng.normal(0, w.launch_sd)
        kind = "confirm" if stage is Stage.CONFIRM else "search"
        role = role or (Role.BASELINE if arm is None else Role.CANDIDATE)
        accept = None if role is Role.BASELINE else 2.5 * float(np.exp(max(own, 0.0)))
        make = self._prompt_block if w.concurrency == 1 else self._load_blocks
        started = _START + slot * w.slot_s + 180
        found = MeasuredLaunch(
            launch_id=len(self.launches) + 1,
            arm_key=(BASELINE if arm is None and role is Role.BASELINE else self._config(arm)).key,
            role=role,
            trial=arm if role is Role.CANDIDATE else None,
            host=host,
            stage=stage,
            sequence=slot,
            started_at=started - 180,
            blocks=make(kind, stage, log_level, arm, started, accept),
            pair=pair,
        )
        self.launches.append(found)
        return found

    def _config(self, arm: int | None) -> ArmConfig:
        return self.arms[arm] if arm is not None else ArmConfig("EAGLE3", "drafter")

    def configs(self) -> dict[str, ArmConfig]:
        every = (BASELINE, ArmConfig("EAGLE3", "drafter"), *self.arms)
        return {arm.key: arm for arm in every}

    def _noise(self, size: int) -> np.ndarray:
        if not self.world.tails:
            return self.rng.normal(0, self.world.noise_sd, size)
        return self.world.noise_sd * self.rng.standard_t(3, size) / np.sqrt(3.0)

    def _prompt_block(
        self, kind: str, stage: Stage, log_level: float, arm: int | None, started: float, accept: float | None
    ) -> tuple[BlockResult, ...]:
        w, prompts = self.world, self._prompts[kind]
        logs = np.log(w.baseline_speed) + log_level + prompts["effect"] + self._noise(w.prompts)
        if arm is not None:
            logs = logs + prompts["arm"][arm]
        # A stalled request now and then.
        logs = logs + np.log(0.5) * (self.rng.random(w.prompts) < w.bad_blocks / 2)
        tokens = self.rng.integers(150, 260, w.prompts)
        seconds = tokens / np.exp(logs)
        ends = np.cumsum(seconds)
        rows = tuple(
            _row(
                k, f"{kind}-{k}", CATEGORIES[k % 3], float(ends[k] - seconds[k]), float(ends[k]), int(tokens[k]), accept
            )
            for k in range(w.prompts)
        )
        return (BlockResult(stage, 1, 0, kind, started, float(ends[-1]), rows, _CLIENT),)

    def _load_blocks(
        self, kind: str, stage: Stage, log_level: float, arm: int | None, started: float, accept: float | None
    ) -> tuple[BlockResult, ...]:
        w = self.world
        logs = np.log(w.baseline_speed * 8) + log_level + self._noise(w.rounds)
        logs = logs + np.log(0.5) * (self.rng.random(w.rounds) < w.bad_blocks)
        out = []
        for number, log_speed in enumerate(logs):
            tokens = self.rng.integers(150, 260, 2 * w.concurrency)
            elapsed = float(tokens.sum() / np.exp(log_speed))
            rows = tuple(
                _row(
                    k,
                    f"{kind}-{k}",
                    CATEGORIES[k % 3],
                    0.5 * elapsed * (k >= w.concurrency),
                    elapsed * (0.5 if k < w.concurrency else 1.0),
                    int(tokens[k]),
                    accept,
                )
                for k in range(len(tokens))
            )
            out.append(BlockResult(stage, w.concurrency, number, kind, started, elapsed, rows, _CLIENT))
            started += elapsed
        return tuple(out)


def _row(
    index: int, prompt: str, category: str, sent: float, end: float, tokens: int, accept: float | None
) -> RequestRecord:
    steps = max(1, round(tokens / accept)) if accept else None
    return RequestRecord(
        index=index,
        prompt_id=prompt,
        category=category,
        sent_s=sent,
        ttft_s=0.05,
        end_s=end,
        prompt_tokens=60,
        cached_tokens=0,
        output_tokens=tokens,
        token_source="meta",
        verify_steps=steps,
        correct_drafts=tokens - steps if steps else None,
        finish_reason="stop",
    )


def search(bench: Bench, *, every: int = 4, calibrate: int = 2) -> None:
    """The runner's plan: A/A, engine default, candidates with a baseline every ``every`` and at the end, per host."""
    order = list(bench.rng.permutation(len(bench.world.log_gain)))
    for number, host in enumerate(bench.hosts):
        mine = order[number :: len(bench.hosts)]
        for _ in range(calibrate):
            bench.launch(host, None, Stage.CALIBRATE)
        bench.launch(host, None, Stage.SEARCH, role=Role.ENGINE_DEFAULT, gain=0.02)
        since = 1
        for arm in mine:
            if since >= every:
                bench.launch(host, None, Stage.SEARCH)
                since = 0
            bench.launch(host, int(arm), Stage.SEARCH)
            since += 1
        bench.launch(host, None, Stage.SEARCH)


def again(bench: Bench, arms: Sequence[int]) -> None:
    """What was not comparable is measured again on the first host between two baselines."""
    if not arms:
        return
    host = bench.hosts[0]
    bench.launch(host, None, Stage.SEARCH)
    for number, arm in enumerate(arms):
        if number and number % 4 == 0:
            bench.launch(host, None, Stage.SEARCH)
        bench.launch(host, arm, Stage.SEARCH)
    bench.launch(host, None, Stage.SEARCH)


def confirm(bench: Bench, arms: Sequence[int], launches: int = 2) -> None:
    """Baseline and the chosen arms, forwards then backwards, fresh prompts."""
    host = bench.hosts[0]
    forwards: list[int | None] = [None, *arms]
    for turn in range(launches):
        for arm in forwards if turn % 2 == 0 else forwards[::-1]:
            bench.launch(host, arm, Stage.CONFIRM, pair=1)
