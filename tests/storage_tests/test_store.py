"""The write side: what goes in comes out, and what must not be stored is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from storage.records import HostState, StudyRow, StudyState, TrialState
from storage.store import Store
from sweep.errors import StudyExistsError, StudyNotFoundError
from sweep.model import (
    ArmConfig,
    Difference,
    Effective,
    HostFacts,
    Phase,
    Retry,
    Role,
    Verdict,
)
from tests.storage_tests.samples import (
    ARM,
    OOM,
    SPEED,
    block,
    create,
)


class TestStudies:
    def test_round_trip_survives_reopening(self, store: Store, study: StudyRow, url: str) -> None:
        store.close()
        with Store.open(url, create=False) as again:
            assert again.study("kimi") == study
        assert study.objectives[0] == SPEED
        assert study.constraints[0].text == "ttft_p99 < 200 ms"
        assert study.state is StudyState.RUNNING

    def test_newest_is_the_default(self, store: Store, study: StudyRow) -> None:
        newer = create(store, "other")
        assert store.study().id == newer.id
        assert [s.name for s in store.studies()] == ["other", "kimi"]

    def test_existing_name_is_refused_and_names_resume(self, store: Store, study: StudyRow) -> None:
        with pytest.raises(StudyExistsError, match="sweep resume kimi"):
            create(store)
        assert len(store.studies()) == 1

    def test_unknown_name_lists_the_near_ones(self, store: Store, study: StudyRow) -> None:
        create(store, "llama")
        with pytest.raises(StudyNotFoundError, match=r"no study 'kimmi'.*Near: kimi\."):
            store.study("kimmi")
        with pytest.raises(StudyNotFoundError, match=r"There are: kimi, llama\."):
            store.study("zzz")

    def test_empty_database_names_start(self, store: Store) -> None:
        with pytest.raises(StudyNotFoundError, match="sweep start"):
            store.study()

    def test_stop_request_and_state(self, store: Store, study: StudyRow, url: str) -> None:
        assert not store.stop_requested(study.id)
        with Store.open(url) as other:
            other.request_stop(study.id)
        assert store.stop_requested(study.id)
        store.set_state(study.id, StudyState.FINISHED)
        finished = store.study("kimi")
        assert finished.finished_at is not None
        store.set_state(study.id, StudyState.RUNNING)
        running = store.study("kimi")
        assert (running.finished_at, running.stop_requested) == (None, False)

    def test_controller_and_heartbeat(self, store: Store, study: StudyRow) -> None:
        store.set_controller(study.id, {"pid": 7})
        store.controller_heartbeat(study.id)
        row = store.study("kimi")
        assert row.controller == {"pid": 7}
        assert row.heartbeat_at is not None
        store.set_controller(study.id, None)
        assert store.study("kimi").controller is None

    def test_of_two_controllers_one_is_quicker(self, store: Store, study: StudyRow, url: str) -> None:
        with Store.open(url) as other:
            assert store.take_controller(study.id, {"pid": 7}, seen=None)
            assert not other.take_controller(study.id, {"pid": 8}, seen=None)
            assert store.study("kimi").controller == {"pid": 7}
            assert other.take_controller(study.id, {"pid": 8}, seen={"pid": 7})
        assert store.study("kimi").controller == {"pid": 8}

    def test_extending_keeps_the_notes_before(self, store: Store, study: StudyRow) -> None:
        store.extend_study(study.id, spec={"a": 1}, yaml="b", space_hash="c", notes=["trials 5 -> 9"])
        store.extend_study(study.id, spec={"a": 2}, yaml="d", space_hash="e", notes=["one more drafter"])
        row = store.study("kimi")
        assert row.notes == ("trials 5 -> 9", "one more drafter")
        assert (row.spec, row.yaml, row.space_hash) == ({"a": 2}, "d", "e")

    def test_delete_takes_everything_of_it_and_nothing_else(
        self, store: Store, study: StudyRow, launch: Callable[..., int]
    ) -> None:
        trial = store.add_trial(study.id, ARM, origin="sampler")
        store.add_block(launch(trial=trial.number), block())
        store.add_event(study.id, "gpu-a", "launch", {})
        other = create(store, "other")
        store.add_trial(other.id, ARM, origin="sampler")
        store.delete_study(study.id)
        assert [s.name for s in store.studies()] == ["other"]
        assert store.measured_launches(study.id, running=True) == []
        assert store.check() == []
        assert len(store.trials(other.id)) == 1


class TestHostsArmsEvents:
    def test_host_is_renewed_not_doubled(self, store: Store, study: StudyRow) -> None:
        first = store.add_host(study.id, "gpu-a", "ssh")
        store.set_host_state(study.id, "gpu-a", HostState.SET_ASIDE, "3 errors in a row")
        assert store.hosts(study.id)[0].note == "3 errors in a row"
        facts = HostFacts(
            "gpu-a", "ssh", "node1", "u", "m", "b", "/usr/bin/python3", "3.11", "0.5.17", (), (), None, 1, 0.0, 0.1
        )
        again = store.add_host(study.id, "gpu-a", "ssh", facts)
        assert (again.id, again.state, again.note) == (first.id, HostState.IDLE, None)
        assert again.facts is not None
        assert again.facts["hostname"] == "node1"

    def test_one_configuration_in_two_roles_is_two_arms(self, store: Store, study: StudyRow) -> None:
        candidate = store.ensure_arm(study.id, ARM, Role.CANDIDATE)
        assert store.ensure_arm(study.id, ARM, Role.CANDIDATE) == candidate
        assert store.ensure_arm(study.id, ARM, Role.ENGINE_DEFAULT).id != candidate.id
        assert store.arm_configs(study.id) == {ARM.key: ARM}

    def test_extra_flags_survive(self, store: Store, study: StudyRow) -> None:
        arm = ArmConfig("NGRAM", None, None, None, 8, extra=(("speculative-ngram-max-bfs-breadth", 4),))
        store.ensure_arm(study.id, arm, Role.CANDIDATE)
        assert [row.config for row in store.arms(study.id)] == [arm]

    def test_events_in_order_and_by_kind(self, store: Store, study: StudyRow) -> None:
        store.add_event(study.id, None, "phase", {"n": 1})
        store.add_event(study.id, "gpu-a", "launch", {"n": 2})
        assert [event.detail["n"] for event in store.events(study.id)] == [1, 2]
        assert [event.host for event in store.events(study.id, kind="launch")] == ["gpu-a"]


class TestTrials:
    def test_numbers_count_from_zero_within_a_study(self, store: Store, study: StudyRow) -> None:
        other = create(store, "other")
        numbers = [store.add_trial(study.id, ARM, origin="known_good", why="row 5").number for _ in range(2)]
        assert numbers == [0, 1]
        assert store.add_trial(other.id, ARM, origin="sampler").number == 0

    def test_complete_carries_values(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, ARM, origin="sampler", params={"topk": 4})
        store.start_trial(study.id, 0, "gpu-a")
        assert [t.number for t in store.trials(study.id, state=TrialState.RUNNING)] == [0]
        effective = Effective(
            replace(ARM, num_draft_tokens=4),
            {"tp_size": 8},
            (Difference("num_draft_tokens", 5, 4, "topk_1"),),
            "0.5.17",
        )
        store.finish_trial(
            study.id, 0, values={SPEED.key: 82.3}, stderr={SPEED.key: 0.8}, effective=effective, flags={"coerced": "x"}
        )
        trial = store.trial(study.id, 0)
        assert trial.verdict is Verdict.COMPLETE
        assert trial.values == {SPEED.key: 82.3}
        assert trial.effective == effective
        assert trial.effective is not None
        assert trial.effective.status == "coerced"
        assert trial.flags == {"coerced": "x"}
        assert trial.seconds is not None

    def test_failure_has_its_diagnosis_and_no_value(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        with pytest.raises(ValueError, match="no values"):
            store.finish_trial(study.id, 0, OOM, values={SPEED.key: 1.0})
        assert store.trial(study.id, 0).state is TrialState.QUEUED
        store.finish_trial(study.id, 0, OOM)
        trial = store.trial(study.id, 0)
        assert (trial.verdict, trial.phase, trial.reason) == (Verdict.LAUNCH_OOM, Phase.GRAPH_CAPTURE, "gpu_oom")
        assert (trial.retry, trial.dominates, trial.log_path) == (Retry.NEVER, ("num_draft_tokens",), "/logs/1")
        assert trial.values == {}
        with pytest.raises(ValueError, match="not complete"):
            store.update_trial_values(study.id, 0, values={SPEED.key: 1.0})

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_figures_that_are_none_are_refused(self, store: Store, study: StudyRow, bad: float) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        with pytest.raises(ValueError, match="leave out what is not known"):
            store.finish_trial(study.id, 0, values={SPEED.key: bad})
        assert store.trial(study.id, 0).state is TrialState.QUEUED

    def test_values_seen_anew_keep_flags_unless_given(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        store.finish_trial(study.id, 0, values={SPEED.key: 80.0}, flags={"throttled": "clock 1200 MHz"})
        store.update_trial_values(study.id, 0, values={SPEED.key: 81.0})
        assert store.trial(study.id, 0).flags == {"throttled": "clock 1200 MHz"}
        store.update_trial_values(study.id, 0, values={SPEED.key: 81.0}, flags={})
        assert store.trial(study.id, 0).flags == {}

    def test_simulated_study_marks_every_trial(self, store: Store) -> None:
        simulated = create(store, "sim", simulated=True, profile="tiny")
        store.add_trial(simulated.id, ARM, origin="sampler")
        store.finish_trial(simulated.id, 0, OOM)
        assert "simulated" in store.trial(simulated.id, 0).flags
        store.add_trial(simulated.id, ARM, origin="sampler")
        store.finish_trial(simulated.id, 1, values={SPEED.key: 80.0})
        store.update_trial_values(simulated.id, 1, values={SPEED.key: 81.0}, flags={})
        assert list(store.trial(simulated.id, 1).flags) == ["simulated"]

    def test_requeue_clears_the_attempt_but_no_block(
        self, store: Store, study: StudyRow, launch: Callable[..., int]
    ) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        store.start_trial(study.id, 0, "gpu-a")
        made = launch(trial=0)
        store.add_block(made, block())
        trial = store.requeue_trial(study.id, 0, "controller was killed")
        assert (trial.state, trial.attempt, trial.host, trial.verdict) == (TrialState.QUEUED, 2, None, None)
        assert trial.why == "controller was killed"
        assert [m.launch_id for m in store.measured_launches(study.id, running=True)] == [made]

    def test_unknown_trial_and_origin(self, store: Store, study: StudyRow) -> None:
        with pytest.raises(LookupError):
            store.start_trial(study.id, 3, "gpu-a")
        with pytest.raises(LookupError):
            store.trial(study.id, 3)
        with pytest.raises(ValueError, match="origin"):
            store.add_trial(study.id, ARM, origin="guess")
