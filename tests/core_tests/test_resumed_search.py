"""A study resumed after its search was decided goes on with the confirm stage, unless the search was changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.search_state import ENDED
from storage.store import Store
from sweep.config import StudySpec, load_text
from sweep.model import BASELINE, ArmConfig
from sweep.session import make_books
from tests.core_tests.search_rows import add, fill, launch, yaml

ARMS = [
    ArmConfig("EAGLE3", "head", 6, 1, 7),
    ArmConfig("EAGLE3", "head", 4, 4, 16),
    ArmConfig("EAGLE3", "head", 3, 4, 8),
]


def truth(config: ArmConfig, level: int) -> tuple[float, float]:
    return (100.0 * level**0.8 * (1.4 if config.speculative else 1.0), 2.0 if config.speculative else 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Three trials between two baselines; as the confirm stage has left it, the model would go on."""
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        study = fill(store, dict.fromkeys(ARMS), truth)
        launch(store, study, BASELINE, None, 9, truth)
        yield store


def left(store: Store, spec: StudySpec | None = None, budget: int | None = None) -> bool:
    books = make_books(store, store.study("night"), spec or load_text(yaml()))
    return books.work_left(budget)


def decided(store: Store, **changes: Any) -> None:
    said = {"reason": "decided", "why": "", "trials": 3, "sampler": "model", "tolerance": 0.01}
    whole = make_books(store, store.study("night"), load_text(yaml())).proposing.whole
    store.add_event(store.study("night").id, None, ENDED, {**said, "candidates": whole, **changes})


def test_a_search_that_was_not_decided_goes_on(store: Store) -> None:
    assert left(store)
    decided(store, reason="time")
    assert left(store)
    assert not left(store, budget=3)


def test_one_that_was_does_not_begin_anew(store: Store) -> None:
    decided(store)
    assert not left(store)


@pytest.mark.parametrize(
    ("more", "changes"),
    [
        ("budget: {regret: 0.005}", {}),
        ("sampler: random", {}),
        ("known_good: [{algorithm: EAGLE3, num_steps: 3, topk: 1, num_draft_tokens: 4}]", {}),
        ("", {"candidates": 7}),
    ],
    ids=["tolerance", "sampler", "known good", "space"],
)
def test_unless_what_is_searched_was_changed(store: Store, more: str, changes: dict[str, Any]) -> None:
    decided(store, **changes)
    assert left(store, load_text(yaml(more=more)))


def test_or_another_trial_came_after_it(store: Store) -> None:
    decided(store)
    study = store.study("night")
    add(store, study, ArmConfig("EAGLE3", "head", 2, 1, 3), truth)
    launch(store, study, BASELINE, None, 10, truth)
    assert left(store)
