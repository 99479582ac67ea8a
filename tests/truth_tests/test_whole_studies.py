"""Three whole studies on simulated servers that drift and are noisy, against what they would measure without.

Real server processes, the real client, rows, analysis and `best`; owners in this process. What the profile would show
without noise is known for exactly the requests that were sent (``launchers.simulated.truth``). Three studies show that
the parts fit together, not that 95 % are 95 %: that is `benchmarks/truth.py`'s affair.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from launchers.engines.simulated import profile_text
from launchers.simulated import truth
from storage import reading
from storage.records import StudyRow
from sweep.bench.workload import load_prompts
from sweep.model import ArmConfig, ArmGain, MeasuredLaunch, Role, Stage
from tests.pairing_tests.conftest import Lab, lab  # noqa: F401 -- a fixture

pytestmark = [pytest.mark.clock, pytest.mark.long]

WIN, EVEN, LOSS = (3, 1, 4), (1, 1, 2), (15, 1, 16)
TOKENS = 48
COMMON = (
    f"workload.max_tokens={TOKENS}",
    "workload.ignore_eos=true",
    "measurement.tolerance=0.2",  # ten minutes of a night's drift pass here within seconds
    "measurement.max_attempts=2",
)
NOISE = {"launch_cv": 0.01, "block_cv": 0.003, "request_cv": 0.01}


def servers() -> dict[str, Any]:
    """The tiny profile with dearer drafting: WIN gains a third, LOSS loses a sixth. So much that a busy machine,
    which disturbs blocks of half a second by several per cent, widens the intervals but decides nothing."""
    profile: dict[str, Any] = json.loads(profile_text("tiny"))
    profile["timing"]["spec"]["step"] = 0.2
    return profile


def arms(*wanted: tuple[int, int, int]) -> tuple[str, ...]:
    return (
        f"space.num_steps={sorted({a[0] for a in wanted})}",
        f"space.num_draft_tokens={sorted({a[2] for a in wanted})}",
        f"budget.trials={len(wanted)}",
    )


def true_gain(profile: Mapping[str, Any], arm: ArmConfig, launch: MeasuredLaunch) -> float:
    """Log gain over the baseline that this launch's requests have in virtual time, without any noise."""
    known = {prompt.id: prompt for prompt in load_prompts("builtin").prompts}
    arm = ArmConfig(arm.algorithm, "some/eagle3-head", arm.num_steps, arm.topk, arm.num_draft_tokens)
    logs: list[float] = []
    for block in launch.blocks:
        asked = [
            truth.TruePrompt(known[r.prompt_id].messages[-1]["content"], r.category, r.prompt_tokens or 0)
            for r in block.requests
        ]
        found = [
            truth.simulate_block(profile, config, asked, block.concurrency, TOKENS, ignore_eos=True, max_running=8)
            for config in (arm, ArmConfig())
        ]
        if block.concurrency == 1:
            logs += [math.log(mine / base) for mine, base in zip(found[0].speeds, found[1].speeds, strict=True)]
        else:
            logs.append(math.log(found[0].throughput / found[1].throughput))
    return statistics.fmean(logs)


class Judged:
    """A finished study beside the truth."""

    def __init__(self, lab: Lab, study: StudyRow, profile: Mapping[str, Any], level: int = 1) -> None:  # noqa: F811
        self.answer = lab.best(study)
        self.analysis: Mapping[str, Any] = lab.store.analysis(study.id) or {}
        self.rows = {row["trial"]: row for row in self.answer["best"]}
        self.launches = lab.store.measured_launches(study.id)
        self.numbers = {
            (t.config.num_steps, t.config.topk, t.config.num_draft_tokens): t.number for t in lab.store.trials(study.id)
        }
        gains = reading.gains(lab.store, study.id)
        self.gains: dict[int, ArmGain] = {
            g.trial: g
            for g in gains
            if g.trial is not None
            and (g.metric, g.concurrency, g.category, g.reference) == ("output_throughput", level, None, "baseline")
        }
        self.configs = {t.number: t.config for t in lab.store.trials(study.id)}
        self._profile = profile

    def of(self, arm: tuple[int, int, int]) -> dict[str, Any]:
        row: dict[str, Any] = self.rows[self.numbers[arm]]
        return row

    def truth(self, trial: int, stage: Stage) -> float:
        mine = [x for x in self.launches if x.trial == trial and x.stage is stage]
        return statistics.fmean(true_gain(self._profile, self.configs[trial], launch) for launch in mine)

    def intervals(self) -> list[tuple[float, float, float]]:
        """(low, truth, high) of every reported gain and of every search gain beside it."""
        out = []
        for trial, line in self.gains.items():
            for gain in (line.gain, line.search_gain):
                if gain is not None:
                    out.append((gain.low, math.expm1(self.truth(trial, gain.stage)), gain.high))
        return out

    def off(self) -> list[float]:
        """How many standard errors each reported gain lies from the truth."""
        return [
            (math.log1p(line.gain.estimate) - self.truth(trial, line.gain.stage)) / line.log_se
            for trial, line in self.gains.items()
            if line.gain is not None and line.log_se
        ]

    def require_truth(self) -> None:
        """No gain is far from the truth, and not more than one interval in this study misses it."""
        assert max(map(abs, self.off())) < 4, self.off()
        missed = [found for found in self.intervals() if not found[0] <= found[1] <= found[2]]
        assert len(missed) <= 1, missed

    def require_flags(self) -> None:
        """Nothing is wrong with these servers; the slow arm may have been screened out."""
        flags = {number: set(row["flags"]) for number, row in self.rows.items()}
        assert flags.pop(self.numbers[WIN]) == {"simulated"}
        assert all(more <= {"simulated", "screened_out"} for more in flags.values())


def even_profile(base: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with the cost of drafting at which EVEN gains exactly nothing on the whole prompt set."""
    asked = [
        truth.TruePrompt(p.messages[-1]["content"], p.category, 40)
        for p in load_prompts("builtin", ("code", "writing")).prompts
    ]
    arm = ArmConfig("EAGLE3", "some/eagle3-head", *EVEN)

    def gain(cost: float) -> tuple[float, dict[str, Any]]:
        timing = dict(base["timing"])
        timing["spec"] = {**timing["spec"], "base": cost}
        profile = {**base, "timing": timing}
        mine, plain = (
            truth.simulate_block(profile, config, asked, 1, TOKENS, ignore_eos=True) for config in (arm, ArmConfig())
        )
        return statistics.fmean(math.log(a / b) for a, b in zip(mine.speeds, plain.speeds, strict=True)), profile

    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle)[0] > 0 else (low, middle)
    return gain(low)[1]


def run(
    lab: Lab,  # noqa: F811
    effects: Mapping[str, Any],
    *sets: str,
    base: Mapping[str, Any] | None = None,
) -> tuple[StudyRow, dict[str, Any]]:
    profile = {**(base or servers()), "effects": effects}
    return lab.run(*COMMON, *sets, profile=profile), profile


def raw(launches: Sequence[MeasuredLaunch]) -> list[float]:
    """Mean log speed of each launch, in order of time."""
    ordered = sorted(launches, key=lambda launch: launch.sequence)
    return [
        statistics.fmean(math.log(r.speed or 1.0) for block in launch.blocks for r in block.requests)
        for launch in ordered
    ]


def test_a_ramp_does_not_reach_the_gains(lab: Lab) -> None:  # noqa: F811
    """The host loses half of its speed within a minute and a half."""
    per_hour = 30.0
    study, profile = run(
        lab,
        {**NOISE, "drift": {"kind": "ramp", "per_hour": per_hour}},
        *arms(WIN, LOSS),
        "measurement.calibrate_launches=2",
        "measurement.baseline_every=1",
        "measurement.confirm_top=1",
        "sampler=grid",
    )
    found = Judged(lab, study, profile)
    found.require_truth()
    found.require_flags()
    (drift,) = found.analysis["drift"]
    assert drift["per_hour"] < 0
    assert abs(drift["per_hour"] + per_hour) < 4 * drift["per_hour_se"] + 4.0, drift
    # the baseline measured once, at the start, would have been wrong by far more than the corrected figure is
    searched = [x for x in found.launches if x.stage is not Stage.CONFIRM]
    first = raw([x for x in searched if x.role is Role.BASELINE])[0]
    last = max((x for x in searched if x.trial is not None), key=lambda x: x.sequence)
    assert last.trial is not None
    naive = raw([last])[0] - first - found.truth(last.trial, Stage.SEARCH)
    assert naive < -0.015
    win = found.of(WIN)
    assert (win["rank"], win["comparison"], win["gain"]["stage"]) == (1, "faster", "confirm")
    assert found.answer["beats_baseline"]


def test_an_arm_that_gains_nothing_ends_in_a_tie(lab: Lab) -> None:  # noqa: F811
    """Heavy tails, launches that differ and a thermal sawtooth; one arm is worth exactly the baseline."""
    base = even_profile(servers())
    study, profile = run(
        lab,
        {
            **NOISE,
            "heavy_tail": {"probability": 0.02, "factor": 1.3},
            "drift": {"kind": "sawtooth", "period_s": 15.0, "depth": 0.02},
        },
        *arms(EVEN),
        "measurement.calibrate_launches=2",
        "measurement.confirm_top=1",
        base=base,
    )
    found = Judged(lab, study, profile)
    found.require_truth()
    even = found.of(EVEN)
    assert even["comparison"] == "tie"
    assert even["gain"]["low"] < 0 < even["gain"]["high"]
    assert not found.answer["beats_baseline"]
    assert "nothing is shown to beat the baseline" in found.answer["sentences"][0]


def test_two_hosts_of_different_speed_are_compared_through_their_own_baselines(lab: Lab) -> None:  # noqa: F811
    """Under load the round is the unit; the second host is a fifth slower, which no gain may show."""
    hosts = ", ".join(f"{{name: {n}, kind: local, gpus: 1, base_dir: {lab.folder}/{n}}}" for n in ("fast", "slow"))
    study, profile = run(
        lab,
        {**NOISE, "host": {"slow": 1.2}, "drift": {"kind": "step", "at_s": 6.0, "factor": 1.03}},
        *arms(WIN, LOSS),
        f"hosts=[{hosts}]",
        "workload.concurrency=[4]",
        "workload.requests_per_level=8",
        "workload.repeats=3",
        "objectives=[output_throughput@4]",
        "measurement.calibrate_launches=2",
        "sampler=grid",
    )
    found = Judged(lab, study, profile, level=4)
    found.require_truth()
    found.require_flags()
    assert {x.host for x in found.launches if x.trial is not None} == {"fast", "slow"}
    assert found.of(WIN)["comparison"] == "faster"
    assert found.of(LOSS)["rank"] > found.of(WIN)["rank"]
    # the hosts do differ: by the least disturbed block of each, whatever else this machine was doing
    levels = {
        host: max(
            math.log(b.output_tokens / b.elapsed_s)
            for x in found.launches
            if x.role is Role.BASELINE and x.host == host
            for b in x.blocks
        )
        for host in ("fast", "slow")
    }
    assert levels["fast"] - levels["slow"] > math.log(1.2) / 2
