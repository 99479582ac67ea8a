"""best, pareto and status against small studies whose right answer is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from storage import queries
from storage.pareto import _front, pareto
from storage.records import HostState, StudyRow, StudyState
from storage.store import Store
from sweep.errors import ConfigError, UsageError
from sweep.model import (
    ArmConfig,
    Basis,
    Comparison,
    Flag,
    Gain,
    Phase,
    Role,
    Stage,
)
from tests.storage_tests.samples import (
    ARM,
    FAILED,
    LATENCY,
    SPEED,
    arm,
    block,
    complete,
    create,
    gain,
    ranking,
)


class TestBest:
    def test_the_story(self, store: Store, study: StudyRow) -> None:
        """Row 5 of five: 8.6 % slower than 90 tok/s, break-even 2.32 at a measured 2.12, and code gains 13 %."""
        complete(store, study, [arm(5)])
        lines = [
            gain(0, -0.086, stage=Stage.CONFIRM, search_gain=Gain(-0.08, -0.1, -0.06, Basis.BRACKETED, Stage.SEARCH)),
            gain(0, 0.13, category="code"),
            gain(0, -0.16, category="math"),
            gain(0, 0.02, reference="engine_default", word=Comparison.FASTER),
            gain(None, -0.10),
        ]
        result = {"baseline": {"by_objective": {SPEED.key: 90.0}}, "ranking": ranking((0, 1)), "sentences": ["S"]}
        store.replace_analysis(study.id, lines, result)
        answer = queries.best(store, study.id)
        assert answer["study"] == "kimi"
        assert answer["simulated"] is False
        assert answer["objective"] == SPEED.key
        assert answer["baseline"] == {"by_objective": {SPEED.key: 90.0}}
        assert answer["engine_default"]["by_objective"] == {SPEED.key: pytest.approx(81.0)}
        assert answer["beats_baseline"] is False
        assert answer["sentences"] == ["S"]
        [row] = answer["best"]
        assert row["rank"] == 1
        assert row["trial"] == 0
        assert row["config"] == ARM.as_dict()
        assert row["effective"] == ARM.as_dict()
        assert row["throughput"] == pytest.approx(82.26)
        assert row["accept_length"] == 2.12
        assert row["break_even_accept_length"] == pytest.approx(2.12 / (1 - 0.086))
        assert row["gain"] == {
            "estimate": -0.086,
            "low": pytest.approx(-0.101),
            "high": pytest.approx(-0.071),
            "basis": "bracketed",
            "stage": "confirm",
        }
        assert row["search_gain"]["estimate"] == -0.08
        assert {name: value["estimate"] for name, value in row["by_category"].items()} == {"code": 0.13, "math": -0.16}
        assert row["gain_over_engine_default"]["estimate"] == 0.02
        assert (row["verdict"], row["comparison"], row["flags"]) == ("complete", "slower", [])
        json.dumps(answer, allow_nan=False)

    def test_failed_and_reference_arms_are_not_ranked(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(5)])
        store.add_trial(study.id, arm(6), origin="sampler")
        store.finish_trial(study.id, 1, FAILED)
        store.add_trial(study.id, arm(7), origin="sampler")
        store.replace_analysis(study.id, [gain(0, 0.1), gain(None, 0.2)], {})
        answer = queries.best(store, study.id)
        assert [row["trial"] for row in answer["best"]] == [0]
        assert answer["beats_baseline"] is True

    def test_order_of_the_analysis_stands_and_ties_share_a_rank(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(16), arm(5), arm(8), arm(4)])
        lines = [gain(0, 0.12), gain(1, 0.11), gain(2, 0.02), gain(3, 0.01)]
        store.replace_analysis(study.id, lines, {"ranking": ranking((1, 1), (0, 1), (2, 3), (3, 4))})
        answer = queries.best(store, study.id)
        assert [(row["trial"], row["rank"]) for row in answer["best"]] == [(1, 1), (0, 1), (2, 3), (3, 4)]

    def test_without_a_ranking_confirmed_stand_first_then_the_gain(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(4), arm(5), arm(6)])
        lines = [gain(0, 0.05), gain(1, 0.03, stage=Stage.CONFIRM), gain(2, 0.08)]
        store.replace_analysis(study.id, lines, {})
        answer = queries.best(store, study.id)
        assert [(row["trial"], row["rank"]) for row in answer["best"]] == [(1, 1), (2, 2), (0, 3)]

    def test_what_cannot_be_compared_never_stands_above_what_can(self, store: Store, study: StudyRow) -> None:
        flags = {1: {Flag.SCREENED_OUT.value: "first block"}, 2: {Flag.NOT_COMPARABLE.value: "brackets disagree"}}
        complete(store, study, [arm(4), arm(5), arm(6), arm(7), arm(8)], flags)
        store.update_trial_values(study.id, 4, values={SPEED.key: 99.0}, constraints={"ttft_p99 < 200 ms": 12.0})
        lines = [gain(0, -0.3), gain(1, 0.4), gain(2, 0.5), gain(4, 0.2)]
        lines.append(replace(gain(3, 0.6), gain=None, comparison=Comparison.NOT_COMPARABLE))
        order = ranking((2, 1), (1, 2), (4, 3), (0, 4))
        store.replace_analysis(study.id, lines, {"ranking": order})
        answer = queries.best(store, study.id)
        assert [row["trial"] for row in answer["best"]] == [0, 4, 1, 2, 3]
        assert [row["feasible"] for row in answer["best"]] == [True, False, True, True, True]
        assert answer["best"][4]["gain"] is None
        assert answer["best"][4]["comparison"] == "not_comparable"
        assert answer["beats_baseline"] is False  # the four that seem faster do not count

    def test_a_configuration_measured_again_stands_once(self, store: Store, study: StudyRow) -> None:
        """The newest speaks where none is confirmed (what was measured again had looked good), else the confirmed."""
        complete(store, study, [arm(4), arm(5), arm(4), arm(5), arm(5)])
        lines = [gain(0, 0.12), gain(1, 0.11), gain(2, 0.05), gain(3, 0.07, stage=Stage.CONFIRM), gain(4, 0.2)]
        store.replace_analysis(study.id, lines, {"ranking": ranking((4, 1), (0, 2), (1, 3), (3, 4), (2, 5))})
        answer = queries.best(store, study.id)
        assert [(row["trial"], row["rank"], row["also_trials"]) for row in answer["best"]] == [
            (3, 1, [1, 4]),
            (2, 2, [0]),
        ]
        assert answer["ranked"] == 2

    def test_a_repeat_that_cannot_be_compared_does_not_speak(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(4), arm(4)], {1: {Flag.NOT_COMPARABLE.value: "brackets disagree"}})
        store.replace_analysis(study.id, [gain(0, 0.12), gain(1, 0.5)], {"ranking": ranking((1, 1), (0, 2))})
        [row] = queries.best(store, study.id)["best"]
        assert (row["trial"], row["also_trials"]) == (0, [1])

    def test_other_objectives(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(4), arm(5)])
        lines = [gain(0, 0.1), gain(1, 0.05), gain(0, 0.01, metric="tpot_p50", concurrency=8, value=9.0)]
        lines.append(gain(1, 0.2, metric="tpot_p50", concurrency=8, value=7.0))
        store.replace_analysis(study.id, lines, {})
        assert [row["trial"] for row in queries.best(store, study.id)["best"]] == [0, 1]
        other = queries.best(store, study.id, objective="tpot_p50@8")
        assert [(row["trial"], row["value"]) for row in other["best"]] == [(1, 7.0), (0, 9.0)]
        with pytest.raises(UsageError, match=r"tpot_p50@4 was not measured .* tpot_p50@8"):
            queries.best(store, study.id, objective="tpot_p50@4")
        with pytest.raises(ConfigError, match="did you mean 'tpot_p50'"):
            queries.best(store, study.id, objective="tpotp50@8")

    def test_limit(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(n) for n in range(4, 10)])
        answer = queries.best(store, study.id, limit=2)
        assert len(answer["best"]) == 2
        assert answer["ranked"] == 6

    def test_measured_figures_fill_what_the_analysis_left_out(
        self, store: Store, study: StudyRow, launch: Callable[..., int]
    ) -> None:
        complete(store, study, [arm(5)])
        for stage, seconds in ((Stage.SEARCH, 1.0), (Stage.CONFIRM, 2.0)):
            made = launch(arm(5), trial=0, stage=stage)
            store.add_block(made, block(stage=stage, seconds=seconds))
            store.add_block(made, block(stage=stage, seconds=50.0, invalid="client was the limit"))
            store.finish_launch(made)
        [row] = queries.best(store, study.id, objective=LATENCY.key)["best"]
        assert row["throughput"] == pytest.approx(50.0)  # the confirm stage's, the invalid block left out
        assert row["accept_length"] == pytest.approx(1 + 55 / 50)
        assert row["value"] == 40.0

    def test_empty_study(self, store: Store, study: StudyRow) -> None:
        answer = queries.best(store, study.id)
        assert answer["best"] == []
        assert answer["beats_baseline"] is False


class TestPareto:
    def test_front_over_rows_and_baseline(self, store: Store, study: StudyRow) -> None:
        figures = [(100.0, 50.0), (90.0, 30.0), (89.0, 31.0), (120.0, 20.0), (130.0, 10.0), (100.0, 50.0)]
        for number, (speed, ttft) in enumerate(figures):
            store.add_trial(study.id, arm(4 + number), origin="sampler")
            flags = {Flag.SCREENED_OUT.value: "x"} if number == 3 else {}
            violated = {"ttft_p99 < 200 ms": 1.0 if number == 4 else -1.0}
            values = {SPEED.key: speed, LATENCY.key: ttft}
            store.finish_trial(study.id, number, values=values, flags=flags, constraints=violated)
        store.add_trial(study.id, arm(20), origin="sampler")
        store.finish_trial(study.id, 6, FAILED)
        store.add_trial(study.id, arm(21), origin="sampler")
        store.finish_trial(study.id, 7, values={SPEED.key: 500.0})
        store.replace_analysis(study.id, [], {"baseline": {"by_objective": {SPEED.key: 80.0, LATENCY.key: 25.0}}})
        answer = pareto(store, study.id)
        assert answer["objectives"] == [SPEED.key, LATENCY.key]
        assert answer["directions"] == {SPEED.key: "maximize", LATENCY.key: "minimize"}
        front = {point["trial"]: point["on_front"] for point in answer["points"]}
        assert front == {None: True, 0: True, 1: True, 2: False, 3: False, 4: False, 5: True}
        [baseline] = [point for point in answer["points"] if point["is_baseline"]]
        assert baseline["values"] == {SPEED.key: 80.0, LATENCY.key: 25.0}
        json.dumps(answer, allow_nan=False)

    def test_a_dominated_baseline_is_a_point_all_the_same(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, arm(4), origin="sampler")
        store.finish_trial(study.id, 0, values={SPEED.key: 100.0, LATENCY.key: 20.0})
        store.replace_analysis(study.id, [], {"baseline": {"by_objective": {SPEED.key: 80.0, LATENCY.key: 25.0}}})
        points = pareto(store, study.id)["points"]
        assert [(p["is_baseline"], p["on_front"]) for p in points] == [(True, False), (False, True)]

    def test_empty(self, store: Store, study: StudyRow) -> None:
        assert pareto(store, study.id)["points"] == []

    @pytest.mark.parametrize("width", [1, 2, 3])
    def test_against_the_definition(self, width: int) -> None:
        rng = random.Random(width)
        costs = np.array([[float(rng.randrange(12)) for _ in range(width)] for _ in range(300)])
        slow = {
            i for i, row in enumerate(costs) if not any((other <= row).all() and (other < row).any() for other in costs)
        }
        assert _front(costs) == slow


class TestStatus:
    def test_counts_launches_and_hosts(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        store.add_host(study.id, "gpu-a", "ssh")
        store.add_host(study.id, "gpu-b", "ssh")
        store.set_host_state(study.id, "gpu-b", HostState.SET_ASIDE, "3 errors in a row")
        complete(store, study, [arm(4), arm(5)])
        for number, end in ((2, FAILED), (3, None)):
            store.add_trial(study.id, arm(4 + number), origin="sampler")
            if end is not None:
                store.finish_trial(study.id, number, end)
        store.start_trial(study.id, 3, "gpu-a")
        store.add_trial(study.id, arm(9), origin="sampler")
        for number in (0, 1, 2):
            store.finish_launch(launch(arm(4), trial=number))
        store.finish_launch(launch(ArmConfig()))
        store.finish_launch(launch(arm(4), trial=0, stage=Stage.CONFIRM))
        running = launch(arm(7), trial=3)
        store.launch_phase(running, Phase.BENCHMARK)
        answer = queries.status(store, study.id)
        assert answer["state"] == "running"
        assert answer["counts"] == {"complete": 2, "crashed": 1, "queued": 1, "running": 1}
        assert answer["launches"] == {"search": 4, "total": 6}
        busy, aside = answer["hosts"]
        assert (busy["name"], busy["phase"], busy["trial"]) == ("gpu-a", "benchmark", 3)
        assert (aside["state"], aside["phase"], aside["note"]) == ("set_aside", None, "3 errors in a row")
        json.dumps(answer, allow_nan=False)

    def test_summary_and_list(self, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(4)])
        store.set_state(study.id, StudyState.FINISHED)
        answer = queries.summary(store, study.id)
        assert answer["study"] == "kimi"
        assert answer["state"] == "finished"
        assert answer["counts"] == {"complete": 1}
        assert [row["trial"] for row in answer["best"]] == [0]
        create(store, "second", simulated=True)
        listed = queries.studies(store)
        assert [(row["study"], row["simulated"]) for row in listed] == [("second", True), ("kimi", False)]


def test_role_of_a_baseline_launch_is_no_search_launch(store: Store, study: StudyRow) -> None:
    store.begin_launch(study.id, arm=ArmConfig(), role=Role.BASELINE, host="h", stage=Stage.SEARCH, sequence=0)
    assert queries.status(store, study.id)["launches"] == {"search": 0, "total": 1}
