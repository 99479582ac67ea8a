"""Pairing, re-queueing, gates and outputs through whole studies on simulated servers."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from launchers.engines.sglang import SglangEngine
from storage.records import TrialState
from sweep import session
from sweep.cli.query import show
from sweep.errors import SweepError
from sweep.model import Role, Verdict
from sweep.pool import InlinePool

ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]")
# Long enough for every answer to pass the place where a near-tie or a wrong token lies.
LONG = ("workload.repeats=1", "workload.max_tokens=84", "workload.ignore_eos=true")


def order(lab, study) -> str:
    """The launches of a study in order: B for a baseline, the trial's number for a candidate."""
    return "".join("B" if x.role is Role.BASELINE else str(x.trial) for x in lab.store.launches(study.id))


def test_alternate_search_relaunches_in_abba_and_near_ties_are_no_difference(lab):
    study = lab.run(*ONE, "measurement.pairing=alternate", *LONG, profile={"near_ties": 1.0})
    assert order(lab, study) == "B00B"
    pairs = [launch.pair for launch in lab.store.launches(study.id)]
    assert pairs == [None, 1, 1, 1]
    (row,) = lab.best(study)["best"]
    assert row["gain"]["basis"] == "alternate"
    assert row["gain"]["stage"] == "search"
    assert "output_differs" not in row["flags"]
    details = [event.detail for event in lab.store.events(study.id, kind="outputs")]
    assert [d["trial"] for d in details] == [0, 0]
    for detail in details:
        # every answer leaves the baseline's, at places where both tokens are likely
        assert (detail["same"], detail["near_ties"], detail["differences"]) == (0, 4, 0)
        assert 0 < detail["largest_near_tie_nat"] < 0.1


def test_wrong_output_is_flagged_with_its_evidence(lab):
    study = lab.run(*ONE, *LONG, profile={"failures": [{"kind": "wrong_output"}]})
    (row,) = lab.best(study)["best"]
    assert "output_differs" in row["flags"]
    shown = lab.show(study, 0)
    assert "4 of 4 greedy answers" in shown["flag_evidence"]["output_differs"]
    (found,) = shown["outputs"]
    assert found["differs"]
    assert found["share"] == 1.0
    text = CliRunner().invoke(show, ["0", "--db", f"sqlite:///{lab.folder}/t.db"]).output
    assert "of 4 greedy answers 0 equal the baseline's, 0 leave it at a near-tie, 4 elsewhere" in text
    assert row["gain"]["basis"] == "bracketed"


def test_a_step_between_the_brackets_queues_the_trial_again(lab):
    # Servers started after the second baseline run at two thirds of the speed: the host's clock of drift is moved on.
    step = {"effects": {"drift": {"kind": "step", "at_s": 1e6, "factor": 1.5}}}
    lab.after_launch = lambda event: 2e6 if len(lab.kinds("finished")) == 2 else 0.0
    calibrated = ("measurement.calibrate_launches=2", "measurement.max_attempts=2", "measurement.tolerance=0.2")
    study = lab.run(*ONE, "workload.repeats=1", *calibrated, profile=step)
    (again,) = lab.kinds("requeued")
    assert again["trial"] == 0
    assert "the baselines before and after it on gpu differ by -" in again["reason"]
    assert order(lab, study) == "BB0B0B"
    trial = lab.show(study, 0)
    assert trial["attempt"] == 2
    assert "not_comparable" not in trial["flags"]
    # Only the second launch is compared, against baselines that ran as slowly as it did.
    (row,) = lab.best(study)["best"]
    assert row["gain"]["estimate"] > 0


@pytest.mark.parametrize(("factor", "attempts", "launches"), [(1.5, 2, "B0B0B"), (1.5, 1, "B0B"), (1.0, 2, "B0B")])
def test_two_baselines_are_enough_to_refuse_a_step(lab, factor, attempts, launches):
    """Without calibration launches a study of one trial has no more; servers after the first baseline run slower."""
    lab.after_launch = lambda event: 2e6 if len(lab.kinds("finished")) == 1 else 0.0
    step = {"effects": {"drift": {"kind": "step", "at_s": 1e6, "factor": factor}}}
    study = lab.run(
        *ONE,
        "workload.repeats=1",
        "measurement.tolerance=0.2",
        f"measurement.max_attempts={attempts}",
        profile=step,
    )
    assert order(lab, study) == launches
    assert len(lab.kinds("requeued")) == (launches == "B0B0B")
    answer = lab.best(study)
    (row,) = answer["best"]
    if factor > 1 and attempts == 1:  # nothing is left to measure again with: it stays so, and says so
        assert "not_comparable" in row["flags"]
        assert (row["comparison"], row["gain"], row["value"]) == ("not_comparable", None, None)
        assert not answer["beats_baseline"]
        assert "differ by -" in lab.show(study, 0)["flag_evidence"]["not_comparable"]
    else:
        assert "not_comparable" not in row["flags"]
        assert row["gain"]["estimate"] > 0


class Crash(Exception):
    """The controller ends here."""


def crashing(lab, monkeypatch, kind):
    """A study of wrong output whose run ends just before its event of ``kind`` about trial 0 is stored; and how to run
    it once more."""
    spec = lab.spec(*ONE, *LONG, profile={"failures": [{"kind": "wrong_output"}]})
    study = lab.create(spec)

    def on_event(event):
        if event["kind"] == kind and event["trial"] == 0:
            raise Crash

    def run() -> str:
        return session.run(lab.store, lab.store.study_by_id(study.id), spec, lambda *_: lab.heard, InlinePool())

    with monkeypatch.context() as patch:
        patch.setattr(lab.heard, "on_event", on_event)
        with pytest.raises(Crash):
            run()
    return study, run


def test_questions_that_a_stop_cut_short_stay_open(lab, monkeypatch):
    spec = lab.spec(*ONE, *LONG, profile={"failures": [{"kind": "wrong_output"}]})
    study = lab.create(spec)
    asked = []
    answer = SglangEngine.next_tokens

    def first_alone(self, *question):
        lab.store.request_stop(study.id)
        while not asked and not lab.kinds("stopping"):  # looked at now and then; questions are quicker than that
            time.sleep(0.02)
        (owner,) = pool._owners.values()
        owner.cancel()
        asked.append(question)
        return answer(self, *question)

    pool = InlinePool()
    with monkeypatch.context() as patch:
        patch.setattr(SglangEngine, "next_tokens", first_alone)
        assert session.run(lab.store, lab.store.study_by_id(study.id), spec, lambda *_: lab.heard, pool) == "stopped"
    assert len(asked) == 1
    shown = lab.show(study, 0)
    assert (shown["verdict"], shown["outputs"], shown["outputs_unasked"]) == ("complete", [], 1)


def test_a_crash_between_finding_and_event_leaves_the_flag(lab, monkeypatch):
    study, _ = crashing(lab, monkeypatch, "outputs")
    shown = lab.show(study, 0)
    assert "output_differs" in shown["flags"]
    assert (shown["outputs"], shown["outputs_unasked"]) == ([], 1)


def test_what_a_crashed_run_had_no_baseline_to_ask_is_asked_by_the_next(lab, monkeypatch):
    study, run = crashing(lab, monkeypatch, "finished")
    shown = lab.show(study, 0)
    assert (shown["verdict"], shown["outputs"], shown["outputs_unasked"]) == ("complete", [], 1)
    text = CliRunner().invoke(show, ["0", "--db", f"sqlite:///{lab.folder}/t.db"]).output
    assert "of 1 launches not judged yet: no baseline was launched after them" in text

    assert run() == "finished"
    shown = lab.show(study, 0)
    (found,) = shown["outputs"]
    assert (found["differs"], found["differences"], shown["outputs_unasked"]) == (True, 4, 0)
    assert "output_differs" in shown["flags"]


@pytest.mark.long
@pytest.mark.parametrize("pins", [(), ("server.args.max-total-tokens=4096", "server.args.sleep-on-idle=true")])
def test_a_study_stopped_within_a_pair_measures_it_anew(lab, pins, monkeypatch):
    mode = "resident" if pins else "alternate"
    spec = lab.spec(*ONE, *pins, f"measurement.pairing={mode}", "workload.max_tokens=250", "workload.ignore_eos=true")
    study = lab.create(spec)

    def on_event(event):
        if event["kind"] == "block" and event["trial"] == 0:
            lab.store.request_stop(study.id)

    def run() -> str:
        return session.run(lab.store, lab.store.study_by_id(study.id), spec, lambda *_: lab.heard, InlinePool())

    with monkeypatch.context() as patch:
        patch.setattr(lab.heard, "on_event", on_event)
        assert run() == "stopped"
    cut = lab.store.launches(study.id)
    assert all(launch.stop_report["clean"] for launch in cut)
    assert lab.store.trial(study.id, 0).state is TrialState.QUEUED
    assert run() == "finished"
    (row,) = lab.best(study)["best"]
    assert row["gain"]["basis"] == mode
    assert lab.store.trial(study.id, 0).attempt == 2
    fine = [x for x in lab.store.launches(study.id) if x.trial == 0 and x.verdict is Verdict.COMPLETE]
    assert len(fine) == (1 if pins else 2)


@pytest.mark.long
def test_a_baseline_that_cannot_be_measured_does_not_go_on_for_ever(lab):
    broken = {"failures": [{"kind": "truncated_json", "after_tokens": 70}]}
    with pytest.raises(SweepError, match=r"the baseline cannot be measured: measurement_invalid: 0 of 4 requests"):
        lab.run(*ONE, *LONG, profile=broken)
    assert order(lab, lab.store.study("pairs")) == "BBB"
