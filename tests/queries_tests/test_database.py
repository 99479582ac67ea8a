"""db check, backup, trim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.records import StudyState
from storage.store import Store
from tests.commands import Run


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


class TestCheck:
    def test_sound(self, sweep: Run) -> None:
        code, out, _ = sweep("db", "check", "--json")
        answer = json.loads(out)
        assert code == 0
        assert answer["sound"] is True
        assert answer["bytes"] > 100_000
        assert answer["studies"][0] | {"requests": 0} == {
            "study": "night", "state": "finished", "trimmed": False, "launches": 9, "blocks": 54, "requests": 0,
        }  # fmt: skip
        assert answer["studies"][0]["requests"] == 9 * 2 * (8 + 16 + 64)

    def test_growth_is_stated(self, sweep: Run) -> None:
        assert "bytes for each of 1584 requests" in sweep("db", "check")[1]

    def test_damaged(self, sweep: Run, own_url: str) -> None:
        file = path_of(own_url)
        with Store.open(own_url) as store:
            store.database.compact()
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 8192] = b"\xff" * 8192
        file.write_bytes(content)
        code, _, err = sweep("db", "check", db=own_url)
        assert code == 3
        assert "damaged" in err


class TestBackup:
    def test_copy_is_complete(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "copy.db"
        assert sweep("db", "backup", str(target))[0] == 0
        answer = json.loads(sweep("best", "night", "--json", db=f"sqlite:///{target}")[1])
        assert answer["best"][0]["trial"] == 1

    def test_an_existing_file_is_kept(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "copy.db"
        target.write_text("mine")
        assert sweep("db", "backup", str(target))[0] == 3
        assert target.read_text() == "mine"


class TestTrim:
    def test_requests_go_and_answers_stay(self, sweep: Run, own_url: str, tmp_path: Path) -> None:
        before = json.loads(sweep("best", "--json", db=own_url)[1])
        size = path_of(own_url).stat().st_size
        code, out, _ = sweep("db", "trim", "night", "--yes", "--json", db=own_url)
        answer = json.loads(out)
        assert code == 0
        assert answer["requests"] == 1584
        assert path_of(own_url).stat().st_size < size
        assert json.loads(sweep("best", "--json", db=own_url)[1]) == before
        assert sweep("report", "-o", str(tmp_path / "r.html"), db=own_url)[0] == 0
        assert json.loads(sweep("db", "check", "--json", db=own_url)[1])["studies"][0]["trimmed"] is True
        assert "nothing to trim" in sweep("db", "trim", "night", "--yes", db=own_url)[1]

    def test_a_trimmed_study_is_not_resumed(self, sweep: Run, own_url: str) -> None:
        sweep("db", "trim", "night", "--yes", db=own_url)
        code, _, err = sweep("resume", "night", db=own_url)
        assert code == 2
        assert "were deleted by `sweep db trim`" in err

    def test_asks_first(self, sweep: Run, own_url: str) -> None:
        code, _, err = sweep("db", "trim", "night", db=own_url)
        assert code == 2
        assert "add --yes" in err
        assert json.loads(sweep("db", "check", "--json", db=own_url)[1])["studies"][0]["requests"] == 1584

    def test_a_running_study_is_refused(self, sweep: Run, own_url: str) -> None:
        with Store.open(own_url) as store:
            store.set_state(store.study("night").id, StudyState.STOPPED)
        code, _, err = sweep("db", "trim", "night", "--yes", db=own_url)
        assert code == 2
        assert "only a finished study" in err

    @pytest.mark.parametrize(("days", "gone"), [("0", 1584), ("30", 0)])
    def test_by_age(self, sweep: Run, own_url: str, days: str, gone: int) -> None:
        answer = json.loads(sweep("db", "trim", "--older-than", days, "--yes", "--json", db=own_url)[1])
        assert answer["requests"] == gone

    def test_names_or_age(self, sweep: Run, own_url: str) -> None:
        assert sweep("db", "trim", "--yes", db=own_url)[0] == 2
        assert sweep("db", "trim", "night", "--older-than", "3", "--yes", db=own_url)[0] == 2
