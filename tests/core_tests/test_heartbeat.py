"""The controller's heartbeat, what keeps the leases of all hosts alive; and owners that hang, or get no place."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sweep import runner
from sweep.pool import HostLost
from sweep.reports import Prepared
from sweep.runner import Runner


class Deaf:
    """A pool whose owner `deaf` never answers, but to the calls in ``hears``."""

    def __init__(self, error: Exception | None = None, hears: tuple[str, ...] = ()) -> None:
        self.asked: Counter[str] = Counter()
        self._error = error
        self._hears = hears

    async def call(self, host: str, method: str, *_: Any) -> dict[str, Any]:
        self.asked[host] += 1
        if host == "deaf" and method not in self._hears:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return {"phase": None}


def beating(pool: Any) -> tuple[Runner, Counter[str]]:
    """A runner with two hosts, and what it tells the database: heartbeats, and events as KIND HOST."""
    told: Counter[str] = Counter()
    store = SimpleNamespace(
        stop_requested=lambda _: False,
        controller_heartbeat=lambda _: told.update(["beat"]),
        add_event=lambda _, host, kind, more: told.update([f"{kind} {host}", more.get("why", "")]),
    )
    nothing: Any = SimpleNamespace(study_id=1, screening=False, on_event=lambda _: None)
    settings = SimpleNamespace(lease_s=60.0)
    hosts = {
        name: SimpleNamespace(name=name, machine=name, aside=None, launch=None, phase=None, settings=settings)
        for name in ("deaf", "well")
    }

    def renewed(old: Any) -> Any:
        return SimpleNamespace(lease_s=old.lease_s, epoch=getattr(old, "epoch", 0) + 1)

    made = Runner(cast(Any, store), nothing, pool, cast(Any, hosts), nothing, {}, nothing, renewed, nothing)
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


@pytest.mark.parametrize(
    ("hears", "words"),
    [
        ((), "the owner of host deaf has not answered for 0.2 s and is given up"),
        (("cancel",), "the owner of host deaf has not ended its work 0.2 s after it was asked to and is given up"),
        (("cancel", "launch"), None),
    ],
)
def test_a_stop_waits_for_nobody_for_ever(
    hears: tuple[str, ...], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that hangs, one that answers but does not end its launch, and one that is well."""
    monkeypatch.setattr(runner, "ANSWER_S", 0.2)
    monkeypatch.setattr(runner, "STOP_S", 0.2)
    made, told = beating(Deaf(hears=hears))

    async def study() -> list[Any]:
        launches = [asyncio.ensure_future(made._calls.call(name, "launch")) for name in ("deaf", "well")]
        made._working = cast(Any, asyncio.gather(*launches))
        await made.stop("interrupted")
        return await asyncio.wait_for(asyncio.gather(*launches), 1.0)

    deaf, well = asyncio.run(study())
    assert well == {"phase": None}
    assert told["given_up well"] == 0
    assert told["given_up deaf"] == (words is not None)
    if words is None:
        assert deaf == {"phase": None}
    else:
        assert isinstance(deaf, HostLost)
        assert deaf.message.startswith(words)
        assert "within 60 s, its lease. `sweep ps deaf --space YAML` shows it" in deaf.message
        assert told[deaf.message] == 1, "the event says the same"


def test_sweep_stop_costs_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for an owner that hangs, the others are asked as ever."""
    monkeypatch.setattr(runner, "HEARTBEAT_S", 0.02)
    pool = Deaf()
    made, told = beating(pool)
    cast(Any, made.store).stop_requested = lambda _: True
    asyncio.run(beat(made))
    assert told["stopping None"] == 1
    assert told["given_up deaf"] == 0, "its 20 s are not over"
    assert told["beat"] >= 4
    assert pool.asked["well"] >= 5


def test_an_owner_that_answers_no_heartbeats_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(runner, "SILENT_ROUNDS", 3)
    pool = Deaf()
    made, told = beating(pool)
    asyncio.run(beat(made))
    assert told["given_up deaf"] == 1
    assert told["given_up well"] == 0
    assert pool.asked["deaf"] == 1, "answered for it from then on"


def test_an_error_of_ours_in_a_stop_is_raised_once_every_owner_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ANSWER_S", 0.1)
    pool = Deaf(error=RuntimeError("a bug"))
    made, told = beating(pool)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(made.stop("interrupted"))
    assert pool.asked == {"deaf": 1, "well": 1}
    assert told["given_up deaf"] == 1


def test_work_that_has_ended_in_time_is_not_followed_by_giving_up() -> None:
    """Owners that are being closed, or asked for a heartbeat, are busy, and well."""
    made, told = beating(Deaf(hears=("cancel", "launch")))

    async def study() -> bool:
        work = asyncio.ensure_future(made._calls.call("deaf", "launch"))
        made._working = work
        closing = asyncio.ensure_future(made._calls.call("deaf", "close"))
        await made.stop("interrupted")
        return closing.done()

    assert not asyncio.run(study())
    assert told["given_up deaf"] == 0


class Placing:
    """A pool whose owner is gone before it has answered, so many times."""

    def __init__(self, lost: int) -> None:
        self.left = lost
        self.epochs: list[int] = []

    def open(self, settings: Any) -> None:
        self.epochs += [value.epoch for value in settings.values()]

    async def call(self, host: str, method: str) -> Any:
        self.left -= 1
        return HostLost(host, "its node is dead") if self.left >= 0 else Prepared(left_over=("1",))


@pytest.mark.parametrize(("lost", "stopping"), [(0, False), (3, False), (99, False), (99, True)])
def test_an_owner_on_a_lost_node_is_placed_again(lost: int, stopping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while, and not while the study stops."""
    monkeypatch.setattr(runner, "PLACE_S", 0.3)
    monkeypatch.setattr(runner, "PLACE_PAUSE_S", 0.01)
    monkeypatch.setattr(runner, "PLACE_PAUSE_MAX_S", 0.05)
    pool = Placing(lost)
    made, told = beating(pool)
    made._stopping = "interrupted" if stopping else None
    answer = asyncio.run(asyncio.wait_for(made._prepared(made.hosts["well"]), 2.0))
    times = told["placing well"]
    assert pool.epochs == list(range(1, times + 1)), "each of a higher epoch than the one before"
    if lost < 99:
        assert answer.left_over == ("1",)
        assert times == lost
    else:
        assert answer.error == "its node is dead"
        assert times == 0 if stopping else times > 1


def test_a_stop_between_two_placements_makes_no_further_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not know that the study stops, and take the host."""
    monkeypatch.setattr(runner, "PLACE_PAUSE_S", 30.0)
    pool = Placing(99)
    made, told = beating(pool)

    async def study() -> Prepared:
        answer = asyncio.ensure_future(made._prepared(made.hosts["well"]))
        while not told["placing well"]:
            await asyncio.sleep(0)
        made._stopping = "interrupted"
        made._stop_asked.set()
        return await asyncio.wait_for(answer, 2.0)

    assert asyncio.run(study()).error == "its node is dead"
    assert pool.epochs == []
