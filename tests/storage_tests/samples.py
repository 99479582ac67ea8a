"""Small values to fill a store with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage.records import StudyRow
from storage.store import Store
from sweep.model import (
    ArmConfig,
    ArmGain,
    Basis,
    BlockResult,
    ClientHealth,
    Comparison,
    Constraint,
    Diagnosis,
    Effective,
    Gain,
    GpuTelemetry,
    Objective,
    Phase,
    RequestRecord,
    Retry,
    Stage,
    Verdict,
)

SPEED = Objective("output_throughput", 1, True)
LATENCY = Objective("ttft_p50", 1, False)
ARM = ArmConfig("EAGLE3", "k25-custom", 3, 4, 5)


@dataclass(frozen=True)
class Server:
    """What the store needs to know of a launched server."""

    argv: tuple[str, ...] = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/a b")
    started_at: float = 1000.0
    pid: int | None = 41
    port: int | None = 30000
    marker: str | None = "study/1/1/abc"
    run_dir: str | None = "/srv/u/.specsweep/1"
    log_path: str | None = "/srv/u/.specsweep/1/server.log"
    phases: Mapping[str, float] = field(default_factory=lambda: {"weights": 12.5})
    ready_s: float | None = 30.0
    effective: Effective | None = None
    server_info: Mapping[str, Any] = field(default_factory=lambda: {"tp_size": 1})


def request(index: int, *, seconds: float = 1.0, tokens: int | None = 100, error: str | None = None) -> RequestRecord:
    category = ("code", "math")[index % 2]
    sent = float(index)
    if error is not None:
        return RequestRecord(index, f"p{index}", category, sent, None, sent + seconds, error=error)
    return RequestRecord(
        index,
        f"p{index}",
        category,
        sent,
        0.05,
        sent + seconds,
        prompt_tokens=20,
        cached_tokens=0,
        output_tokens=tokens,
        token_source="meta",
        verify_steps=50,
        correct_drafts=55,
        accept_histogram=(10, 25, 15),
        finish_reason="stop",
        retractions=0,
        chunks=50,
        output_ids=(1, 2, index),
    )


def block(
    *,
    stage: Stage = Stage.SEARCH,
    concurrency: int = 1,
    round: int = 0,
    seconds: float = 1.0,
    invalid: str | None = None,
) -> BlockResult:
    requests = tuple(request(i, seconds=seconds) for i in range(4))
    return BlockResult(
        stage=stage,
        concurrency=concurrency,
        round=round,
        prompts_hash="abcdefabcdef",
        started_at=2000.0,
        elapsed_s=4 * seconds,
        requests=requests,
        client=ClientHealth(0.0001, 0.001, 0.1, 200, rtt_s=0.002),
        gpus=(GpuTelemetry("GPU-1", 1980.0, 55.0, 400.0, ("sw_power_cap",)),),
        log_flags={"retractions": "line \u2603"},
        invalid=invalid or None,
    )


def create(store: Store, name: str = "kimi", **changes: Any) -> StudyRow:
    values: dict[str, Any] = {
        "engine": "sglang",
        "spec": {"server": {"env": {"NCCL_PROTO": "LL 128", "HF_TOKEN": "${HF_TOKEN}"}}},
        "yaml": "name: kimi\n",
        "space_hash": "abc",
        "seed": 1,
        "tool_version": "0.1",
        "objectives": (SPEED, LATENCY),
        "constraints": (Constraint("ttft_p99", None, True, 200.0, "ttft_p99 < 200 ms"),),
    }
    return store.create_study(name, **(values | changes))


FAILED = Diagnosis(Verdict.CRASHED, Phase.BENCHMARK, "crashed", "Segmentation fault", "See the log")
OOM = Diagnosis(
    Verdict.LAUNCH_OOM,
    Phase.GRAPH_CAPTURE,
    "gpu_oom",
    "torch.OutOfMemoryError: CUDA out of memory",
    "Lower --mem-fraction-static to 0.8",
    Retry.NEVER,
    dominates=("num_draft_tokens",),
    log_path="/logs/1",
    log_tail=("a", "b\0c"),
)


def gain(
    trial: int | None, estimate: float, *, stage: Stage = Stage.SEARCH, word: Comparison | None = None, **changes: Any
) -> ArmGain:
    value = Gain(estimate, estimate - 0.015, estimate + 0.015, Basis.BRACKETED, stage)
    word = word or (Comparison.FASTER if value.low > 0 else Comparison.SLOWER if value.high < 0 else Comparison.TIE)
    base = {"metric": SPEED.metric, "concurrency": 1, "category": None, "reference": "baseline"}
    figures = {"value": 90 * (1 + estimate), "accept_length": 2.12, "break_even": 2.12 / (1 + estimate)}
    return ArmGain(trial=trial, comparison=word, gain=value, **(base | figures | changes))


def ranking(*places: tuple[int, int]) -> dict[str, Any]:
    return {SPEED.key: [{"trial": trial, "rank": rank} for trial, rank in places]}


def complete(
    store: Store, study: StudyRow, arms: Sequence[ArmConfig], flags: dict[int, dict[str, str]] | None = None
) -> None:
    for number, arm in enumerate(arms):
        store.add_trial(study.id, arm, origin="sampler")
        store.finish_trial(
            study.id, number, values={SPEED.key: 80.0 + number, LATENCY.key: 40.0}, flags=(flags or {}).get(number)
        )


def arm(draft_tokens: int) -> ArmConfig:
    return replace(ARM, num_draft_tokens=draft_tokens)
