"""The report as text: what stands in it, that nothing from outside is markup, that it needs no network.

Over 300 lines: one page, all that is said of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape as escaped

from storage.records import StudyRow
from storage.store import Store
from sweep.model import Role, Stage
from sweep.report.drawing import Key, Plot, figure_of, script_json, short_names, text
from sweep.report.facts import collect
from sweep.report.markdown import escape, unbroken
from sweep.report.markdown import render as markdown
from sweep.report.page import duration, laid_out
from sweep.report.page import render as html
from sweep.report.page import unbroken as in_page
from sweep.sentences import tie_because
from tests.commands import Run
from tests.report_tests.made import EVIL, LONG, YAML, make

PLOTS = ("pareto", "concurrency", "category", "acceptance", "depth", "step", "drift")


class Parsed(HTMLParser):
    """Scripts by their attributes, visible text, and every address."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self.addresses: list[str] = []
        self._open: dict[str, str | None] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [str(found[key]) for key in ("src", "href") if key in found]
        if tag in ("script", "style"):
            self._open = found
            self.scripts.append((found, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            attrs, before = self.scripts[-1]
            self.scripts[-1] = (attrs, before + data)
        else:
            self.text.append(data)

    def specs(self) -> dict[str, dict[str, object]]:
        found = [(attrs, body) for attrs, body in self.scripts if attrs.get("type") == "application/json"]
        return {str(attrs["id"]).removeprefix("spec-"): json.loads(body) for attrs, body in found}


@pytest.fixture
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


class TestPage:
    def test_begins_with_the_verdict(self, parsed: Parsed) -> None:
        words = "".join(parsed.text)
        assert re.search(r"EAGLE3 good 3/1/4 is \d\d\.\d % faster than no speculation \(95 %: [\d.]+-[\d.]+\)", words)

    def test_has_every_plot_with_data(self, parsed: Parsed) -> None:
        specs = parsed.specs()
        assert [key for key in specs if not key.startswith("effect")] == list(PLOTS)
        assert {key for key in specs if key.startswith("effect")} != set()
        for spec in specs.values():
            data = spec["data"]
            assert isinstance(data, list)
            assert data
            assert all(trace.get("x") for trace in data)

    def test_shows_crossover_failures_noise_and_provenance(self, parsed: Parsed) -> None:
        words = " ".join(" ".join(parsed.text).split())
        assert re.search(r"Trial 1 gains below \d+ concurrent requests, loses above", words)
        assert "out of memory" in words
        assert "Lower --mem-fraction-static" in words
        assert "configurations were sorted out before any launch" in words
        assert "smallest gain found with one launch" in words
        assert "2 x NVIDIA H200 140 GiB, driver 580" in words
        assert "abcdefabcdef (search@1, search@32, search@8)" in words

    def test_says_whose_output_differs(self, parsed: Parsed) -> None:
        words = " ".join(" ".join(parsed.text).split())
        said = words[words.index("widest near-tie") : words.index("What did not run, and what may not win")]
        assert said.count("as the baseline") == 3
        assert said.count("output differs") == 1
        assert f"prompt p1, token 7: {EVIL}" in said

    def test_no_output_check_is_said_too(self, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'none.db'}") as other:
            found = html(collect(other, make(other, arms=())))
        assert "Not compared: that takes greedy answers" in found
        assert "output differs" not in found

    def test_command_of_the_winner_keeps_secrets_out(self, parsed: Parsed) -> None:
        words = "".join(parsed.text)
        assert "NCCL_PROTO='LL 128' HF_TOKEN=\"${HF_TOKEN}\" python3 -m sglang.launch_server" in words
        assert "--speculative-num-steps 3 --speculative-eagle-topk 1" in words
        assert "@PYTHON@" not in words

    def test_nothing_from_outside_is_markup(self, parsed: Parsed, page: Path) -> None:
        assert EVIL in "".join(parsed.text)  # shown as text: drafter, evidence, read-back path
        assert EVIL not in page.read_text(encoding="utf-8")
        ours = [attrs for attrs, _ in parsed.scripts if "type" not in attrs]
        assert len(ours) == 3  # style sheet, plotly, our own script

    def test_needs_no_network(self, parsed: Parsed) -> None:
        assert [a for a in parsed.addresses if not a.startswith(("#", "data:"))] == []

    def test_simulated_is_said_first(self, store: Store, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'one.db'}") as other:
            study = other.create_study(
                "sim", engine="simulated", spec={}, yaml="", space_hash="", seed=1, tool_version="0.1",
                objectives=store.study("night").objectives, simulated=True, profile="h200-llama8b",
            )  # fmt: skip
            empty = html(collect(other, study))
        assert empty.index("SIMULATED: this study ran on simulated servers") < empty.index('class="verdict"')
        assert "complete yet: nothing to rank" in empty
        assert "Nothing is measured yet." in empty

    def test_other_objective(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "at32.html"
        assert sweep("report", "night", "-o", str(target), "--objective", "output_throughput@32")[0] == 0
        assert "EAGLE3 good 1/1/2 is" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("is 39.4 % faster (95 %: 37.3-41.6), 1.51", ["39.4 %", "95 %: 37.3-41.6"]),
        ("+0.4 % (95 %: -1.1 to +1.9)", ["+0.4 %", "95 %: -1.1 to +1.9"]),
        ("-8.6 % (-10.0 .. -7.1)", ["-8.6 %", "-10.0 .. -7.1"]),
        ("the interval is -0.9 % to +5.6 %.", ["-0.9 % to +5.6 %"]),
        ("EAGLE3 k25-custom 3/4/16 <b>, no graphs", []),
    ],
)
def test_intervals_stay_whole(said: str, kept: list[str]) -> None:
    page = in_page(said)
    assert re.findall(r'<span class="whole">(.*?)</span>', page) == kept
    assert page.striptags() == escaped(said).striptags()
    assert unbroken(said).replace("\N{NO-BREAK SPACE}", " ").replace("\N{NON-BREAKING HYPHEN}", "-") == said
    assert sum(map(unbroken(said).count, "\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}")) == sum(
        len(re.findall(r" |(?<=\d)-", piece)) for piece in kept
    )


class TestMarkdown:
    def test_is_short_and_escaped(self, store: Store, study: StudyRow) -> None:
        found = markdown(collect(store, study))
        assert found.startswith("## Speculative decoding: night\n\n**EAGLE3 good 3/1/4 is ")
        assert len(found) < 8000
        assert "<script" not in found
        assert "&lt;script\\>window.hacked=1" in found
        assert "| 1 | EAGLE3 good 3/1/4 |" in found
        assert "| 4 | EAGLE3 other 1/4/8 | launch\\_oom |" in found
        assert found.count("Output differs: ") == 1
        assert "\\>window.hacked=1&lt;/script\\> 3/4/8 in 3 of 8 answers." in found

    def test_by_name_of_the_file_and_on_stdout(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "r.md"
        assert sweep("report", "night", "-o", str(target))[0] == 0
        assert target.read_text(encoding="utf-8").startswith("## ")
        _, out, _ = sweep("report", "night", "-o", "-", "--format", "md")
        assert out.startswith("## Speculative decoding")

    @pytest.mark.parametrize(
        ("given", "shown"),
        [("a|b", "a\\|b"), ("`x`\ny", "\\`x\\` y"), ("<b>&", "&lt;b\\>&amp;"), ("3.5 %", "3.5 %"), ("$x$", "\\$x\\$")],
    )
    def test_escape(self, given: str, shown: str) -> None:
        assert escape(given) == shown


class TestWhatTheNumbersAreNot:
    """A forced accept length is said above all else; a tie whose interval excludes 0 says why it is one."""

    def test_forced_accept_length(self, tmp_path: Path) -> None:
        yaml = YAML.replace('NCCL_PROTO: "LL 128"', 'SGLANG_SIMULATE_ACC_LEN: "2.39"')
        with Store.open(f"sqlite:///{tmp_path / 'forced.db'}") as other:
            facts = collect(other, make(other, yaml=yaml))
        page, text = html(facts), markdown(facts)
        assert page.index("ACCEPT LENGTH FORCED to 2.39") < page.index('class="verdict"')
        assert page.count("ACCEPT LENGTH FORCED") == 1
        assert text.index("> **ACCEPT LENGTH FORCED to 2.39") < text.index("**EAGLE3 good 3/1/4 is")

    def test_not_forced(self, store: Store, study: StudyRow) -> None:
        facts = collect(store, study)
        assert "FORCED" not in html(facts) + markdown(facts)

    def test_a_tie_by_correction(self, store: Store, study: StudyRow) -> None:
        facts = collect(store, study)
        assert "Holm" not in html(facts) + markdown(facts)
        tie = {"reason": "correction", "low": -0.01, "high": 0.4, "comparisons": 12}
        row = {**facts.ranking[1], "comparison": "tie", "tie_because": tie}
        best = {**facts.best, "best": [facts.ranking[0], row, *facts.ranking[2:]]}
        changed = replace(facts, best=best)
        said = tie_because(tie)
        assert "Holm's correction" in said
        assert f"<small>{escaped(said)}</small>" in html(changed)
        assert f"- EAGLE3 other 3/4/8 is a tie {unbroken(said)}." in markdown(changed)


class TestCommand:
    def test_an_existing_file_is_kept(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "r.html"
        target.write_text("mine")
        code, _, err = sweep("report", "night", "-o", str(target))
        assert code == 2
        assert "--force" in err
        assert target.read_text() == "mine"
        assert sweep("report", "night", "-o", str(target), "--force")[0] == 0
        assert target.stat().st_size > 1_000_000

    def test_a_folder_that_is_not_there(self, sweep: Run, tmp_path: Path) -> None:
        code, _, err = sweep("report", "night", "-o", str(tmp_path / "no" / "r.html"))
        assert code == 1
        assert "cannot write" in err

    def test_json(self, sweep: Run, tmp_path: Path) -> None:
        _, out, _ = sweep("report", "night", "-o", str(tmp_path / "r.html"), "--json")
        assert json.loads(out)["format"] == "html"

    def test_status_counts_gpu_hours(self, sweep: Run, store: Store, study: StudyRow) -> None:
        _, out, _ = sweep("status", "night", "--json")
        seconds = sum((x.ended_at or 0.0) - x.begun_at for x in store.launches(study.id))
        assert json.loads(out)["gpu_hours"] == pytest.approx(2 * seconds / 3600)  # two GPUs a server


class TestParts:
    def test_legend_has_the_named_traces_with_their_own_marks(self) -> None:
        figure = figure_of()
        figure.add_scatter(x=[1], y=[1], mode="markers", marker={"color": "#111", "symbol": "star"}, name="&lt;b&gt;")
        figure.add_bar(x=[1], y=[1], marker={"color": "#222"})
        figure.add_bar(x=[1], y=[1], marker={"color": "#333"}, name="bar")
        figure.add_scatter(x=[1], y=[1], mode="lines", line={"color": "#444"}, name="line")
        assert Plot("k", "t", "h", figure).legend() == [
            Key("<b>", "★", "#111", 0),
            Key("bar", "■", "#333", 2),
            Key("line", "╌", "#444", 3),
        ]

    @pytest.mark.parametrize(
        ("labels", "shared", "rest"),
        [
            (["EAGLE3 head 3/1/4", "EAGLE3 head 3/4/8, no graphs"], "EAGLE3 head", ["3/1/4", "3/4/8, no graphs"]),
            (["EAGLE3 a 3/1/4", "EAGLE3 b 3/1/4"], "EAGLE3", ["a 3/1/4", "b 3/1/4"]),
            (["EAGLE3 a 3/1/4", "NGRAM 8"], "", ["EAGLE3 a 3/1/4", "NGRAM 8"]),
            (["NGRAM", "NGRAM"], "", ["NGRAM", "NGRAM"]),
            (["EAGLE3 a 3/1/4"], "", ["EAGLE3 a 3/1/4"]),
            ([], "", []),
        ],
    )
    def test_words_that_all_arms_share_are_said_once(self, labels: list[str], shared: str, rest: list[str]) -> None:
        assert short_names(dict(enumerate(labels))) == (shared, dict(enumerate(rest)))

    @pytest.mark.parametrize(
        ("wide", "expected"),
        [([1, 0, 0, 0, 1], [1, 0, 0, 1, 1]), ([1, 0, 0, 1], [1, 0, 0, 1]), ([0], [1]), ([0, 0, 0], [0, 0, 1])],
    )
    def test_no_plot_stands_beside_nothing(self, wide: list[int], expected: list[int]) -> None:
        plots = [Plot(str(n), "", "", figure_of(), wide=bool(w)) for n, w in enumerate(wide)]
        assert [plot.wide for plot in laid_out(plots)] == [bool(w) for w in expected]

    def test_gpu_hours_are_split_by_purpose(self, store: Store, study: StudyRow) -> None:
        hours = collect(store, study).gpu_hours()
        assert hours["total"] == pytest.approx(hours["search"] + hours["references"])
        assert hours["confirm"] == 0
        assert 0 < hours["search"] < hours["total"]

    def test_json_cannot_leave_its_element(self) -> None:
        assert json.loads(script_json('{"a": "</script>&"}')) == {"a": "</script>&"}
        assert "<" not in script_json('"</script>"')

    def test_plot_texts_are_escaped_and_cut(self) -> None:
        assert text("<a href='x'>") == "&lt;a href='x'&gt;"
        assert len(text("x" * 500)) == 60

    @pytest.mark.parametrize(("seconds", "words"), [(41.2, "41 s"), (423, "7 min 03 s"), (7500, "2 h 05 min")])
    def test_duration(self, seconds: float, words: str) -> None:
        assert duration(seconds) == words

    def test_before_the_first_block(self, tmp_path: Path) -> None:
        """A launch has begun, nothing is measured: every query that the page makes must do with that."""
        with Store.open(f"sqlite:///{tmp_path / 'early.db'}") as other:
            study = make(other, arms=(), baseline=False)
            other.begin_launch(
                study.id, arm=LONG, role=Role.CANDIDATE, host="gpu-a", stage=Stage.SEARCH, sequence=1, trial=0
            )
            assert "nothing to rank" in html(collect(other, study))

    def test_with_the_baseline_alone(self, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'base.db'}") as other:
            facts = collect(other, make(other, arms=()))
            assert "smallest gain found with one launch" in html(facts)
            assert "nothing to rank" in markdown(facts)

    def test_a_study_that_runs_is_reported_too(self, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'two.db'}") as other:
            study = make(other, failed=[LONG])
            facts = collect(other, study)
        assert {trial.config for trial in facts.failures()} > {LONG}
        assert facts.leader is not None
        assert facts.leader["trial"] != 1
