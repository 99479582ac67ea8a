"""What a real server shows of itself reaches the gates, and what they find reaches every answer."""

from __future__ import annotations

import json

from click.testing import CliRunner

from sweep.bench import health
from sweep.cli.query import best, show

ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=1")


def test_graphs_retractions_and_throttling_are_flagged_with_evidence(lab, monkeypatch):
    # A pool too small for eight requests, graphs for two of them, and a GPU that is hot between the baselines without
    # becoming slower.
    hot = {"effects": {"drift": {"kind": "sawtooth", "period_s": 1e6, "depth": 0.0}}}
    heard = lab.heard.on_event

    def on_event(event):
        heard(event)
        if event["kind"] == "finished":
            (epoch,) = lab.folder.glob("host/**/drift_epoch")
            moved = {"baseline": -0.9e6, "candidate": 0.9e6}[event["role"]]
            epoch.write_text(repr(float(epoch.read_text()) + moved))

    monkeypatch.setattr(lab.heard, "on_event", on_event)
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
    assert "throttle reasons sw_thermal_slowdown, the baseline's none" in shown["flag_evidence"]["throttled"]
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
