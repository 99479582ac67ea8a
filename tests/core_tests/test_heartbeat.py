"""The controller's heartbeat: what keeps the leases of all hosts alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sweep import runner
from sweep.runner import Runner


class Deaf:
    """A pool whose owner `deaf` never answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self._error = error

    async def call(self, host: str, method: str) -> dict[str, Any]:
        self.asked[host] += 1
        if host == "deaf":
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return {"phase": None}


def beating(pool: Deaf) -> tuple[Runner, Counter[str]]:
    """A runner with two hosts, and what it tells the database."""
    told: Counter[str] = Counter()
    store = SimpleNamespace(
        stop_requested=lambda _: False, controller_heartbeat=lambda _: told.update(["beat"]), add_event=lambda *_: None
    )
    nothing: Any = SimpleNamespace(study_id=1, screening=False, on_event=lambda _: None)
    hosts = {name: SimpleNamespace(name=name, aside=None, launch=None, phase=None) for name in ("deaf", "well")}
    made = Runner(cast(Any, store), nothing, cast(Any, pool), cast(Any, hosts), nothing, {}, nothing, nothing, nothing)
    return made, told


async def beat(made: Runner) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(made._heartbeat(), 0.5)


def test_an_owner_that_does_not_answer_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_S", 0.02)
    pool = Deaf()
    made, told = beating(pool)
    asyncio.run(beat(made))
    assert pool.asked["well"] >= 4
    assert pool.asked["deaf"] == 1, "asked again only when it has answered"
    assert told["beat"] >= 4


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_S", 0.02)
    made, _ = beating(Deaf(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(beat(made))
