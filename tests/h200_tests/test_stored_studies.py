"""Studies run on real GPUs with SGLang 0.5.17, read back from their databases by what is here now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launchers.engines.sglang import SglangEngine
from search_spaces import rules
from search_spaces.rules import Infeasible
from storage.records import LaunchRow, LaunchState
from storage.store import Store
from sweep.model import Basis, Drafter, Phase, Role, Stage, Verdict
from tests.h200_tests.stored import analysed, gains_at

LOGS = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "failures"


def test_a_small_target_gains_nothing(smollm2: Store) -> None:
    analysis = analysed(smollm2)
    for level, shown in ((1, 4), (8, 10), (32, 11)):
        gains = gains_at(analysis, level)
        assert all(estimate < 0 for _, estimate, _ in gains.values())
        assert sum(high < 0 for _, _, high in gains.values()) >= shown, "these are shown to lose"
    low, estimate, high = gains_at(analysis, 1)[8]  # 3/4/16, the best of the search, in the confirm stage
    assert low < estimate < 0 < high
    study = smollm2.study(None)
    confirmed = [row for row in smollm2.launches(study.id) if row.stage is Stage.CONFIRM]
    assert [row.role is Role.BASELINE for row in confirmed].count(True) == 3
    assert {row.trial for row in confirmed if row.role is Role.CANDIDATE} == {8}


def test_the_8b_shape_gains_alone_and_loses_in_a_crowd(shaped: Store) -> None:
    """2 steps, topk 1, in the confirm stage: faster up to 32, no difference shown at 48; wide trees lose from 16 on."""
    analysis = analysed(shaped)
    for level, least in ((1, 0.6), (4, 0.2), (16, 0.15), (32, 0.0)):
        low, estimate, _ = gains_at(analysis, level)[2]
        assert low > least, level
        assert estimate == max(e for _, e, _ in gains_at(analysis, level).values()), level
    low, _, high = gains_at(analysis, 48)[2]
    assert low < 0 < high
    assert gains_at(analysis, 16)[3][2] < 0
    (crossing,) = [c for c in analysis.crossovers if c.trial == 2]
    assert crossing.estimate == pytest.approx(38, abs=2)


@pytest.mark.parametrize("name", ["smollm2", "shaped", "resident"])
def test_accept_counters_and_token_counts_agree(name: str, request: pytest.FixtureRequest) -> None:
    """After the prefill's token every verify step emits itself and its correct drafts; the last one may be cut."""
    store: Store = request.getfixturevalue(name)
    study = store.study(None)
    steps = {row.id: row.effective.config.num_steps for row in store.launches(study.id) if row.effective is not None}
    seen = 0
    for launch in store.measured_launches(study.id):
        for row in (r for block in launch.blocks for r in block.requests if r.verify_steps):
            assert row.output_tokens is not None
            assert row.correct_drafts is not None
            assert row.verify_steps is not None
            over = row.verify_steps + row.correct_drafts - (row.output_tokens - 1)
            assert 0 <= over <= (steps[launch.launch_id] or 0), row
            seen += 1
    assert seen > 1000


def _ended(store: Store) -> list[LaunchRow]:
    return [
        row for study in store.studies() for row in store.launches(study.id)
        if row.state is LaunchState.ENDED and row.stop_report is not None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "launches"),
    [("smollm2", 25), ("shaped", 12), ("failures", 9), ("wrong_and_taken", 4), ("resident", 8)],
)
def test_every_server_was_gone_with_its_memory(name: str, launches: int, request: pytest.FixtureRequest) -> None:
    reports = [row.stop_report for row in _ended(request.getfixturevalue(name))]
    assert len(reports) >= launches
    for report in reports:
        assert report is not None
        assert (report["clean"], report["leftover_pids"]) == (True, [])
        assert report["memory_left_mib"] < 256


def test_what_ran_is_what_was_asked(smollm2: Store) -> None:
    study = smollm2.study(None)
    died = [row for row in smollm2.launches(study.id) if row.effective is None]
    assert {row.reason for row in died} == {"unknown"}, "two launches of 5/4/4 ended before they could be asked"
    for row in smollm2.launches(study.id):
        if row.effective is None:
            continue
        assert (row.effective.status, row.effective.differences) == ("exact", ())
        if row.role is Role.CANDIDATE:
            assert row.effective.config == row.config
        if row.role is Role.ENGINE_DEFAULT:
            config = row.effective.config
            assert (config.num_steps, config.topk, config.num_draft_tokens) == (5, 4, 8)


def test_servers_beside_each_other_say_what_brackets_said(resident: Store, shaped: Store) -> None:
    study = resident.study(None)
    for row in resident.launches(study.id):
        assert row.effective is not None
        assert (row.effective.status, row.effective.differences, row.effective.config) == ("exact", (), row.config)
    (checked,) = [event.detail for event in resident.events(study.id) if event.kind == "neighbour"]
    assert checked["accepted"]
    beside, bracketed = analysed(resident), analysed(shaped)
    assert {g.gain.basis for g in beside.gains if g.gain is not None and g.reference == "baseline"} == {Basis.RESIDENT}
    for level in (1, 4, 16, 32, 48):
        here, there = gains_at(beside, level), gains_at(bracketed, level)
        for trial in (0, 1):  # 3/1/4 and 3/4/8, in either study
            assert here[trial][0] < there[trial][2], (level, trial)
            assert there[trial][0] < here[trial][2], (level, trial)


def test_the_first_block_at_a_new_load_is_no_slower_since_the_warm_up_empties_the_cache(
    resident: Store, shaped: Store
) -> None:
    def first_to_second(store: Store) -> list[float]:
        out = []
        for launch in store.measured_launches(store.study(None).id):
            rounds = {b.round: b for b in launch.blocks if b.concurrency == 4 and launch.trial is not None}
            if launch.stage is Stage.SEARCH and rounds:
                out.append(rounds[1].elapsed_s / rounds[0].elapsed_s)
        return out

    assert all(ratio < 0.9 for ratio in first_to_second(shaped)), "before"
    assert all(ratio > 0.95 for ratio in first_to_second(resident)), "since"


def test_verdicts_of_what_was_broken_on_purpose(failures: Store) -> None:
    seen = {(row.verdict, row.reason) for row in _ended(failures)}
    assert (Verdict.LAUNCH_CONFIG_ERROR, "drafter_not_found") in seen
    assert (Verdict.CRASHED, "killed_silently") in seen
    assert any(verdict is Verdict.LAUNCH_OOM for verdict, _ in seen)
    study = failures.study("failures")
    assert {trial.number: trial.attempt for trial in failures.trials(study.id)}[2] == 2
    assert [t.verdict for t in failures.trials(study.id)].count(Verdict.COMPLETE) == 3


def test_the_head_of_the_wrong_kind_is_now_seen_in_the_probe_that_let_it_pass(failures: Store) -> None:
    study = failures.study("failures")
    (launch,) = [row for row in failures.launches(study.id) if row.config.algorithm == "EAGLE"]
    assert launch.probe is not None
    assert launch.probe["accept_length"] == pytest.approx(1.05)
    lines = (LOGS / "eagle3_drafter_as_EAGLE.log").read_text(encoding="utf-8").splitlines()
    drafters = {"smollm2-eagle3": Drafter("smollm2-eagle3", "/opt/sgl/drafter", None)}
    found = SglangEngine().probe_diagnosis(
        launch.probe["accept_length"], launch.probe["verify_steps"], launch.config, drafters, log_lines=lines
    )
    assert found is not None
    assert (found.verdict, found.reason) == (Verdict.DRAFTER_INEFFECTIVE, "algorithm_mismatch")


def test_the_head_of_the_wrong_kind_ends_in_the_probe(wrong_and_taken: Store) -> None:
    study = wrong_and_taken.study(None)
    (launch,) = [row for row in wrong_and_taken.launches(study.id) if row.config.algorithm == "EAGLE"]
    assert (launch.verdict, launch.reason) == (Verdict.DRAFTER_INEFFECTIVE, "algorithm_mismatch")
    assert launch.probe is not None
    assert launch.probe["verify_steps"] >= 240, "near 1 the probe asks four times as much"
    assert launch.probe["accept_length"] < 1.05


def test_a_port_that_is_taken_while_the_server_loads_is_nobodys_fault(wrong_and_taken: Store) -> None:
    study = wrong_and_taken.study(None)
    first, second = (row for row in wrong_and_taken.launches(study.id) if row.trial == 1)
    assert (first.verdict, first.reason) == (Verdict.INFRA_ERROR, "port_in_use")
    assert (second.verdict, second.port == first.port) == (Verdict.COMPLETE, False)
    (trial,) = [trial for trial in wrong_and_taken.trials(study.id) if trial.number == 1]
    assert (trial.verdict, trial.attempt) == (Verdict.COMPLETE, 2)


def test_the_tree_that_killed_the_scheduler_is_refused_and_its_log_understood(smollm2: Store) -> None:
    study = smollm2.study(None)
    dead = [row for row in smollm2.launches(study.id) if row.verdict is Verdict.CRASHED]
    assert {(row.config.num_steps, row.config.topk, row.config.num_draft_tokens) for row in dead} == {(5, 4, 4)}
    engine = SglangEngine()
    for row in dead:
        found = engine.diagnose(row.log_tail, exit_code=-9, phase=Phase.WARMUP, timed_out=False, arm=row.config)
        assert (found.verdict, found.reason) == (Verdict.LAUNCH_CONFIG_ERROR, "tree_too_small")
        assert "at least num_steps + 1" in found.advice
        large = replace(row.config, num_draft_tokens=8)  # the same words of torch, but not this fault
        other = engine.diagnose(row.log_tail, exit_code=-9, phase=Phase.WARMUP, timed_out=False, arm=large)
        assert other.verdict is Verdict.CRASHED
    refused = rules.resolve("EAGLE3", 5, 4, 4)
    assert isinstance(refused, Infeasible)
    for row in smollm2.launches(study.id):
        config = row.config
        if row.verdict is Verdict.COMPLETE and config.num_steps is not None:
            answer = rules.resolve("EAGLE3", config.num_steps, config.topk, config.num_draft_tokens)
            assert not isinstance(answer, Infeasible), "what was served is not refused"


def test_greedy_text_parts_at_near_ties_only(smollm2: Store) -> None:
    study = smollm2.study(None)
    found = [event.detail for event in smollm2.events(study.id) if event.kind == "outputs"]
    assert len(found) >= 8
    assert sum(detail["near_ties"] for detail in found) > 50
    assert sum(detail["differences"] for detail in found) == 0
