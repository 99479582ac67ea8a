"""A study made by hand, quickly: rows as a controller writes them, figures from a small model of an engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from storage.records import StudyRow, StudyState
from storage.store import Store
from sweep.analysis import analyse
from sweep.config import StudySpec, load_text
from sweep.model import (
    ArmConfig,
    BlockResult,
    ClientHealth,
    Diagnosis,
    Effective,
    Gpu,
    GpuTelemetry,
    HostFacts,
    MeasuredLaunch,
    Phase,
    RequestRecord,
    Role,
    Stage,
    Verdict,
)
from tests.storage_tests.samples import Server

EVIL = "<script>window.hacked=1</script>"
YAML = """
name: night
engine: sglang
engine_version: 0.5.23
model: {path: "/models/target"}
server:
  args: {tp-size: 2, attention-backend: triton, page-size: 1}
  env: {NCCL_PROTO: "LL 128", HF_TOKEN: "${HF_TOKEN}"}
space:
  algorithm: [EAGLE3]
  draft_model:
    - {name: good, path: /drafters/good}
    - {name: other, path: /drafters/other}
  num_steps: [1, 3]
  topk: [1, 4]
  num_draft_tokens: [8]
workload: {concurrency: [1, 8, 32], per_category: 2}
objectives: [output_throughput@1, output_throughput@32]
budget: {trials: 6}
hosts: [{name: gpu-a, kind: local, gpus: [0, 1]}]
"""
SPEED = {1: 100.0, 8: 640.0, 32: 1600.0}  # tok/s without speculation
CATEGORIES = {"code": 1.10, "math": 0.90}
TOKENS, START = 100, 1_700_000_000.0

SHORT = ArmConfig("EAGLE3", "good", 1, 1, 2)
LONG = ArmConfig("EAGLE3", "good", 3, 1, 4)
TREE = ArmConfig("EAGLE3", "other", 3, 4, 8)
STRANGE = ArmConfig("EAGLE3", EVIL, 3, 4, 8)
# Arm -> its speed over no speculation at each level: the longer the draft, the more it loses with the load.
RATIO = {
    SHORT: {1: 1.20, 8: 1.15, 32: 1.06},
    LONG: {1: 1.40, 8: 1.12, 32: 0.90},
    TREE: {1: 1.30, 8: 1.00, 32: 0.80},
    STRANGE: {1: 0.80, 8: 0.70, 32: 0.60},
}


def make(
    store: Store,
    name: str = "night",
    *,
    faster: float = 1.0,
    failed: Iterable[ArmConfig] = (),
    arms: Iterable[ArmConfig] = tuple(RATIO),
    baseline: bool = True,
    yaml: str = YAML,
) -> StudyRow:
    """Measured arms (those ``failed`` end without figures), one that dies at launch with evil evidence, one left.

    ``faster`` multiplies every candidate's speed, not the baseline's. Without ``baseline`` (and arms) nothing is
    measured at all.
    """
    arms = tuple(arms)
    spec: StudySpec = load_text(yaml)
    study = store.create_study(
        name,
        engine=spec.engine,
        spec=spec.dump(),
        yaml=yaml,
        space_hash="abc",
        seed=spec.seed,
        tool_version="0.1",
        objectives=spec.goals,
        constraints=spec.limits,
        notes=[{"pin": "random-seed", "value": 1, "why": EVIL}],
    )
    gpus = tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200", 143771, 0) for n in range(2))
    facts = HostFacts("gpu-a", "local", "a", "u", "m", "b", "/py", "3.11", "0.5.23", gpus, (), "580", 1, 0.0, 0.0)
    store.add_host(study.id, "gpu-a", "local", facts)
    measured: list[MeasuredLaunch] = [_launch(store, study, ArmConfig(), None, 0)] if baseline else []
    lost = set(failed)
    for number, arm in enumerate(arms):
        store.add_trial(study.id, arm, origin="sampler", why="to learn")
        store.start_trial(study.id, number, "gpu-a")
        if arm in lost:
            store.finish_trial(study.id, number, DIED)
            continue
        measured.append(_launch(store, study, arm, number, len(measured), faster))
        store.finish_trial(study.id, number, effective=Effective(arm, {"tp_size": 2}, version="0.5.23"))
        measured.append(_launch(store, study, ArmConfig(), None, len(measured)))
        store.add_event(study.id, None, "outputs", _outputs(number, differs=arm == STRANGE))
    store.add_trial(study.id, ArmConfig("EAGLE3", "other", 1, 4, 8), origin="sampler")
    store.finish_trial(study.id, len(arms), DIED)
    store.add_trial(study.id, ArmConfig("EAGLE3", "other", 1, 1, 2), origin="sampler")
    if not measured:
        return store.study_by_id(study.id)
    found = analyse(measured, store.arm_configs(study.id), objectives=spec.goals)
    store.replace_analysis(study.id, found.gains, found.as_dict())
    for number in range(len(arms)):
        values = {o.key: found.value(number, o) for o in spec.goals}
        figures = {key: pair[0] for key, pair in values.items() if pair is not None}
        errors = {key: pair[1] for key, pair in values.items() if pair is not None}
        if figures:
            store.update_trial_values(study.id, number, values=figures, stderr=errors, constraints={}, flags={})
    store.set_state(study.id, StudyState.FINISHED)
    return store.study_by_id(study.id)


def _outputs(trial: int, *, differs: bool) -> dict[str, Any]:
    """What the same-output check stores of a trial, as `sweep.outputs` makes it."""
    return {
        "trial": trial,
        "prompts": 8,
        "same": 1,
        "near_ties": 4 if differs else 7,
        "largest_near_tie_nat": 0.31,
        "differences": 3 if differs else 0,
        "unclear": 0,
        "share": 3 / 8 if differs else 0.0,
        "baseline_share": 0.0,
        "differs": differs,
        "example": f"prompt p1, token 7: {EVIL}" if differs else None,
    }


DIED = Diagnosis(
    Verdict.LAUNCH_OOM, Phase.GRAPH_CAPTURE, "gpu_oom", f"out of memory {EVIL}", "Lower --mem-fraction-static"
)


def _launch(
    store: Store, study: StudyRow, arm: ArmConfig, trial: int | None, place: int, faster: float = 1.0
) -> MeasuredLaunch:
    role = Role.BASELINE if trial is None else Role.CANDIDATE
    row = store.begin_launch(
        study.id, arm=arm, role=role, host="gpu-a", stage=Stage.SEARCH, sequence=place, trial=trial
    )
    server = Server(effective=Effective(arm, {"tp_size": 2, "model_path": EVIL}, version="0.5.23"))
    store.launch_started(row, server)
    store.launch_ready(row, server)
    at = START + 300.0 * place
    blocks = tuple(_block(arm, level, turn, at, place, faster) for turn in range(2) for level in SPEED)
    for block in blocks:
        store.add_block(row, block)
    store.finish_launch(row, None)
    return MeasuredLaunch(row, arm.key, role, trial, "gpu-a", Stage.SEARCH, place, at, blocks)


def _block(arm: ArmConfig, level: int, turn: int, at: float, place: int, faster: float) -> BlockResult:
    wobble = 1 + 0.002 * ((7 * place + 3 * turn) % 5 - 2)  # launches differ by a little, always the same
    speed = SPEED[level] * wobble * (RATIO[arm][level] * faster if arm.speculative else 1.0)
    requests: list[RequestRecord] = []
    clock = [0.0] * level
    for index in range(max(8, 2 * level)):
        category = ("code", "math")[index % 2]
        lane = index % level
        share = CATEGORIES[category] if arm.speculative else 1.0
        took = TOKENS / (speed / level * share)
        steps, accepted = (50, 55) if arm.speculative else (None, None)
        requests.append(
            RequestRecord(
                index, f"p{index % 8}", category, clock[lane], 0.05, clock[lane] + took, prompt_tokens=20,
                cached_tokens=0, output_tokens=TOKENS, token_source="meta", verify_steps=steps, correct_drafts=accepted,
                accept_histogram=(10, 25, 15) if steps else None, finish_reason="stop", chunks=50,
            )
        )  # fmt: skip
        clock[lane] += took
    return BlockResult(
        Stage.SEARCH, level, turn, "abcdefabcdef", at + 10 * turn, max(clock), tuple(requests),
        ClientHealth(0.0001, 0.001, 0.1, 200, rtt_s=0.0, prompt_format="chat_template"),
        (GpuTelemetry("GPU-0", 1980.0, 55.0, 400.0),),
    )  # fmt: skip
