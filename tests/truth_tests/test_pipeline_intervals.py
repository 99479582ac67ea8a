"""The study of `benchmarks/pipeline.py` without processes: do its intervals hold the truth it is judged by?

Blocks come from the simulated server's own scheduler and draws in virtual time, on the prompts of each stage; launches
and blocks differ by what the benchmark's profile says. Where the benchmark finds gains outside their intervals and this
does not, the machine was not quiet.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from launchers.simulated import truth
from sweep.agenda import HostAgenda, Job, confirm_jobs
from sweep.analysis import AnalysisSettings, analyse_figures, extract
from sweep.bench.workload import BUILTIN, load_prompts
from sweep.config import load_text
from sweep.model import (
    BASELINE,
    ArmConfig,
    BlockResult,
    ClientHealth,
    MeasuredLaunch,
    Objective,
    RequestRecord,
    Role,
    Stage,
)
from tests.benchmark_scripts import benchmark

GOAL = Objective("output_throughput", 1, True)
TREES = ((7, 1, 8), (4, 8, 32), (8, 8, 64), (6, 8, 48), (5, 8, 64), (5, 8, 48), (5, 4, 64), (6, 8, 64))
ARMS = [ArmConfig("EAGLE3", "first-eagle3", *tree) for tree in TREES]
TOP = [(4, ARMS[4]), (7, ARMS[7])]
LAUNCH_S = 12.0
STUDIES = 30


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    return benchmark("pipeline")


@dataclass
class Study:
    """Launches in the runner's order. ``launch_cv``, ``block_cv``: standard deviations of logs."""

    pipeline: ModuleType
    seed: int
    launch_cv: float
    block_cv: float
    launches: list[MeasuredLaunch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 3])

    def run(self) -> None:
        measurement = load_text(yaml.safe_dump(self.pipeline.SPACE)).measurement
        agenda = HostAgenda(
            measurement.calibrate_launches, measurement.baseline_every, measurement.baseline_minutes, None
        )
        for trial, arm in enumerate(ARMS):
            while (reference := agenda.reference(self.now)) is not None:
                self.launch(reference)
                agenda.done(reference, self.now, measured=True)
            (job,) = agenda.candidate(trial, arm, 1)
            self.launch(job)
            agenda.done(job, self.now, measured=True)
        last = agenda.last()
        for job in [*([last] if last else []), *confirm_jobs(TOP, measurement.confirm_launches, 1)]:
            self.launch(job)

    @property
    def now(self) -> float:
        return 1.75e9 + LAUNCH_S * len(self.launches)

    def launch(self, job: Job) -> None:
        stage = Stage.CONFIRM if job.stage is Stage.CONFIRM else Stage.SEARCH
        factor = math.exp(math.hypot(self.launch_cv, self.block_cv) * self.rng.standard_normal())
        at, rows = 0.0, []
        for number, (name, category, seconds) in enumerate(exact(self.pipeline, self.seed, stage, job.arm)):
            end = at + factor * seconds
            rows.append(
                RequestRecord(
                    number,
                    name,
                    category,
                    at,
                    at + 0.01,
                    end,
                    prompt_tokens=100,
                    output_tokens=self.pipeline.MAX_TOKENS,
                )
            )
            at = end
        block = BlockResult(stage, 1, 0, stage.value, self.now + 3, at, tuple(rows), ClientHealth(0.0, 0.0, 0.0, 1))
        self.launches.append(
            MeasuredLaunch(
                launch_id=len(self.launches) + 1, arm_key=job.arm.key, role=job.role, trial=job.trial, host="gpu",
                stage=job.stage, sequence=len(self.launches), started_at=self.now, blocks=(block,), pair=job.pair,
            )
        )  # fmt: skip

    def gains(self) -> list[tuple[float, float, float, float]]:
        """(low, estimate, high, truth) of each confirmed arm."""
        settings = AnalysisSettings(metrics=("output_throughput",), ignore_eos=True)
        figures = [extract(launch, ("output_throughput",)) for launch in self.launches]
        found = analyse_figures(figures, {arm.key: arm for arm in (BASELINE, *ARMS)}, [GOAL], settings)
        out = []
        for trial, arm in TOP:
            row = found.find(trial, GOAL.metric, GOAL.concurrency)
            assert row is not None
            assert row.gain is not None
            assert row.gain.stage is Stage.CONFIRM
            true = self.pipeline.true_throughput(arm) / self.pipeline.true_throughput(BASELINE) - 1.0
            out.append((row.gain.low, row.gain.estimate, row.gain.high, true))
        return out


@functools.cache
def exact(pipeline: ModuleType, seed: int, stage: Stage, arm: ArmConfig) -> list[tuple[str, str, float]]:
    """(prompt, category, noise-free seconds) of a block."""
    chosen = load_prompts(BUILTIN, pipeline.CATEGORIES).for_stage(stage, seed, 6)
    path = next((path for path in pipeline.DRAFTERS if Path(path).name == arm.draft_model), None)
    prompts = [truth.TruePrompt(p.messages[-1]["content"], p.category, 100) for p in chosen]
    block = truth.simulate_block(
        pipeline.profile(), replace(arm, draft_model=path), prompts, 1, pipeline.MAX_TOKENS, ignore_eos=True
    )
    return [(p.id, p.category, seconds) for p, seconds in zip(chosen, block.request_s, strict=True)]


def test_confirmed_gains_hold_the_truth_as_often_as_they_say(pipeline: ModuleType) -> None:
    effects = pipeline.profile()["effects"]
    gains = []
    for seed in range(STUDIES):
        study = Study(pipeline, seed, effects["launch_cv"], effects["block_cv"])
        study.run()
        assert {launch.role for launch in study.launches} == {Role.BASELINE, Role.CANDIDATE}
        gains += study.gains()
    inside = sum(low <= true <= high for low, _, high, true in gains)
    assert inside >= 0.87 * len(gains)  # 95 %, less two standard errors and a half
    assert np.mean([high - low for low, _, high, _ in gains]) < 0.2  # and not because they are wide
    bias = np.mean([(1 + estimate) / (1 + true) - 1 for _, estimate, _, true in gains])
    assert abs(bias) < 0.006  # three standard errors: nothing is left out of the closed form


def test_without_noise_only_the_choice_of_prompts_is_left(pipeline: ModuleType) -> None:
    study = Study(pipeline, 1, 0.0, 0.0)
    study.run()
    for _, estimate, _, true in study.gains():
        assert (1 + estimate) / (1 + true) == pytest.approx(1.0, abs=0.015)
