"""Arms that may change the answers are a class of their own: they neither stop nor displace those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.store import Store
from sweep.books import Books
from sweep.config import load_text
from sweep.model import BASELINE, ArmConfig
from sweep.session import make_books
from tests.core_tests.search_rows import GOALS, block, fill, launch, yaml

EXACT = ArmConfig("EAGLE3", "head", 3, 1, 4)
OTHER = ArmConfig("EAGLE3", "head", 6, 1, 7)
LOSSY = replace(EXACT, extra=(("speculative-accept-threshold-single", 0.5),))
LOSSIER = replace(EXACT, extra=(("speculative-accept-threshold-single", 0.25),))
FACTORS = {LOSSY: 2.0, LOSSIER: 1.9, EXACT: 1.4, OTHER: 1.3}
TEXT = yaml().replace("  cuda_graph:", "  args: {speculative-accept-threshold-single: [0.25, 0.5, 1.0]}\n  cuda_graph:")


def truth(config: ArmConfig, level: int) -> tuple[float, float]:
    return 100.0 * level**0.8 * FACTORS.get(config, 1.0), 2.0 if config.speculative else 1.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/l.db") as store:
        yield store


def books(store: Store, *arms: ArmConfig) -> Books:
    study = fill(store, dict.fromkeys(arms), truth, text=TEXT)
    launch(store, study, BASELINE, None, 9, truth)
    return make_books(store, study, load_text(TEXT))


def why_stopped(found: Books, arm: ArmConfig, rival: ArmConfig) -> str | None:
    """What the race says of an arm that shows half of what ``rival`` does."""
    slow = [block(g.concurrency, 0.5 * truth(rival, g.concurrency)[0], 2.0, speculative=True) for g in GOALS]
    return found.hopeless("gpu-a", arm, slow)


def test_the_texts_are_what_the_test_is_about() -> None:
    assert LOSSY.lossy
    assert LOSSIER.lossy
    assert not EXACT.lossy


@pytest.mark.parametrize(
    ("measured", "raced", "stopped"),
    [(LOSSY, EXACT, False), (LOSSY, LOSSIER, True), (EXACT, OTHER, True), (EXACT, LOSSY, True)],
    ids=["exact by lossy", "lossy by lossy", "exact by exact", "lossy by exact"],
)
def test_who_stops_whom(store: Store, measured: ArmConfig, raced: ArmConfig, stopped: bool) -> None:
    assert (why_stopped(books(store, measured), raced, measured) is not None) is stopped


def test_the_confirm_stage_is_for_what_is_ranked(store: Store) -> None:
    found = books(store, LOSSY, EXACT, OTHER, LOSSIER)
    assert [arm for _, arm in found.to_confirm("gpu-a", 2, 1)] == [EXACT, OTHER]


def test_where_every_arm_is_lossy_the_best_of_them_are_confirmed(store: Store) -> None:
    found = books(store, LOSSIER, LOSSY)
    assert LOSSY in [arm for _, arm in found.to_confirm("gpu-a", 1, 1)]
