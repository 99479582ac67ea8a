"""The commands as a user meets them: text, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launchers.locks import this_holder
from storage.records import StudyRow
from storage.store import Store
from sweep.cli import render
from sweep.model import Basis, Comparison, Gain, Stage
from tests.commands import Run
from tests.storage_tests.samples import (
    FAILED,
    SPEED,
    arm,
    block,
    complete,
    create,
    gain,
)


@pytest.fixture
def story(store: Store, study: StudyRow, launch: Callable[..., int]) -> StudyRow:
    """Two complete arms, both slower than no speculation, and a crashed one."""
    complete(store, study, [arm(5), arm(16)])
    store.add_trial(study.id, arm(8), origin="sampler")
    store.finish_trial(study.id, 2, FAILED)
    made = launch(arm(5), trial=0)
    store.add_block(made, block())
    store.finish_launch(made, None, log_tail=["[bold]ready[/bold]"])
    slower = Gain(-0.086, -0.10, -0.071, Basis.ALTERNATE, Stage.CONFIRM)
    first = gain(0, -0.086, accept_length=2.12, break_even=2.30)
    lines = [
        replace(first, gain=slower),
        gain(0, 0.13, category="code"),
        gain(0, -0.2, category="math"),
        gain(1, -0.17),
    ]
    ranks = {SPEED.key: [{"trial": 0, "rank": 1}, {"trial": 1, "rank": 2}]}
    store.replace_analysis(study.id, lines, {"baseline": {"by_objective": {SPEED.key: 90.0}}, "ranking": ranks})
    return study


class TestBest:
    def test_says_first_that_nothing_beats_the_baseline(self, sweep: Run, story: StudyRow) -> None:
        code, out, _ = sweep("best")
        lines = out.splitlines()
        assert code == 0
        assert lines[0] == "Nothing beats no speculation by output_throughput@1."
        assert lines[1] == (
            "EAGLE3 k25-custom 3/4/5 is 8.6 % slower than no speculation (95 %: 7.1-10.0), "
            "break-even accept length 2.30, measured 2.12."
        )
        assert lines[2] == "Prompts that gain all the same: code +13.0 %."
        assert lines[3] == "no speculation: output_throughput@1 90.0"
        assert "-8.6 % (-10.0 .. -7.1)" in out
        assert "\x1b" not in out

    def test_json(self, sweep: Run, story: StudyRow) -> None:
        code, out, _ = sweep("best", "kimi", "--json", "--limit", "1")
        answer = json.loads(out)
        assert code == 0
        assert [row["trial"] for row in answer["best"]] == [0]
        assert answer["best"][0]["gain"]["estimate"] == -0.086

    def test_winner_is_said_without_the_lament(self, sweep: Run, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(5)])
        store.replace_analysis(study.id, [gain(0, 0.2)], {})
        assert sweep("best")[1].startswith(
            "EAGLE3 k25-custom 3/4/5 is 20.0 % faster than no speculation (95 %: 18.5-21.5)"
        )

    def test_simulated_is_said_before_anything(self, sweep: Run, store: Store) -> None:
        study = create(store, "sim", simulated=True)
        complete(store, study, [arm(5)])
        for command in (("best",), ("pareto",), ("show", "0")):
            assert sweep(*command)[1].splitlines()[0].startswith("SIMULATED: study 'sim'")
            assert json.loads(sweep(*command, "--json")[1])["simulated"] is True

    def test_real_one_does_not_say_simulated(self, sweep: Run, story: StudyRow) -> None:
        assert "SIMULATED" not in sweep("best")[1]

    def test_nothing_complete_yet(self, sweep: Run, study: StudyRow) -> None:
        code, out, _ = sweep("best")
        assert (code, out) == (0, "No trial of study 'kimi' is complete yet: nothing to rank.\n")

    def test_why_the_first_was_proposed(self, sweep: Run, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, arm(5), origin="sampler", why="expected +3.1 % over EAGLE3 k25-custom 3/4/16")
        store.start_trial(study.id, 0, "gpu-a")
        store.finish_trial(study.id, 0, None)
        store.replace_analysis(study.id, [gain(0, 0.2)], {})
        assert "Why #0 was proposed: expected +3.1 % over EAGLE3 k25-custom 3/4/16\n" in sweep("best")[1]
        assert "was proposed" not in sweep("best", "--per", "draft_model")[1]

    def test_no_reason_no_words(self, sweep: Run, story: StudyRow) -> None:
        assert "was proposed" not in sweep("best")[1]

    @pytest.mark.parametrize(("faster", "said"), [(True, True), (False, False)])
    def test_a_cheaper_tie_does_not_hide_the_arm_that_is_faster(
        self, sweep: Run, store: Store, study: StudyRow, faster: bool, said: bool
    ) -> None:
        complete(store, study, [arm(16), arm(5)])
        ranks = {SPEED.key: [{"trial": 1, "rank": 1}, {"trial": 0, "rank": 1}]}
        store.replace_analysis(study.id, [gain(0, 0.04 if faster else 0.001), gain(1, 0.002)], {"ranking": ranks})
        lines = sweep("best")[1].splitlines()
        assert lines[0 if said else 1].startswith("EAGLE3 k25-custom 3/4/5 is a tie with no speculation")
        words = "The first that is faster: EAGLE3 k25-custom 3/4/16 is 4.0 % faster than no speculation"
        assert any(line.startswith(words) for line in lines) is said
        assert (lines[0] == "Nothing beats no speculation by output_throughput@1.") is not said

    def test_an_arm_that_may_not_win_is_not_named(self, sweep: Run, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(16), arm(5)], {0: {"screened_out": "hopeless"}})
        store.replace_analysis(study.id, [gain(0, 0.04)], {"ranking": {}})
        assert "\nIt may not win: its launch was ended early, screened out.\n" in sweep("best")[1]
        store.replace_analysis(study.id, [gain(0, 0.04), gain(1, 0.002)], {"ranking": {}})
        assert sweep("best")[1].startswith("Nothing beats no speculation")
        assert "The first that is faster" not in sweep("best")[1]

    def test_kinds_of_prompt_gain_by_the_corrected_test(self, sweep: Run, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(5)])
        by_kind = [gain(0, 0.03, category="code", word=Comparison.TIE), gain(0, 0.05, category="math")]
        store.replace_analysis(study.id, [gain(0, -0.2), *by_kind], {})
        assert "Prompts that gain all the same: math +5.0 %.\n" in sweep("best")[1]
        (row,) = json.loads(sweep("best", "--json")[1])["best"]
        assert {name: found["comparison"] for name, found in row["by_category"].items()} == {
            "code": "tie",
            "math": "faster",
        }

    def test_ties_are_explained(self, sweep: Run, store: Store, study: StudyRow) -> None:
        complete(store, study, [arm(16), arm(5)])
        ranks = {SPEED.key: [{"trial": 1, "rank": 1}, {"trial": 0, "rank": 1}]}
        store.replace_analysis(study.id, [gain(0, 0.1), gain(1, 0.1)], {"ranking": ranks})
        assert "Equal ranks are ties" in sweep("best")[1]

    def test_on_a_terminal_nothing_from_outside_is_markup(
        self, sweep: Run, story: StudyRow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(render, "is_tty", lambda: True)
        monkeypatch.setenv("COLUMNS", "200")
        out = sweep("best")[1]
        assert "EAGLE3 k25-custom 3/4/5" in out
        render.table(["a"], [["[red]x[/red] [/nonsense]"]])


class TestSentences:
    def row(self, word: Comparison, estimate: float, low: float, high: float, stage: str = "confirm") -> dict[str, Any]:
        gain = {"estimate": estimate, "low": low, "high": high, "basis": "alternate", "stage": stage}
        figures = {"break_even_accept_length": None, "accept_length": None, "search_gain": None}
        return {"label": "X", "comparison": word.value, "gain": gain, "tie_because": None, "flags": [], **figures}

    def test_tie_keeps_its_signs(self) -> None:
        text = render.sentence(self.row(Comparison.TIE, 0.004, -0.011, 0.019))
        assert text == "X is a tie with no speculation: +0.4 % (95 %: -1.1 to +1.9)."

    def test_tie_that_its_own_interval_denies_says_why(self) -> None:
        row = self.row(Comparison.TIE, 0.023, 0.001, 0.044)
        because = {"reason": "correction", "low": -0.009, "high": 0.056, "comparisons": 12}
        assert render.sentence(row | {"tie_because": because}) == (
            "X is a tie with no speculation: +2.3 % (95 %: +0.1 to +4.4), because 12 comparisons are made together: "
            "with Holm's correction for them the interval is -0.9 % to +5.6 %."
        )
        because = {"reason": "tie_band", "low": -0.01, "high": 0.01, "comparisons": 1}
        text = render.sentence(self.row(Comparison.TIE, 0.006, 0.002, 0.009) | {"tie_because": because})
        assert text.endswith("because gains within -1.0 % to +1.0 % count as equal.")

    def test_gain_above_the_accept_length_is_not_to_be_believed(self) -> None:
        row = self.row(Comparison.FASTER, 1.4, 1.2, 1.6)
        flagged = row | {"flags": ["above_accept_length"], "accept_length": 2.0}
        assert "do not believe it" in render.sentence(flagged | {"break_even_accept_length": 0.83})
        # the gate fired at another load; here the gain is one that the accept length allows
        assert "believe" not in render.sentence(flagged | {"break_even_accept_length": 1.4})

    def test_search_number_is_not_passed_off_as_confirmed(self) -> None:
        text = render.sentence(self.row(Comparison.FASTER, 0.1, 0.08, 0.12, stage="search"))
        assert text.endswith("(95 %: 8.0-12.0). Not confirmed: measured by the search alone.")

    def test_what_the_search_had_said_stands_beside_what_was_confirmed(self) -> None:
        row = self.row(Comparison.FASTER, 0.08, 0.06, 0.10)
        text = render.sentence(row | {"search_gain": row["gain"] | {"estimate": 0.124, "stage": "search"}})
        assert text.endswith("(95 %: 6.0-10.0); the search had said +12.4 %.")

    def test_not_comparable(self) -> None:
        row = self.row(Comparison.NOT_COMPARABLE, 0.1, 0.08, 0.12)
        flagged = row | {"trial": 3, "flags": ["not_comparable"]}
        assert render.sentence(flagged) == "X cannot be compared with no speculation: `sweep show 3` says why."
        nothing = render.sentence(row | {"gain": None})  # there is no flag to show
        assert nothing == "X cannot be compared with no speculation: it has no gain here."


class TestOthers:
    def test_pareto(self, sweep: Run, story: StudyRow) -> None:
        code, out, _ = sweep("pareto")
        assert code == 0
        assert "output_throughput@1 (maximize)" in out
        answer = json.loads(sweep("pareto", "--json")[1])
        assert {point["trial"] for point in answer["points"]} == {0, 1}

    def test_show(self, sweep: Run, story: StudyRow) -> None:
        out = sweep("show", "0")[1]
        assert "EAGLE3 k25-custom 3/4/5" in out
        assert "launch 1 on gpu-a, search stage: complete" in out
        failed = sweep("show", "2", "kimi")[1]
        assert "evidence   Segmentation fault" in failed
        assert "advice     See the log" in failed
        assert json.loads(sweep("show", "2", "--json")[1])["verdict"] == "crashed"

    def test_logs_and_command(self, sweep: Run, story: StudyRow) -> None:
        assert sweep("logs", "0")[1] == "[bold]ready[/bold]\n"
        assert json.loads(sweep("logs", "0", "--json")[1])["lines"] == ["[bold]ready[/bold]"]
        out = sweep("command", "0")[1]
        assert out.endswith("python3 -m sglang.launch_server --model-path '/models/a b'\n")

    @pytest.mark.parametrize(
        ("argv", "code", "words"),
        [
            (("best", "kimmi"), 5, "Near: kimi"),
            (("show", "9"), 2, "trials are numbered 0 to 2"),
            (("command", "2"), 2, "has had no launch yet"),
            (("best", "--objective", "speed@1"), 2, "unknown metric 'speed'"),
            (("show", "first"), 2, "Invalid value"),
        ],
    )
    def test_errors_have_their_exit_code(
        self, sweep: Run, story: StudyRow, argv: tuple[str, ...], code: int, words: str
    ) -> None:
        ended, out, err = sweep(*argv)
        assert (ended, out) == (code, "")
        assert words in err

    def test_no_database(self, sweep: Run, tmp_path: Path) -> None:
        code, _, err = sweep("best", db=f"sqlite:///{tmp_path / 'none.db'}")
        assert code == 3
        assert "no database at" in err


class TestRm:
    def test_asks_unless_told(self, sweep: Run, story: StudyRow, store: Store) -> None:
        code, _, err = sweep("rm", "kimi")
        assert code == 2
        assert "--yes" in err
        assert len(store.studies()) == 1
        assert sweep("rm", "kimi", "--yes")[:2] == (0, "deleted study 'kimi'\n")
        assert store.studies() == []

    def test_a_running_study_is_left_alone(self, sweep: Run, study: StudyRow, store: Store) -> None:
        store.set_controller(study.id, this_holder().as_dict())
        code, _, err = sweep("rm", "kimi", "--yes")
        assert code == 6
        assert "sweep stop kimi" in err
        store.set_controller(study.id, None)
        assert sweep("rm", "kimi", "--yes")[0] == 0

    def test_a_controller_killed_here_holds_nothing(self, sweep: Run, study: StudyRow, store: Store) -> None:
        gone = replace(this_holder(), start_time=1)  # this pid, but another process
        store.set_controller(study.id, gone.as_dict())
        store.controller_heartbeat(study.id)
        assert sweep("rm", "kimi", "--yes")[0] == 0

    def test_a_controller_elsewhere_holds_it_while_it_is_heard(
        self, sweep: Run, study: StudyRow, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.set_controller(study.id, replace(this_holder(), machine_id="another").as_dict())
        store.controller_heartbeat(study.id)
        assert sweep("rm", "kimi", "--yes")[0] == 6
        monkeypatch.setattr("sweep.controller.HOLDER_SILENT_S", 0.0)
        assert sweep("rm", "kimi", "--yes")[0] == 0


def test_help_of_each_command_needs_no_database(sweep: Run) -> None:
    for name in ("best", "pareto", "show", "logs", "command", "export", "rm"):
        code, out, _ = sweep(name, "--help")
        assert code == 0
        assert "--db" in out
