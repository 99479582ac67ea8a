"""What a real server shows of itself reaches the gates, and what they find reaches every answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sweep.bench import health
from sweep.cli.query import best, show

ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=1")


def test_graphs_retractions_and_throttling_are_flagged_with_evidence(lab):
    # A pool too small for eight requests, graphs for two of them, and a GPU that is hot between the baselines without
    # becoming slower.
    hot = {"effects": {"drift": {"kind": "sawtooth", "period_s": 1e6, "depth": 0.0}}}
    lab.after_launch = lambda event: 0.9e6 if event["role"] == "baseline" else -0.9e6
    load = ("workload.concurrency=[8]", "workload.requests_per_level=8", "objectives=[output_throughput@8]")
    tight = (
        "server.args.max-total-tokens=1024",
        "workload.max_tokens=90",
        "workload.ignore_eos=true",
        "server.args.cuda-graph-bs-decode=[1, 2]",
    )
    study = lab.run(*ONE, *load, *tight, profile=hot)

    (row,) = lab.best(study)["best"]
    assert {"cuda_graph_off", "retractions", "throttled", "simulated"} <= set(row["flags"])
    assert {"cached_tokens", "lengths_differ", "not_comparable"}.isdisjoint(row["flags"])
    shown = lab.show(study, 0)
    assert "cuda graph: False" in shown["flag_evidence"]["cuda_graph_off"]
    assert "retract" in shown["flag_evidence"]["retractions"].lower()
    assert "throttle reasons sw_thermal_slowdown, the baseline before it none" in shown["flag_evidence"]["throttled"]
    (block,) = [b for x in lab.store.measured_launches(study.id) if x.trial == 0 for b in x.blocks]
    assert all(r.cached_tokens is not None and r.retractions is not None for r in block.requests)
    assert block.client.lag_p99_s > 0
    assert block.gpus[0].sm_clock_mhz < 1980
    assert block.gpus[0].temperature_c > 80
    assert block.gpus[0].power_w > 0

    runner, database = CliRunner(), ["--db", f"sqlite:///{lab.folder}/t.db"]
    answer = json.loads(runner.invoke(best, [*database, "--json"]).stdout)
    assert set(row["flags"]) == set(answer["best"][0]["flags"])
    assert "throttled" in runner.invoke(best, database).output
    assert "sw_thermal_slowdown" in runner.invoke(show, ["0", *database]).output


def test_answers_that_do_not_come_are_a_verdict_not_a_figure(lab):
    broken = {"failures": [{"kind": "truncated_json", "when": {"algorithm": "EAGLE3"}, "after_tokens": 70}]}
    study = lab.run(
        *ONE, "measurement.max_attempts=1", "workload.max_tokens=90", "workload.ignore_eos=true", profile=broken
    )
    trial = lab.show(study, 0)
    assert trial["verdict"] == "measurement_invalid"
    assert "requests succeeded" in trial["evidence"]
    assert trial["values"] == {}
    assert lab.best(study)["best"] == []
    assert [len(x["blocks"]) for x in trial["launches"]] == [2]  # measured once more, then given up


def test_a_client_that_was_the_limit_is_a_verdict_and_a_flag(lab, monkeypatch):
    # No client keeps so small a share of a core: the bound is moved for the candidate, everything measured is real.
    def on_event(event):
        if event["kind"] == "trial":
            monkeypatch.setattr(health, "CPU_SHARE_LIMIT", 1e-9)

    monkeypatch.setattr(lab.heard, "on_event", on_event)
    study = lab.run(*ONE, "measurement.max_attempts=1")
    trial = lab.show(study, 0)
    assert trial["verdict"] == "measurement_invalid"
    assert "the client was the limit: it used" in trial["flag_evidence"]["client_limited"]
    assert lab.best(study)["best"] == []


# ---------------------------------------------------------------------------------------------- one gate, both ways

EAGLE3 = {"algorithm": "EAGLE3"}
ROUNDS = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=2", "workload.max_tokens=48")


def test_a_sound_study_has_no_flag_and_no_banner(lab):
    """Every gate keeps quiet: what the tests around make fire are the faults they switch on."""
    study = lab.run(*ROUNDS, "measurement.calibrate_launches=2", profile={"effects": {"request_cv": 0.01}})
    answer = lab.best(study)
    (row,) = answer["best"]
    assert row["flags"] == ["simulated"]
    assert answer["forced_accept_length"] is None
    shown = lab.show(study, 0)
    assert (shown["verdict"], shown["attempt"], len(shown["launches"])) == ("complete", 1, 1)
    assert [b["invalid"] for x in shown["launches"] for b in x["blocks"]] == [None, None]
    text = CliRunner().invoke(best, ["--db", f"sqlite:///{lab.folder}/t.db"]).output
    assert "FORCED" not in text
    assert "do not believe" not in text


def test_a_cache_that_is_not_flushed_and_answers_of_another_length(lab):
    wrong = [{"kind": "flush_ignored", "when": EAGLE3}, {"kind": "answer_length", "when": EAGLE3, "factor": 0.6}]
    study = lab.run(*ROUNDS, "server.env.SGLANG_SIMULATE_ACC_LEN='2.39'", profile={"failures": wrong})
    answer = lab.best(study)
    (row,) = answer["best"]
    assert set(row["flags"]) == {"simulated", "cached_tokens", "lengths_differ", "forced_accept_length"}
    evidence = lab.show(study, 0)["flag_evidence"]
    assert "cached tokens, the shared prefix explains" in evidence["cached_tokens"]
    assert "% long against the baseline's" in evidence["lengths_differ"]
    # a forced accept length stands above everything else
    assert answer["forced_accept_length"] == 2.39
    assert row["accept_length"] == pytest.approx(2.39, abs=0.15)  # what the end of an answer cuts off counts less
    lines = CliRunner().invoke(best, ["--db", f"sqlite:///{lab.folder}/t.db"]).output.splitlines()
    assert lines[1].startswith("ACCEPT LENGTH FORCED to 2.39: ")
    assert lines[1].endswith("it is not a drafter's.")


def test_a_fixed_length_that_one_arm_does_not_keep(lab):
    wrong = [{"kind": "answer_length", "when": EAGLE3, "factor": 0.97}]
    study = lab.run(*ROUNDS, "workload.ignore_eos=true", profile={"failures": wrong})
    assert "lengths_differ" in lab.best(study)["best"][0]["flags"]
    assert "8 of 8 answers differ in length under ignore_eos" in lab.show(study, 0)["flag_evidence"]["lengths_differ"]


def test_counters_that_cannot_be_right_are_a_verdict(lab):
    wrong = [{"kind": "overcounted_drafts", "when": EAGLE3, "factor": 4}]
    study = lab.run(*ROUNDS, "measurement.max_attempts=1", profile={"failures": wrong})
    trial = lab.show(study, 0)
    assert trial["verdict"] == "measurement_invalid"
    assert "impossible accept length" in trial["evidence"]
    assert "emits at most 4 tokens a step" in trial["evidence"]
    assert trial["values"] == {}
    assert lab.best(study)["best"] == []
    (launch,) = trial["launches"]
    assert [block["invalid"] is None for block in launch["blocks"]] == [False, False]  # measured once more


def test_more_than_the_accept_length_allows_is_not_believed_and_the_baseline_is_due(lab):
    """The host is four times as fast for candidates as for baselines: its clock of drift is moved between them."""
    slow = {"effects": {"drift": {"kind": "step", "at_s": 1e6, "factor": 0.25}}}
    lab.after_launch = lambda event: 2e6 if event["trial"] is None else -2e6
    study = lab.run("workload.repeats=1", "budget.trials=2", "measurement.max_attempts=1", profile=slow)
    order = "".join("B" if x.trial is None else str(x.trial) for x in lab.store.launches(study.id))
    assert order == "B0B1B"  # with a baseline every four trials, of which there are two
    row = lab.best(study)["best"][0]
    assert "above_accept_length" in row["flags"]
    assert row["break_even_accept_length"] < 1
    text = CliRunner().invoke(best, ["--db", f"sqlite:///{lab.folder}/t.db"]).output
    assert "more than its accept length allows, so the baseline was measured too slow: do not believe it" in text
