"""Small studies written out by hand, without noise unless a test adds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweep.analysis import AnalysisSettings, StudyAnalysis, analyse
from sweep.model import (
    BASELINE,
    ArmConfig,
    BlockResult,
    ClientHealth,
    GpuTelemetry,
    MeasuredLaunch,
    Objective,
    RequestRecord,
    Role,
    Stage,
)

START = 1_750_000_000.0
CLIENT = ClientHealth(0.0002, 0.001, 0.1, 100)
AT_1 = Objective("output_throughput", 1, True)
AT_8 = Objective("output_throughput", 8, True)
ARMS = {k: ArmConfig("EAGLE3", "drafter", 1 + k, 1, 2 + k) for k in range(12)}
CONFIGS = {arm.key: arm for arm in (BASELINE, ArmConfig("EAGLE3", "drafter"), *ARMS.values())}
THROUGHPUT_ONLY = AnalysisSettings(metrics=("output_throughput",))


def request(
    index: int,
    speed: float,
    *,
    prompt: str | None = None,
    category: str = "code",
    tokens: int = 200,
    accept: float | None = None,
    sent: float = 0.0,
    **more: Any,
) -> RequestRecord:
    steps = round(tokens / accept) if accept else None
    fields: dict[str, Any] = {
        "ttft_s": 0.05,
        "cached_tokens": 0,
        "output_tokens": tokens,
        "token_source": "meta",
        "verify_steps": steps,
        "correct_drafts": tokens - steps if steps else None,
        "finish_reason": "stop",
    }
    return RequestRecord(
        index, prompt or f"p{index}", category, sent, end_s=sent + tokens / speed, **{**fields, **more}
    )


def block(
    requests: Sequence[RequestRecord],
    *,
    concurrency: int = 1,
    number: int = 0,
    stage: Stage = Stage.SEARCH,
    prompts_hash: str = "set",
    started: float = START,
    elapsed: float | None = None,
    client: ClientHealth = CLIENT,
    gpus: tuple[GpuTelemetry, ...] = (),
    log_flags: Mapping[str, str] | None = None,
    invalid: str | None = None,
) -> BlockResult:
    end = elapsed if elapsed is not None else max(r.end_s for r in requests)
    return BlockResult(
        stage, concurrency, number, prompts_hash, started, end, tuple(requests), client, gpus, log_flags or {}, invalid
    )


def load_block(speed: float, number: int = 0, *, accept: float | None = None, **more: Any) -> BlockResult:
    """Eight requests at once whose tokens per second together are ``speed``."""
    rows = [request(k, speed / 8, accept=accept) for k in range(8)]
    return block(rows, concurrency=8, number=number, **more)


class Night:
    """Launches one after another, ten minutes apart, on one or more hosts."""

    def __init__(self) -> None:
        self.launches: list[MeasuredLaunch] = []
        self._slots: dict[str, int] = {}

    def add(
        self,
        trial: int | None,
        blocks: Sequence[BlockResult],
        *,
        host: str = "h",
        role: Role | None = None,
        stage: Stage = Stage.SEARCH,
        pair: int | None = None,
        slot: int | None = None,
        config: ArmConfig | None = None,
    ) -> MeasuredLaunch:
        place = self._slots.get(host, 0) if slot is None else slot
        self._slots[host] = place + 1
        role = role or (Role.BASELINE if trial is None else Role.CANDIDATE)
        if config is None:
            config = (
                BASELINE if role is Role.BASELINE else ArmConfig("EAGLE3", "drafter") if trial is None else ARMS[trial]
            )
        started = START + 600.0 * place
        moved = tuple(
            BlockResult(
                stage,
                b.concurrency,
                b.round,
                b.prompts_hash,
                started + 60 + 30 * n,
                b.elapsed_s,
                b.requests,
                b.client,
                b.gpus,
                b.log_flags,
                b.invalid,
            )
            for n, b in enumerate(blocks)
        )
        found = MeasuredLaunch(
            len(self.launches) + 1, config.key, role, trial, host, stage, place, started, moved, pair
        )
        self.launches.append(found)
        return found

    def analyse(
        self,
        *objectives: Objective,
        settings: AnalysisSettings = THROUGHPUT_ONLY,
        configs: Mapping[str, ArmConfig] = CONFIGS,
    ) -> StudyAnalysis:
        return analyse(self.launches, configs, objectives=objectives or (AT_8,), settings=settings)
