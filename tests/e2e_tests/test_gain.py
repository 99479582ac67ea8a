"""The gain read through the whole pipeline (owner, server process, benchmark client, analysis) against the truth.

The profile says without noise how long every request takes; the simulator's clock, the HTTP path and the client must
not bend the ratio of two arms by more than half a point, at every pair of profile and time scale that is shipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from e2e_helpers import SPACES
from inline import Study

from launchers.simulated import truth
from storage import queries
from sweep.bench.workload import load_prompts
from sweep.config import Overrides, load_space
from sweep.model import ArmConfig, BlockResult, MeasuredLaunch

pytestmark = pytest.mark.clock
POINTS = 0.005
SPACE_OF = {
    (block["profile"], block["time_scale"]): path.stem
    for path in sorted(SPACES.glob("*.yaml"))
    if (block := yaml.safe_load(path.read_text()).get("simulate"))
}
# One arm of each profile's own drafter, with graphs: a clear win, a small effect, a loss.
ARMS = {
    "h200-llama8b": (3, 4, 8),
    "h200-smollm2": (3, 1, 4),
    "kimi-k25-8xgpu": (3, 4, 5),
}


def true_logs(profile: Mapping[str, object], arm: ArmConfig, block: BlockResult, max_tokens: int) -> list[float]:
    """Log speed ratio over the baseline of exactly these requests: the server's own draws, in virtual time."""
    known = {prompt.id: prompt for prompt in load_prompts("builtin").prompts}
    asked = [
        truth.TruePrompt(known[r.prompt_id].messages[-1]["content"], r.category, r.prompt_tokens or 0)
        for r in block.requests
    ]
    plain = truth.simulate_block(profile, ArmConfig(), asked, 1, max_tokens, ignore_eos=True)
    drafted = truth.simulate_block(profile, arm, asked, 1, max_tokens, ignore_eos=True)
    return [math.log(mine / base) for mine, base in zip(drafted.speeds, plain.speeds, strict=True)]


def log_speeds(launch: MeasuredLaunch) -> list[float]:
    return [math.log(request.speed or 0) for block in launch.blocks for request in block.requests]


@pytest.fixture
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("private_home")
@pytest.mark.parametrize(("profile", "scale"), sorted(SPACE_OF), ids=lambda value: str(value))
def test_gain_through_the_pipeline_is_the_truth(tmp_path: Path, profile: str, scale: float) -> None:
    path = SPACES / f"{SPACE_OF[profile, scale]}.yaml"
    steps, topk, draft = ARMS[profile]
    sets = (
        "known_good=[]",
        "server.env={}",  # a forced accept length is not the profile's
        "space.algorithm=[EAGLE3]",
        f"space.num_steps=[{steps}]",
        f"space.topk=[{topk}]",
        f"space.num_draft_tokens=[{draft}]",
        "space.cuda_graph=[true]",
        "workload.per_category=2",
        "workload.max_tokens=160",
        "workload.ignore_eos=true",
        "workload.concurrency=[1]",
        "workload.repeats=1",
        "objectives=[output_throughput@1]",
        "measurement.calibrate_launches=1",
        "measurement.engine_default=false",
        "measurement.confirm_top=0",
        "simulate.trials=1",
    )
    spec = load_space(str(path), Overrides(sets=sets))
    study = Study(tmp_path, path.read_text(), spec=spec)
    assert study.run() == "finished", study.lines
    launches = study.store.measured_launches(study.row.id)
    before, candidate, after = sorted(launches, key=lambda launch: launch.sequence)
    (trial,) = study.trials().values()
    # the profile knows drafters by the path that the server was given
    arm = replace(trial.config, draft_model=spec.drafters[trial.config.draft_model or ""].path)
    assert {r.output_tokens for r in candidate.blocks[0].requests} == {spec.workload.max_tokens}
    expected = true_logs(truth.load(profile), arm, candidate.blocks[0], spec.workload.max_tokens)
    brackets = zip(log_speeds(before), log_speeds(after), strict=True)
    logs = [mine - (b + a) / 2 for mine, (b, a) in zip(log_speeds(candidate), brackets, strict=True)]

    # the median, so that a moment in which this machine was busy elsewhere does not count as the pipeline's error
    error = statistics.median(log - true for log, true in zip(logs, expected, strict=True))
    true = statistics.mean(expected)
    assert math.expm1(true + error) == pytest.approx(math.expm1(true), abs=POINTS)
    # what is printed, where this machine is not quiet to half a point, is within what it says of itself
    (entry,) = queries.best(study.store, study.row.id)["best"]
    gain = entry["gain"]
    assert abs(gain["estimate"] - math.expm1(true)) <= POINTS or gain["low"] <= math.expm1(true) <= gain["high"]
