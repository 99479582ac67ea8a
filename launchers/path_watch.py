"""Did the path to a host stand still while a block was measured?

An outage of a few seconds breaks nothing: TCP sends again what was lost, every stream goes on, and the block looks as
if the server had been slow. Keepalive requests travel over the same connection as the streams and are answered by sshd
itself, whatever the server does: one that comes back late shows that it was the path.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from sweep.errors import HostError

INTERVAL_S = 0.25
LATE_S = 0.5  # a request later than the fastest one by more than this; less is a busy machine at either end
SHARE = 0.01  # of a block's time: less than that moves no figure that could be told from noise


class PathWatch:
    """Asks about four times a second in a thread of its own, between :meth:`start` and :meth:`stop`.

    ``ping`` is one round trip, in seconds; while it raises HostError the connection is broken, which others make anew.
    """

    def __init__(self, ping: Callable[[], float], interval_s: float = INTERVAL_S) -> None:
        self._ping = ping
        self._interval_s = interval_s
        self._over = threading.Event()
        self._trips: list[float] = []
        self._asked: float | None = None  # since when an answer is outstanding

    def start(self) -> None:
        threading.Thread(target=self._watch, name="path-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.is_set():
            broken_since, self._asked = self._asked, self._asked or time.monotonic()
            with contextlib.suppress(HostError):
                trip = self._ping()
                self._trips.append(trip if broken_since is None else time.monotonic() - broken_since)
                self._asked = None
            self._over.wait(self._interval_s)

    def stop(self) -> float:
        """Seconds for which the path stood still since :meth:`start`, an answer that is still outstanding included."""
        self._over.set()
        asked, trips = self._asked, list(self._trips)
        if not trips:
            return 0.0  # nothing to compare with; a path that was away all the time brought no answers either
        usual = min(trips)
        if asked is not None:
            trips.append(time.monotonic() - asked)
        return sum(trip - usual for trip in trips if trip - usual > LATE_S)


def why_disturbed(still_s: float, elapsed_s: float) -> str | None:
    """Why a block of ``elapsed_s`` seconds may not be used after ``still_s`` without a path; None where it may."""
    if still_s <= SHARE * elapsed_s:
        return None
    return (
        f"the path to the host stood still for {still_s:.1f} of {elapsed_s:.1f} s: keepalive requests came back that "
        "late, so the time was the network's and not the server's"
    )
