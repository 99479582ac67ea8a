"""Loads that people have, each through a whole study: open loop with goodput, sampling with seeds, lossy acceptance."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sweep.bench.clock import in_real_time
from sweep.config import Overrides, load_text
from sweep.errors import ConfigError
from sweep.model import BlockSpec, Stage

from .conftest import SPACE  # type: ignore[import-not-found]  # pytest's importlib mode

ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=1")


def blocks_of(lab, study, trial: int | None):
    return [b for x in lab.store.measured_launches(study.id) if x.trial == trial for b in x.blocks]


def test_an_open_loop_over_chat_is_judged_by_goodput(lab):
    study = lab.run(
        *ONE,
        "workload.request_rate=20",
        "workload.requests_per_level=12",
        "workload.slo={ttft_ms: 10000}",
        "workload.endpoint=chat",
        "workload.chat_template_args={enable_thinking: false}",
        "objectives=[goodput@1]",
        "constraints=[goodput > 1]",
    )
    (row,) = lab.best(study)["best"]
    (block,) = lab.show(study, 0)["launches"][0]["blocks"]
    # Twelve arrivals, about a twentieth of a second apart; each keeps so mild an objective.
    assert block["n_ok"] == 12
    assert 5 < block["goodput"] < 40
    assert block["goodput"] == pytest.approx(block["request_throughput"])
    assert row["value"] == pytest.approx(block["goodput"], rel=0.5)
    assert row["feasible"]
    assert row["gain"] is not None
    # Nobody waited for a free slot, and the arrivals are the same on every arm.
    (mine,), (before, _) = blocks_of(lab, study, 0), blocks_of(lab, study, None)
    sent = [[r.sent_s - b.requests[0].sent_s for r in b.requests] for b in (mine, before)]
    assert sent[0] == pytest.approx(sent[1], abs=0.05)
    assert mine.client.prompt_format == "chat_endpoint"
    # Chat answers carry no token ids: outputs cannot be compared, and nothing is claimed about them.
    assert lab.store.events(study.id, kind="outputs") == []


def test_sampling_has_its_seeds_and_lossy_arms_are_a_class_of_their_own(lab):
    study = lab.run(
        *ONE,
        "budget.trials=2",
        "workload.temperature=0.8",
        "workload.seed=5",
        "workload.chat_template_args={enable_thinking: false}",
        "space.args.speculative-accept-threshold-single=[0.5, 1.0]",
    )
    # Seeded sampling draws the same answers on every launch of the baseline.
    first, last = ([r.output_tokens for r in b.requests] for b in blocks_of(lab, study, None))
    assert first == last
    assert lab.store.events(study.id, kind="outputs") == []  # sampled texts part by design
    lossless, lossy = lab.best(study)["best"], lab.best(study, lossy=True)["best"]
    assert [row["config"]["args"]["speculative-accept-threshold-single"] for row in lossless] == [1.0]
    assert [row["config"]["args"]["speculative-accept-threshold-single"] for row in lossy] == [0.5]
    assert [row["lossy"] for row in (*lossless, *lossy)] == [False, True]
    ranked = lab.store.analysis(study.id)["ranking"]["output_throughput@1"]
    assert [line["trial"] for line in ranked] == [lossless[0]["trial"]]
    points = {point["trial"]: point for point in lab.pareto(study)["points"]}
    assert not points[lossy[0]["trial"]]["on_front"]
    assert points[lossless[0]["trial"]]["on_front"]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("objectives=[goodput@1]",), "workload.slo: goodput counts requests that keep workload.slo"),
        (("workload.request_rate=5", "workload.concurrency=[1, 4]"), "workload.concurrency: with request_rate"),
    ],
)
def test_loads_that_make_no_sense_are_refused(sets, words):
    with pytest.raises(ConfigError, match=words):
        load_text(SPACE.replace("BASE", "host"), Overrides(sets=sets), source="space.yaml")


def test_arrivals_keep_the_engines_clock():
    spec = BlockSpec(Stage.SEARCH, 1, 0, (), 8, request_rate=10.0)
    assert in_real_time(spec, 0.5).request_rate == 20.0  # twice as fast a clock: twice the requests per real second
    closed = replace(spec, request_rate=None)
    assert in_real_time(closed, 0.5) == closed


def test_long_prompts_are_a_category_with_a_gain_of_its_own(lab):
    lines = [
        {"id": f"{kind}-{k}", "category": kind, "prompt": f"{k}. " + "The river runs past the mill. " * repeats}
        for kind, repeats in (("short", 1), ("long", 300))
        for k in range(2)
    ]
    prompts = lab.folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    study = lab.run(*ONE, f"workload.prompts={prompts}", "workload.categories=null", "workload.per_category=1")
    (candidate,) = blocks_of(lab, study, 0)
    first = {r.category: r for r in candidate.requests}
    assert set(first) == {"short", "long"}
    assert first["long"].prompt_tokens > 50 * first["short"].prompt_tokens
    # What a long prompt costs before the first token is seen, and each length has a gain of its own.
    assert first["long"].ttft_s > first["short"].ttft_s
    gains = {g["category"] for g in lab.show(study, 0)["gains"] if g["metric"] == "output_throughput"}
    assert gains == {None, "short", "long"}
