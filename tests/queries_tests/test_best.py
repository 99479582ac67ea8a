"""best with --where, --within, --per; pareto over any metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from storage import queries
from storage.pareto import hypervolume, pareto
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import UsageError
from tests.commands import Run
from tests.report_tests.made import EVIL


def trials(answer: dict[str, Any]) -> list[int]:
    return [row["trial"] for row in answer["best"]]


class TestWhere:
    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ("topk == 1", [1, 0]),
            ("steps == 3 and draft_tokens <= 4", [1]),
            ("draft_model == other", [2]),
            ("gain > 0 and not topk == 1", [2]),
            ("host == 'gpu-a' and feasible", [1, 2, 0, 3]),
            ("value > 125", [1, 2]),
            ("comparison == slower", [3]),
            ("accept_length > 5", []),
        ],
    )
    def test_keeps(self, store: Store, study: StudyRow, where: str, expected: list[int]) -> None:
        assert trials(queries.best(store, study.id, where=where)) == expected

    def test_concurrency_moves_the_objective(self, store: Store, study: StudyRow) -> None:
        answer = queries.best(store, study.id, where="concurrency == 32 and topk == 1")
        assert answer["objective"] == "output_throughput@32"
        assert trials(answer) == [0, 1]
        assert answer["beats_baseline"] is False

    def test_several_loads_have_no_common_rank(self, store: Store, study: StudyRow) -> None:
        with pytest.raises(UsageError, match=r"concurrency levels 8, 32.*--per concurrency"):
            queries.best(store, study.id, where="concurrency >= 8")
        answer = queries.best(store, study.id, where="concurrency >= 8", per="concurrency")
        assert [group["concurrency"] for group in answer["groups"]] == [8, 32]

    def test_says_that_nothing_fits(self, sweep: Run) -> None:
        code, out, _ = sweep("best", "night", "--where", "topk == 9")
        assert code == 0
        assert "No complete trial of study 'night' meets 'topk == 9'." in out

    def test_an_unknown_field(self, sweep: Run) -> None:
        code, _, err = sweep("best", "night", "--where", "draft_token < 8")
        assert code == 2
        assert "did you mean 'draft_tokens'" in err


class TestWithin:
    def test_keeps_what_is_near(self, store: Store, study: StudyRow) -> None:
        gains = {row["trial"]: row["gain"]["estimate"] for row in queries.best(store, study.id)["best"]}
        share = 1 - (1 + gains[2]) / (1 + gains[1])
        assert trials(queries.best(store, study.id, within=share + 0.001)) == [1, 2]
        assert trials(queries.best(store, study.id, within=share - 0.001)) == [1]

    @pytest.mark.parametrize("words", ["8", "-1%", "x", "100%"])
    def test_refuses(self, sweep: Run, words: str) -> None:
        code, _, err = sweep("best", "night", f"--within={words}")
        assert code == 2
        assert "write 3% or 0.03" in err

    def test_reads_percent(self, sweep: Run) -> None:
        assert trials(json.loads(sweep("best", "night", "--within", "10 %", "--json")[1])) == [1, 2]


class TestPer:
    def test_drafter(self, store: Store, study: StudyRow) -> None:
        answer = queries.best(store, study.id, per="draft_model", limit=1)
        assert {group["draft_model"]: trials(group) for group in answer["groups"]} == {
            EVIL: [3],
            "good": [1],
            "other": [2],
        }
        assert trials(answer) == [1]  # the whole ranking stays where it always is

    def test_concurrency(self, store: Store, study: StudyRow) -> None:
        answer = queries.best(store, study.id, per="concurrency", limit=1)
        assert {group["objective"]: trials(group) for group in answer["groups"]} == {
            "output_throughput@1": [1],
            "output_throughput@8": [0],
            "output_throughput@32": [0],
        }

    def test_category(self, store: Store, study: StudyRow) -> None:
        answer = queries.best(store, study.id, per="category")
        code, math = answer["groups"]
        assert [code["category"], math["category"]] == ["code", "math"]
        assert code["best"][0]["gain"]["estimate"] > math["best"][0]["gain"]["estimate"]
        assert code["best"][0]["throughput"] is None  # blocks mix categories: there is no figure of one alone

    def test_host_and_text(self, sweep: Run) -> None:
        code, out, _ = sweep("best", "night", "--per", "host")
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()[-1:]] == ["gpu-a"]

    def test_ranks_begin_anew(self, store: Store, study: StudyRow) -> None:
        for group in queries.best(store, study.id, per="draft_model")["groups"]:
            assert group["best"][0]["rank"] == 1


class TestPareto:
    def test_any_metrics(self, store: Store, study: StudyRow) -> None:
        keys = ["output_throughput@8", "ttft_p50@1", "accept_length@1"]
        answer = pareto(store, study.id, keys)
        assert answer["objectives"] == keys
        assert answer["directions"]["ttft_p50@1"] == "minimize"
        # Without speculation there is no accept length, so the baseline is no point here.
        assert [point["trial"] for point in answer["points"]] == [0, 1, 2, 3]
        assert answer["over_baseline"] is None

    def test_hypervolume_against_the_baseline(self, store: Store, study: StudyRow) -> None:
        answer = pareto(store, study.id)
        assert answer["over_baseline"] == 0  # nothing beats it at both loads
        assert 0 < answer["hypervolume"] < 1
        better = pareto(store, study.id, ["output_throughput@1", "output_throughput@8"])
        values = {p["trial"]: p["values"] for p in better["points"]}
        front = [t for t in (0, 1) if all(values[t][k] > values[None][k] for k in better["objectives"])]
        assert front
        assert better["over_baseline"] > 0

    def test_command(self, sweep: Run) -> None:
        code, out, _ = sweep("pareto", "night", "--objectives", "output_throughput@1, tpot_p50@32")
        assert code == 0
        assert "hypervolume: 0." in out
        code, _, err = sweep("pareto", "night", "--objectives", "output_throughput@1,ttft_p50@7")
        assert code == 2
        assert "concurrency levels: 1, 8, 32" in err
        code, _, err = sweep("pareto", "night", "--objectives", "ttft_p50@1,ttft_p50@1")
        assert code == 2
        assert "named twice" in err

    @pytest.mark.parametrize(
        ("points", "volume"),
        [
            ([[0.5, 0.5]], 0.25),
            ([[0.2, 0.8], [0.8, 0.2]], 0.28),
            ([[0.2, 0.8], [0.8, 0.2], [0.9, 0.9]], 0.28),
            ([[0.0, 0.0, 0.0]], 1.0),
            ([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], 0.375),
            ([[1.0, 0.0]], 0.0),
        ],
    )
    def test_known_volumes(self, points: list[list[float]], volume: float) -> None:
        costs = np.array(points)
        assert hypervolume(costs, np.ones(costs.shape[1])) == pytest.approx(volume)
