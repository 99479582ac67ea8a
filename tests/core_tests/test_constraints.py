"""Whether a trial keeps the constraints is judged by its newest search launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.store import Store
from sweep.config import load_text
from sweep.model import BASELINE, ArmConfig
from sweep.session import make_books
from tests.core_tests.search_rows import Truth, fill, launch, yaml

ARM = ArmConfig("EAGLE3", "head", 3, 4, 8)
LIMIT = "\nconstraints: ['output_throughput@1 > 120']\n"


def speed(of_arm: float) -> Truth:
    return lambda config, level: (of_arm if config.speculative else 100.0, 2.0 if config.speculative else 1.0)


@pytest.mark.parametrize(("first", "second", "keeps"), [(90.0, 140.0, True), (140.0, 90.0, False)])
def test_the_newest_launch_decides(tmp_path: Path, first: float, second: float, keeps: bool) -> None:
    text = yaml(more=LIMIT)
    with Store.open(f"sqlite:///{tmp_path}/c.db") as store:
        study = fill(store, {ARM: None}, speed(first), text=text)
        launch(store, study, BASELINE, None, 2, speed(first))
        books = make_books(store, study, load_text(text))
        [trial] = store.trials(study.id)
        assert all(v <= 0 for v in trial.constraints.values()) == (first > 120)
        launch(store, study, ARM, 0, 3, speed(second))
        launch(store, study, BASELINE, None, 4, speed(first))
        books = make_books(store, study, load_text(text))
        books.analyse()
        [trial] = store.trials(study.id)
        assert list(trial.constraints) == ["output_throughput@1 > 120"]
        assert all(v <= 0 for v in trial.constraints.values()) == keeps
