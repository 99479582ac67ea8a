"""Studies run on real GPUs with SGLang 0.5.17, read back from their databases by what is here now."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.engines.sglang import SglangEngine
from storage.records import LaunchRow, LaunchState
from storage.store import Store
from sweep.analysis import StudyAnalysis, analyse_figures, extract, metrics_for
from sweep.config import StudySpec
from sweep.model import Drafter, Role, Verdict

STORED = Path(__file__).parents[2] / "benchmarks" / "data" / "h200"
LOGS = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "failures"


def _open(name: str, folder: Path) -> Store:
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((STORED / f"{name}.db.gz").read_bytes()))
    return Store.open(f"sqlite:///{path}", create=False)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("smollm2", tmp_path_factory.mktemp("smollm2")) as store:
        yield store


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("llama8b-shaped", tmp_path_factory.mktemp("shaped")) as store:
        yield store


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("failures", tmp_path_factory.mktemp("failures")) as store:
        yield store


def _analysed(store: Store) -> StudyAnalysis:
    study = store.study(None)
    goals = StudySpec.parse(study.spec).goals
    complete = {trial.number for trial in store.trials(study.id) if trial.verdict is Verdict.COMPLETE}
    wanted = [m for m in store.measured_launches(study.id) if m.trial is None or m.trial in complete]
    arms = {arm.key: arm.config for arm in store.arms(study.id)}
    return analyse_figures([extract(m, metrics_for(goals)) for m in wanted], arms, goals)


def _gain(analysis: StudyAnalysis, trial: int, level: int) -> tuple[float, float, float]:
    """(low, estimate, high) against the baseline, all categories, stage search."""
    found = [
        g.gain
        for g in analysis.gains
        if (g.trial, g.concurrency, g.metric, g.category, g.reference)
        == (trial, level, "output_throughput", None, "baseline")
    ]
    (gain,) = [g for g in found if g is not None]
    return gain.low, gain.estimate, gain.high


def test_a_small_target_gains_nothing(smollm2: Store) -> None:
    analysis = _analysed(smollm2)
    for trial in range(9):
        _, estimate, high = _gain(analysis, trial, 1)
        assert estimate < -0.15, trial
        assert high < 0.05, trial


def test_the_8b_shape_gains_alone_and_loses_in_a_crowd(shaped: Store) -> None:
    analysis = _analysed(shaped)
    low, estimate, _ = _gain(analysis, 1, 1)  # 3 steps, topk 1, 4 draft tokens
    assert low > 0.4
    assert estimate == pytest.approx(0.60, abs=0.05)
    _, estimate, high = _gain(analysis, 1, 48)
    assert high < 0
    assert estimate == pytest.approx(-0.15, abs=0.05)


@pytest.mark.parametrize("name", ["smollm2", "shaped"])
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


@pytest.mark.parametrize(("name", "launches"), [("smollm2", 16), ("shaped", 7), ("failures", 9)])
def test_every_server_was_gone_with_its_memory(name: str, launches: int, request: pytest.FixtureRequest) -> None:
    reports = [row.stop_report for row in _ended(request.getfixturevalue(name))]
    assert len(reports) >= launches
    for report in reports:
        assert report is not None
        assert (report["clean"], report["leftover_pids"]) == (True, [])
        assert report["memory_left_mib"] < 256


def test_what_ran_is_what_was_asked(smollm2: Store) -> None:
    study = smollm2.study(None)
    for row in smollm2.launches(study.id):
        assert row.effective is not None
        assert (row.effective.status, row.effective.differences) == ("exact", ())
        if row.role is Role.CANDIDATE:
            assert row.effective.config == row.config
        if row.role is Role.ENGINE_DEFAULT:
            config = row.effective.config
            assert (config.num_steps, config.topk, config.num_draft_tokens) == (5, 4, 8)


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
