"""Launches, blocks, the analysis, backup and check: what goes in comes out, failures stay out of the analysis."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.records import LaunchState, StudyRow
from storage.store import Store
from sweep.errors import StoreError
from sweep.model import (
    BASELINE,
    ArmGain,
    Basis,
    Comparison,
    Gain,
    Phase,
    Role,
    Stage,
    StopReport,
    Verdict,
)
from tests.storage_tests.samples import (
    ARM,
    OOM,
    SPEED,
    block,
    request,
)


class TestLaunches:
    def test_is_on_disk_before_anything_starts(self, store: Store, study: StudyRow, url: str) -> None:
        made = store.begin_launch(
            study.id, arm=BASELINE, role=Role.BASELINE, host="gpu-a", stage=Stage.CALIBRATE, sequence=0, pair=1
        )
        with Store.open(url) as other:
            found = other.launches(study.id, open_only=True)
        assert [(x.id, x.state, x.trial, x.pair) for x in found] == [(made, LaunchState.BEGUN, None, 1)]
        assert store.next_sequence(study.id, "gpu-a") == 1
        assert store.next_sequence(study.id, "gpu-b") == 0

    def test_whole_life(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        made = launch(trial=0, server_info={"nested": {"x": float("nan")}})
        store.launch_probed(made, 2.1, 60, (10, 20, 30))
        store.launch_phase(made, Phase.BENCHMARK)
        [row] = store.launches(study.id, open_only=True)
        assert (row.state, row.phase, row.trial) == (LaunchState.READY, Phase.BENCHMARK, 0)
        assert row.ready_at == 1030.0
        assert row.server_info == {"nested": {"x": None}}
        assert row.probe == {"accept_length": 2.1, "verify_steps": 60, "histogram": [10, 20, 30]}
        store.finish_launch(made, None, StopReport(True, -15, 1.5), log_tail=["end\0", "\udcff"])
        assert store.launches(study.id, open_only=True) == []
        [row] = store.launches(study.id)
        assert (row.state, row.verdict, row.phase) == (LaunchState.ENDED, Verdict.COMPLETE, None)
        assert row.stop_report is not None
        assert row.stop_report["clean"] is True
        assert row.log_tail == ("end\N{SYMBOL FOR NULL}", "?")

    def test_failed_launch_keeps_the_diagnosis_and_its_tail(
        self, store: Store, study: StudyRow, launch: Callable[..., int]
    ) -> None:
        made = launch(BASELINE)
        store.finish_launch(made, OOM)
        [row] = store.launches(study.id)
        assert (row.verdict, row.reason, row.log_path) == (Verdict.LAUNCH_OOM, "gpu_oom", "/logs/1")
        assert row.log_tail == ("a", "b\N{SYMBOL FOR NULL}c")

    def test_block_comes_back_as_it_went_in(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        made = launch(trial=0)
        failed = request(4, error="HTTP 500\0")
        whole = replace(block(), requests=(*block().requests, failed))
        store.add_block(made, whole)
        store.finish_launch(made)
        [measured] = store.measured_launches(study.id)
        assert (measured.launch_id, measured.trial, measured.arm_key) == (made, 0, ARM.key)
        [back] = measured.blocks
        stored = [replace(r, output_ids=None) for r in whole.requests]
        stored[4] = replace(stored[4], error="HTTP 500\N{SYMBOL FOR NULL}")
        assert back == replace(whole, requests=tuple(stored))
        [bare] = store.measured_launches(study.id, requests=False)
        assert bare.blocks[0].requests == ()
        assert bare.blocks[0].client == whole.client

    def test_only_what_went_well_is_analysed(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        for number in range(4):
            store.add_trial(study.id, replace(ARM, num_draft_tokens=5 + number), origin="sampler")
        good, crashed, of_failed_trial, open_one = (launch(trial=number) for number in range(4))
        empty = launch(BASELINE)
        for made in (good, crashed, of_failed_trial, open_one):
            store.add_block(made, block())
        for made in (good, of_failed_trial, empty):
            store.finish_launch(made)
        store.finish_launch(crashed, replace(OOM, verdict=Verdict.CRASHED))
        store.finish_trial(study.id, 0, values={SPEED.key: 1.0})
        store.finish_trial(study.id, 2, replace(OOM, verdict=Verdict.MEASUREMENT_INVALID))
        assert [m.launch_id for m in store.measured_launches(study.id)] == [good]
        assert [m.launch_id for m in store.measured_launches(study.id, running=True)] == [good, open_one]

    def test_accept_rate_uses_what_really_runs(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        made = launch(trial=0)
        row = store.add_block(made, block())
        with store.database.read() as connection:
            rate = connection.exec_driver_sql("SELECT accept_rate, n_ok FROM blocks WHERE id = ?", (row,)).one()
        assert rate.accept_rate == pytest.approx(55 / (50 * (5 - 1)))
        assert rate.n_ok == 4


class TestAnalysis:
    def test_replace_leaves_only_the_newest(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        gain = Gain(-0.086, -0.1, -0.071, Basis.ALTERNATE, Stage.CONFIRM)
        row = ArmGain(0, "output_throughput", 1, None, "baseline", Comparison.SLOWER, gain)
        assert store.analysis(study.id) is None
        store.replace_analysis(study.id, [row, row], {"sentences": ["a"]})
        store.replace_analysis(study.id, [replace(row, trial=None), row], {"sentences": ["b"]})
        assert store.analysis(study.id) == {"sentences": ["b"]}
        with store.database.read() as connection:
            assert connection.exec_driver_sql("SELECT trial_id FROM gains ORDER BY id").scalars().all() == [None, 1]

    def test_gain_of_an_unknown_trial_changes_nothing(self, store: Store, study: StudyRow) -> None:
        store.replace_analysis(study.id, [], {"sentences": ["a"]})
        row = ArmGain(9, "output_throughput", 1, None, "baseline", Comparison.NOT_COMPARABLE)
        with pytest.raises(KeyError):
            store.replace_analysis(study.id, [row], {"sentences": ["b"]})
        assert store.analysis(study.id) == {"sentences": ["a"]}


class TestCare:
    def test_backup_is_a_whole_database(self, store: Store, study: StudyRow, tmp_path: Path) -> None:
        store.backup(tmp_path / "copy.db")
        store.delete_study(study.id)
        with Store.open(f"sqlite:///{tmp_path / 'copy.db'}", create=False) as copy:
            assert copy.study().name == "kimi"
        with pytest.raises(StoreError, match="exists already"):
            store.backup(tmp_path / "copy.db")

    def test_check_finds_what_is_broken(self, store: Store, study: StudyRow, tmp_path: Path) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        assert store.check() == []
        outside = sqlite3.connect(tmp_path / "sweep.db")  # its foreign keys are off, as in any other tool
        outside.execute("DELETE FROM arms")
        outside.commit()
        outside.close()
        assert store.check() == ["table trials: row 1 points to a missing row of arms"]
