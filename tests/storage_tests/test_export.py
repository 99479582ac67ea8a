"""Exports hold every row with its right type, and nothing appears half written."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from storage import export as module
from storage import frames
from storage.export import export
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import SweepError, UsageError
from sweep.model import ArmConfig
from tests.storage_tests.samples import (
    ARM,
    FAILED,
    LATENCY,
    SPEED,
    block,
    gain,
)


@pytest.fixture
def full(store: Store, study: StudyRow, launch: Callable[..., int]) -> StudyRow:
    """A complete trial, a failed one, and a baseline launch."""
    store.add_trial(study.id, ARM, origin="sampler")
    for made in (launch(ARM, trial=0), launch(ArmConfig())):
        store.add_block(made, block())
        store.finish_launch(made)
    store.finish_trial(study.id, 0, values={SPEED.key: 82.3}, flags={"coerced": "x", "throttled": "y"})
    ngram = ArmConfig("NGRAM", num_draft_tokens=8, extra=(("ngram-breadth", 4),))
    store.add_trial(study.id, ngram, origin="sampler")
    store.finish_trial(study.id, 1, FAILED)
    store.replace_analysis(study.id, [gain(0, -0.086), gain(None, 0.01)], {"sentences": ["x"]})
    return study


def test_frames_have_their_types(store: Store, full: StudyRow) -> None:
    trials = frames.trials(store, full)
    assert list(trials["trial"]) == [0, 1]
    assert list(trials["verdict"]) == ["complete", "crashed"]
    assert list(trials[SPEED.key].dropna()) == [82.3]
    assert trials[LATENCY.key].isna().all()
    assert trials["num_steps"].dtype == "Int64"
    assert trials["num_steps"].isna().tolist() == [False, True]
    assert trials["args"].dropna().tolist() == ['{"ngram-breadth": 4}']
    assert trials["flags"].tolist() == ["coerced,throttled", ""]

    blocks = frames.blocks(store, full)
    assert blocks["role"].tolist() == ["candidate", "baseline"]
    assert blocks["trial"].isna().tolist() == [False, True]
    assert blocks["trial"].dtype == "Int64"
    assert blocks["output_throughput"].tolist() == [100.0, 100.0]
    assert blocks["algorithm"].isna().tolist() == [False, True]

    requests = frames.requests(store, full)
    assert len(requests) == 8
    assert requests["accept_histogram"].iloc[0] == "[10,25,15]"
    assert requests["output_tokens"].sum() == 800
    assert requests["output_hash"].iloc[0] == requests["output_hash"].iloc[4] != requests["output_hash"].iloc[1]

    gains = frames.gains(store, full)
    assert gains["trial"].isna().tolist() == [False, True]
    assert gains["estimate"].tolist() == [-0.086, 0.01]


def test_frames_of_an_empty_study(store: Store, study: StudyRow) -> None:
    for name, build in frames.FRAMES.items():
        frame = build(store, study)
        assert len(frame) == 0, name
        assert "simulated" in frame.columns


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(store: Store, full: StudyRow, tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    answer = export(store, full, kind, tmp_path / "out")
    assert answer["rows"] == {"trials": 2, "blocks": 2, "requests": 8, "gains": 2}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f"{name}.{kind}" for name in ("trials", "blocks", "requests", "gains")
    )
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    back = read(tmp_path / "out" / f"trials.{kind}")
    assert back["trial"].tolist() == [0, 1]
    assert back["num_draft_tokens"].tolist() == [5, 8]
    assert back[SPEED.key].iloc[0] == 82.3


def test_json(store: Store, full: StudyRow, tmp_path: Path) -> None:
    export(store, full, "json", tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["study"] == "kimi"
    assert document["analysis"] == {"sentences": ["x"]}
    assert document["trials"][0][SPEED.key] == 82.3
    assert document["trials"][1][SPEED.key] is None
    assert document["trials"][1]["num_steps"] is None
    assert len(document["requests"]) == 8
    assert document["gains"][0]["estimate"] == -0.086


def test_refusals(store: Store, full: StudyRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        export(store, full, "csv", tmp_path / "there")
    with pytest.raises(UsageError, match="does not exist"):
        export(store, full, "csv", tmp_path / "no" / "where")
    with pytest.raises(UsageError, match="none of csv, json, parquet"):
        export(store, full, "xls", tmp_path / "x")
    real = importlib.util.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "pyarrow" else real(name))
    with pytest.raises(UsageError, match=r"pip install 'specsweep\[parquet\]'"):
        export(store, full, "parquet", tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir() if "sweep.db" not in path.name) == ["there"]


def test_nothing_is_left_of_one_that_failed(
    store: Store, full: StudyRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full_disk)
    with pytest.raises(SweepError, match="No space left on device"):
        export(store, full, "csv", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "sweep.db" not in path.name] == []
