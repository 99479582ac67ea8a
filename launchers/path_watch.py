"""Did the path to a host stand still while a block was measured?

An outage of a few seconds breaks nothing: TCP sends again what was lost, every stream goes on, and the block looks as
if the server had been slow. Keepalive requests travel over the same connection as the streams and are answered by sshd
itself, whatever the server does: one that comes back late shows that it was the path.

One is answered before the block's first request and one is asked after its last chunk, so that a block which is too
short for two has something to compare with, and both ends are seen. An outage began at some time between the last
answer before it and the request that came back late: the earlier is taken. One of less than LATE_S + INTERVAL_S may
fall between two requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from sweep.errors import HostError

INTERVAL_S = 0.25
LATE_S = 0.5  # a request later than the fastest one by more than this; less is a busy machine at either end
SHARE = 0.01  # of a block's time: less than that moves no figure that could be told from noise
EDGE_S = 2.0  # an answer before the block, and those after it, are waited for so long; a block is not held up for more

Exchange = tuple[float, float]  # when it was asked and when it was answered, on the monotonic clock


class PathWatch:
    """Asks about four times a second in a thread of its own, between :meth:`start` and :meth:`stop`.

    ``ping`` is one round trip; while it raises HostError the connection is broken, which others make anew.
    """

    def __init__(self, ping: Callable[[], object], interval_s: float = INTERVAL_S) -> None:
        self._ping = ping
        self._interval_s = interval_s
        self._over = threading.Event()
        self._answered = threading.Event()
        self._done = threading.Event()
        self._lock = threading.Lock()  # over the two below
        self._exchanges: list[Exchange] = []
        self._asked: float | None = None  # since when an answer is outstanding
        self._begun = 0.0

    def start(self) -> None:
        """The block begins when this returns: after the first answer, or after EDGE_S without one."""
        threading.Thread(target=self._watch, name="path-watch", daemon=True).start()
        self._answered.wait(EDGE_S)
        self._begun = time.monotonic()

    def _watch(self) -> None:
        last = False
        while not last:
            last = self._over.is_set()
            with self._lock:
                self._asked = self._asked or time.monotonic()
            with contextlib.suppress(HostError):
                self._ping()
                with self._lock:
                    self._exchanges.append((self._asked, time.monotonic()))
                    self._asked = None
                self._answered.set()
            if not last:
                self._over.wait(self._interval_s)
        self._done.set()

    def stop(self) -> float:
        """Seconds for which the path stood still since :meth:`start`, at most; see :func:`stood_still`."""
        ended = time.monotonic()
        self._over.set()
        self._done.wait(EDGE_S)
        with self._lock:
            return stood_still(self._exchanges, self._asked, self._begun, ended)


def stood_still(exchanges: Sequence[Exchange], asked: float | None, begun: float, ended: float) -> float:
    """Seconds between ``begun`` and ``ended`` without a path, by the exchanges and one still outstanding (``asked``).

    0 where nothing was answered at all: there is nothing to compare with, and a path that was away all the time brought
    no chunks either.
    """
    if not exchanges:
        return 0.0
    usual = min(answered - sent for sent, answered in exchanges)
    outstanding = [] if asked is None else [(asked, time.monotonic())]
    still, there = 0.0, begun  # `there`: when the path was last seen to be there
    for sent, answered in [*exchanges, *outstanding]:
        if answered - sent - usual > LATE_S:
            still += max(0.0, min(answered - usual, ended) - max(there, begun))
        there = answered
    return still


def why_disturbed(still_s: float, elapsed_s: float) -> str | None:
    """Why a block of ``elapsed_s`` seconds may not be used after ``still_s`` without a path; None where it may."""
    if still_s <= SHARE * elapsed_s:
        return None
    return (
        f"the path to the host stood still for {still_s:.1f} of {elapsed_s:.1f} s: keepalive requests came back that "
        "late, so the time was the network's and not the server's"
    )
