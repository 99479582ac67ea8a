"""compare and history: what counts as better, as noise, as a regression, and what may not be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage import schema
from storage.store import Store
from tests.commands import Run
from tests.report_tests.made import LONG, make


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same study four times: as it was, again, with candidates 10 % slower, with one arm lost."""
    url = f"sqlite:///{tmp_path_factory.mktemp('pair') / 'both.db'}"
    with Store.open(url) as store:
        make(store, "before")
        make(store, "again")
        make(store, "slow", faster=0.9)
        make(store, "lost", failed=[LONG])
    return url


class TestCompare:
    def test_no_change_is_within_noise(self, sweep: Run, both: str) -> None:
        code, out, _ = sweep("compare", "before", "again", "--fail-on", "3%", "--json", db=both)
        answer = json.loads(out)
        assert code == 0
        assert answer["regressions"] == []
        words = {found["word"] for arm in answer["arms"] for found in arm["objectives"].values()}
        assert words == {"within_noise"}
        assert len(answer["arms"]) == 6  # the baseline, four that were measured, one that dies in both
        assert answer["arms"][0]["trials"] == [None, None]

    def test_a_regression_fails_with_1(self, sweep: Run, both: str) -> None:
        code, out, err = sweep("compare", "before", "slow", "--fail-on", "3%", db=both)
        assert code == 1
        assert "worse" in out
        assert "regression: EAGLE3 good 3/1/4: output_throughput@1 -10.0 %" in err
        arms = json.loads(sweep("compare", "before", "slow", "--json", db=both)[1])["arms"]
        assert arms[0]["objectives"]["output_throughput@1"]["word"] == "within_noise"  # the baseline did not change

    def test_not_beyond_the_threshold(self, sweep: Run, both: str) -> None:
        code, out, _ = sweep("compare", "before", "slow", "--fail-on", "15%", db=both)
        assert code == 0
        assert "no regression beyond 15 %" in out

    def test_without_fail_on_nothing_fails(self, sweep: Run, both: str) -> None:
        assert sweep("compare", "before", "slow", db=both)[0] == 0

    def test_better_is_positive(self, sweep: Run, both: str) -> None:
        answer = json.loads(sweep("compare", "slow", "before", "--fail-on", "0%", "--json", db=both)[1])
        found = [arm["objectives"]["output_throughput@1"] for arm in answer["arms"][1:5]]
        assert {item["word"] for item in found} == {"better"}
        assert all(item["change"]["estimate"] == pytest.approx(1 / 0.9 - 1, abs=0.01) for item in found)
        assert answer["regressions"] == []

    def test_a_lost_arm_is_a_regression(self, sweep: Run, both: str) -> None:
        code, _, err = sweep("compare", "before", "lost", "--fail-on", "50%", db=both)
        assert code == 1
        assert "regression: EAGLE3 good 3/1/4: is lost" in err
        back = json.loads(sweep("compare", "lost", "before", "--fail-on", "50%", "--json", db=both)[1])
        assert [arm["word"] for arm in back["arms"] if arm["label"] == "EAGLE3 good 3/1/4"] == ["recovered"]
        assert back["regressions"] == []

    def test_over_two_databases(self, sweep: Run, both: str, url: str) -> None:
        code, out, _ = sweep("compare", "before", "night", "--db-b", url, db=both)
        assert code == 0
        assert out.count("within noise") == 10

    def test_different_loads_are_refused(self, sweep: Run, tmp_path: Path) -> None:
        own = f"sqlite:///{tmp_path / 'own.db'}"
        with Store.open(own) as store:
            make(store, "one")
            other = make(store, "two")
            spec = {**other.spec, "workload": {**other.spec["workload"], "max_tokens": 7}}
            table = schema.studies
            store.database.write(lambda c: c.execute(sa.update(table).where(table.c.id == other.id).values(spec=spec)))
        code, _, err = sweep("compare", "one", "two", db=own)
        assert code == 2
        assert "max_tokens 256 and 7" in err

    def test_what_else_differs_is_said(self, sweep: Run, tmp_path: Path) -> None:
        own = f"sqlite:///{tmp_path / 'own.db'}"
        with Store.open(own) as store:
            make(store, "one")
            other = make(store, "two")
            args = {**other.spec["server"]["args"], "page-size": 16}
            spec = {**other.spec, "server": {**other.spec["server"], "args": args}}
            table = schema.studies
            store.database.write(lambda c: c.execute(sa.update(table).where(table.c.id == other.id).values(spec=spec)))
        assert "differs: server page-size: 1 -> 16" in sweep("compare", "one", "two", db=own)[1]

    def test_unknown_study(self, sweep: Run, both: str) -> None:
        assert sweep("compare", "before", "nowhere", db=both)[0] == 5


class TestHistory:
    def test_over_all_studies(self, sweep: Run, both: str) -> None:
        answer = json.loads(sweep("history", "1", "before", "--json", db=both)[1])
        assert [run["study"] for run in answer["runs"]] == ["before", "again", "slow", "lost"]
        before, again, slow, lost = answer["runs"]
        assert before["value"] == again["value"]
        assert slow["value"] == pytest.approx(0.9 * before["value"], rel=0.01)
        assert (lost["verdict"], lost["value"], lost["gain"]) == ("launch_oom", None, None)

    def test_text_and_errors(self, sweep: Run, both: str) -> None:
        code, out, _ = sweep("history", "1", "before", db=both)
        assert code == 0
        assert out.splitlines()[0] == "EAGLE3 good 3/1/4, output_throughput@1"
        assert sweep("history", "77", "before", db=both)[0] == 2
