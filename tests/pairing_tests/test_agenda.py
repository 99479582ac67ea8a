"""Order and pairs of launches where candidates are alternated, and what makes a baseline due out of turn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from search_spaces.space import SearchSpace
from sweep import session
from sweep.agenda import HostAgenda, launches_left
from sweep.cli.plan import describe
from sweep.model import ArmConfig, Basis, Role

CHAIN = ArmConfig("EAGLE3", "head", 3, 1, 4)


def agenda(**changes: object) -> HostAgenda:
    values = {"calibrate_launches": 1, "baseline_every": 4, "baseline_minutes": 60.0, "engine_default": None}
    return HostAgenda(**(values | changes))  # type: ignore[arg-type]  # a dict of the right types


def launched(host: HostAgenda, trials: int) -> list[tuple[str, int | None]]:
    """(B or the trial's number, pair) of every launch of one host."""
    out: list[tuple[str, int | None]] = []
    waiting = list(range(trials))
    while True:
        reference = host.reference(now=0.0)
        jobs = [reference] if reference else host.candidate(waiting.pop(0), CHAIN, pair=len(out)) if waiting else []
        if not jobs and (last := host.last()) is not None:
            jobs = [last]
        if not jobs:
            return out
        for job in jobs:
            out.append(("B" if job.role is Role.BASELINE else str(job.trial), job.pair))
            host.done(job, 0.0, measured=True)


def test_alternated_trials_share_the_baseline_between_them():
    found = launched(agenda(candidate_launches=2), trials=2)
    assert "".join(name for name, _ in found) == "B00B11B"
    assert [pair for _, pair in found] == [None, 1, 1, 1, 4, 4, 4]


def test_bracketed_trials_have_no_pair():
    found = launched(agenda(baseline_every=2), trials=3)
    assert "".join(name for name, _ in found) == "B01B2B"
    assert {pair for _, pair in found} == {None}


def test_the_last_launch_of_a_trial_ends_it():
    assert [job.last for job in agenda(candidate_launches=2).candidate(0, CHAIN, 1)] == [False, True]
    assert [job.last for job in agenda().candidate(0, CHAIN, 1)] == [True]


def test_a_demanded_baseline_is_due_at_once_and_only_once():
    host = agenda()
    first = host.reference(0.0)
    assert first is not None
    host.done(first, 0.0, measured=True)
    (job,) = host.candidate(0, CHAIN, 1)
    host.done(job, 0.0, measured=True)
    assert host.reference(0.0) is None
    host.demanded = True
    again = host.reference(0.0)
    assert again is not None
    host.done(again, 0.0, measured=True)
    host.done(job, 0.0, measured=True)
    assert host.reference(0.0) is None


def test_a_candidate_beside_its_baseline_needs_no_bracket():
    host = agenda()
    first = host.reference(0.0)
    assert first is not None
    host.done(first, 0.0, measured=True)
    host.done(host.candidate(0, CHAIN, 1)[0], 5.0, measured=True)
    host.paired(5.0)
    assert host.last() is None


@pytest.mark.parametrize(
    ("mode", "launches"), [("alternate", "B00B11B"), ("bracketed", "B01B"), ("resident", "BBB0B1")]
)
def test_plan_says_what_the_run_will_do(lab, mode, launches):
    pins = ("server.args.max-total-tokens=4096", "server.args.sleep-on-idle=true")
    spec = lab.spec("budget.trials=2", *pins, f"measurement.pairing={mode}")
    document = describe(spec, SearchSpace.from_spec(spec))
    assert document["launches"] == len(launches)
    searched = len(launches) - launches.count("B")
    assert document["launches_by_stage"] == {"reference": launches.count("B"), "search": searched}
    assert document["pairing"]["mode"] == mode
    assert document["pairing"]["why"].startswith("asked for")


@pytest.mark.parametrize(("attempts", "again"), [(2, [(0, "brackets")]), (1, [])])
def test_a_trial_that_cannot_be_compared_is_queued_again_while_it_has_attempts(lab, attempts, again):
    spec = lab.spec()
    study = lab.create(spec)
    trial = lab.store.add_trial(study.id, CHAIN, origin="sampler")
    lab.store.start_trial(study.id, trial.number, "gpu")
    lab.store.finish_trial(study.id, trial.number)
    books = session.make_books(lab.store, study, spec)
    books.analysis = SimpleNamespace(not_comparable={0: "brackets"})  # type: ignore[assignment]  # all that is read
    assert books.requeue_not_comparable(attempts) == again
    assert books.requeue_not_comparable(attempts) == []  # it waits already
    assert lab.store.trial(study.id, 0).state.value == ("queued" if again else "finished")


@pytest.mark.parametrize("mode", [*Basis])
@pytest.mark.parametrize("confirm", [0, 2])
def test_the_launches_left_are_those_of_the_plan(lab, mode, confirm):
    pins = ("server.args.max-total-tokens=4096", "server.args.sleep-on-idle=true")
    sets = ("budget.trials=3", "measurement.baseline_every=2", f"measurement.confirm_top={confirm}")
    spec = lab.spec(
        "space.num_steps=[1, 3, 5]", "space.num_draft_tokens=[2, 4, 6]", *sets, *pins, f"measurement.pairing={mode}"
    )
    plan = describe(spec, SearchSpace.from_spec(spec))
    assert plan["trials"] == 3
    start = 2 if mode is Basis.RESIDENT else 1  # the check of the neighbour, or the first baseline
    assert launches_left(3, mode, 2, confirm, spec.measurement.confirm_launches, 0) == plan["launches"] - start
    # of the confirm stage, what it has launched is not left
    assert launches_left(0, mode, 2, confirm, 2, confirmed=4) == (2 if confirm else 0)
