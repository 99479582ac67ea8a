"""The order of launches on a host: every candidate between two baselines, the confirm stage forwards and backwards."""

from __future__ import annotations

import pytest

from sweep.agenda import HostAgenda, confirm_jobs, engine_default_arm
from sweep.model import ArmConfig, Role, Stage

DEFAULT = ArmConfig(algorithm="EAGLE3", draft_model="a")
TREE = ArmConfig("EAGLE3", "a", 3, 4, 8)
CHAIN = ArmConfig("EAGLE3", "a", 3, 1, 4)


def agenda(**changes: object) -> HostAgenda:
    values = {"calibrate_launches": 2, "baseline_every": 2, "baseline_minutes": 60.0, "engine_default": DEFAULT}
    return HostAgenda(**(values | changes))  # type: ignore[arg-type]  # a dict of the right types


def walk(host: HostAgenda, candidates: int) -> list[str]:
    """Roles in the order in which one host launches, with ``candidates`` trials to hand out."""
    order: list[str] = []
    while True:
        job = host.reference(now=0.0)
        if job is None:
            if not candidates:
                break
            candidates -= 1
            order.append("c")
            host.done(job_of_candidate(), 0.0, measured=True)
            continue
        order.append({Role.BASELINE: "B", Role.ENGINE_DEFAULT: "d"}[job.role])
        host.done(job, 0.0, measured=True)
    if (last := host.last()) is not None:
        order.append("B")
        host.done(last, 0.0, measured=True)
    assert host.last() is None
    return order


def job_of_candidate():
    return confirm_jobs([(0, TREE)], 1, 1)[1]


def test_candidates_lie_between_baselines():
    assert "".join(walk(agenda(), 5)) == "BBdcBccBccB"


def test_without_engine_default_and_one_calibration():
    assert "".join(walk(agenda(calibrate_launches=1, engine_default=None), 2)) == "BccB"


def test_a_study_of_references_alone_needs_no_second_bracket():
    assert "".join(walk(agenda(engine_default=None), 0)) == "BB"


def test_a_baseline_that_failed_stays_due():
    host = agenda(calibrate_launches=1)
    first = host.reference(0.0)
    assert first is not None
    host.done(first, 0.0, measured=False)
    assert host.reference(0.0) == first


def test_a_failed_candidate_needs_no_bracket():
    host = agenda(calibrate_launches=1, engine_default=None)
    host.done(host.reference(0.0), 0.0, measured=True)  # type: ignore[arg-type]  # due at the start
    host.done(job_of_candidate(), 0.0, measured=False)
    assert host.last() is None


def test_baseline_is_due_by_time():
    host = agenda(calibrate_launches=1, engine_default=None, baseline_every=99, baseline_minutes=10)
    host.done(host.reference(0.0), 0.0, measured=True)  # type: ignore[arg-type]  # due at the start
    host.done(job_of_candidate(), 0.0, measured=True)
    assert host.reference(now=599.0) is None
    late = host.reference(now=601.0)
    assert late is not None
    assert late.role is Role.BASELINE


@pytest.mark.parametrize(
    ("launches", "arms", "order"),
    [(1, 1, "BC"), (2, 1, "BCCB"), (2, 2, "BCDDCB"), (3, 1, "BCCBBC")],
)
def test_confirm_order_turns_round(launches: int, arms: int, order: str):
    top = [(0, TREE), (1, CHAIN)][:arms]
    jobs = confirm_jobs(top, launches, pair=7)
    letters = "".join("B" if job.role is Role.BASELINE else "C" if job.arm == TREE else "D" for job in jobs)
    assert letters == order
    assert {job.pair for job in jobs} == {7}
    assert {job.stage for job in jobs} == {Stage.CONFIRM}


def test_engine_default_is_of_the_pair_most_trusted():
    known = [ArmConfig("EAGLE", "a", 3, 4, 16), ArmConfig("EAGLE3", "b", 3, 4, 16), ArmConfig("EAGLE3", "b", 3, 4, 5)]
    assert engine_default_arm(["EAGLE", "EAGLE3"], ["a", "b"], known) == ArmConfig("EAGLE3", "b")
    assert engine_default_arm(["NGRAM"], [], []) == ArmConfig("NGRAM")
    assert engine_default_arm([], [], []) is None
