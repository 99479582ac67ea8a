"""A study's rows made by hand, with throughputs and accept lengths of the test's own choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from search_spaces.space import SearchSpace
from storage.records import StudyRow
from storage.store import Store
from sweep.config import load_text
from sweep.model import (
    BASELINE,
    ArmConfig,
    BlockResult,
    ClientHealth,
    Diagnosis,
    Gpu,
    HostFacts,
    Objective,
    RequestRecord,
    Role,
    Stage,
)
from tests.storage_tests.samples import Server

YAML = """
name: {name}
engine: sglang
model: {{path: {model}}}
server: {{args: {{attention-backend: triton, page-size: 1}}}}
space:
  algorithm: [EAGLE3]
  draft_model: [{{name: head, path: {drafter}}}]
  num_steps: [1, 2, 3, 4, 5, 6]
  topk: [1, 4]
  num_draft_tokens: [4, 5, 8, 16]
  cuda_graph: [true, false]
workload: {{concurrency: [1, 16], categories: [code]}}
objectives: [output_throughput@1, output_throughput@16]
hosts: [{{name: gpu-a, kind: local, gpus: [0]}}]
"""
GOALS = (Objective("output_throughput", 1, True), Objective("output_throughput", 16, True))
Truth = Callable[[ArmConfig, int], tuple[float, float]]  # -> tokens/s, accept length


def yaml(name: str = "night", model: str = "/models/target", drafter: str = "/drafters/head", more: str = "") -> str:
    return YAML.format(name=name, model=model, drafter=drafter) + more


def fill(
    store: Store,
    arms: Mapping[ArmConfig, Diagnosis | None],
    truth: Truth,
    *,
    text: str | None = None,
    gpu: str = "NVIDIA H200",
) -> StudyRow:
    """A study with one baseline and these arms, measured or failed; ``truth`` says what they show."""
    spec = load_text(text or yaml())
    SearchSpace.from_spec(spec)
    study = store.create_study(
        spec.name, engine=spec.engine, spec=spec.dump(), yaml=text or yaml(), space_hash="x", seed=1,
        tool_version="0", objectives=spec.goals, constraints=(),
    )  # fmt: skip
    gpus = (Gpu(0, "GPU-0", gpu, 143771, 0),)
    store.add_host(
        study.id, "gpu-a", "local",
        HostFacts("gpu-a", "local", "a", "u", "m", "b", "/py", "3.11", "0.5.23", gpus, (), "580", 1, 0.0, 0.0),
    )  # fmt: skip
    launch(store, study, BASELINE, None, 0, truth)
    for arm, failed in arms.items():
        add(store, study, arm, truth, failed)
    return store.study_by_id(study.id)


def add(store: Store, study: StudyRow, arm: ArmConfig, truth: Truth, failed: Diagnosis | None = None) -> int:
    """One more trial, measured or failed; its number."""
    number = store.add_trial(study.id, arm, origin="sampler", why="to learn").number
    store.start_trial(study.id, number, "gpu-a")
    if failed is None:
        launch(store, study, arm, number, number + 1, truth)
    store.finish_trial(study.id, number, failed)
    if failed is None:
        values = {goal.key: truth(arm, goal.concurrency)[0] for goal in GOALS}
        errors = {key: 0.01 * value for key, value in values.items()}
        store.update_trial_values(study.id, number, values=values, stderr=errors, constraints={}, flags={})
    return number


def launch(store: Store, study: StudyRow, arm: ArmConfig, trial: int | None, place: int, truth: Truth) -> None:
    role = Role.BASELINE if trial is None else Role.CANDIDATE
    row = store.begin_launch(
        study.id, arm=arm, role=role, host="gpu-a", stage=Stage.SEARCH, sequence=place, trial=trial
    )
    store.launch_started(row, Server())
    store.launch_ready(row, Server())
    for goal in GOALS:
        store.add_block(row, block(goal.concurrency, *truth(arm, goal.concurrency), speculative=arm.speculative))
    store.finish_launch(row, None)


def block(level: int, speed: float, length: float, *, speculative: bool) -> BlockResult:
    """``level`` requests of 1,000 tokens at once."""
    tokens, steps = 1000, round(1000 / length)
    seconds = tokens * level / speed
    requests = tuple(
        RequestRecord(
            index, f"p{index}", "code", 0.0, 0.01, seconds, prompt_tokens=20, output_tokens=tokens,
            verify_steps=steps if speculative else None, correct_drafts=tokens - steps if speculative else None,
        )
        for index in range(level)
    )  # fmt: skip
    return BlockResult(Stage.SEARCH, level, 0, "h", 1000.0, seconds, requests, ClientHealth(0.0, 0.0, 0.0, 1))
