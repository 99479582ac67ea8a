"""While a block is measured, Python's garbage collector stays out of it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sweep.bench.client import run_block
from sweep.bench.health import no_collection


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Generations collected, as they happen, with thresholds at which every few objects begin a collection."""
    seen: list[int] = []
    before = gc.get_threshold()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    gc.set_threshold(20, 2, 2)
    try:
        yield seen
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


def test_nothing_is_collected_between_the_first_send_and_the_last_answer(
    server: Any, make_spec: Any, collections: list[int]
) -> None:
    marks: list[int] = []

    def mark(_: int) -> None:
        marks.append(len(collections))

    block = run_block(server.target, make_spec("a", "b", "c", "d", concurrency=2), on_request=mark)
    assert block.invalid is None
    assert marks[0] > 0, "the thresholds are such that building the requests is collected many times"
    assert len(set(marks)) == 1
    assert len(collections) > marks[-1], "and so is reading the answers"
    assert gc.isenabled()


def test_overlapping_blocks_give_it_back_only_together() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with no_collection():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with no_collection():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_one_that_was_off_before_stays_off() -> None:
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
