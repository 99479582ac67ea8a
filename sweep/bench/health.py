"""Did the client measure the server, or itself? Sampled while a block runs, judged after it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from sweep.model import ClientHealth, RequestRecord

# Bounds beyond which a block is the client's, not the server's. A saturated loop is late all the time (median); rare
# lateness of a busy machine shows in the tail and is harmless below the length of a request. Path: three times the
# load, so that queueing on the path stays small on the arm that sends most chunks.
LAG_P50_LIMIT_S = 0.005
LAG_P99_LIMIT_S = 0.100
CPU_SHARE_LIMIT = 0.90
PATH_FACTOR = 3.0
SUCCESS_LIMIT = 0.99
# A shorter block holds too few samples of lag for a median, let alone a tail.
LAG_MIN_ELAPSED_S = 0.5
_INTERVAL_S = 0.010
LIMIT = "was the limit"  # in every reason that blames the client or the path, not the server
CLIENT_LIMIT = f"the client {LIMIT}"
PATH_LIMIT = f"the path to the server {LIMIT}"  # measured once for the host: another attempt meets the same


_collector = threading.Lock()
_holders: list[bool] = []  # one entry for each block under way: whether the collector was on before it


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python's garbage collector out of a block: a full collection of this process stops the loop for 0.3 to
    0.4 s, and the first tokens of every stream with it. Blocks may overlap in several threads."""
    with _collector:
        _holders.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _collector:
            if _holders.pop() and not _holders:  # the first to begin is the last entry left
                gc.enable()


class Sampler:
    """Samples how late the event loop wakes, and this thread's CPU time, from :meth:`start` to :meth:`stop`.

    It also watches ``cancel``, so that a block ends within one interval of it being set.
    """

    def __init__(self, cancel: threading.Event | None) -> None:
        self._cancel = cancel
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._cpu = self._wall = 0.0
        self.cancelled = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    async def _run(self) -> None:
        while True:
            due = time.perf_counter() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self._lags.append(max(0.0, time.perf_counter() - due))
            if self._cancel is not None and self._cancel.is_set():
                self.cancelled.set()

    def stop(self) -> tuple[float, float, float]:
        """(median lag in s, 99th percentile of lag in s, share of one core)."""
        cpu, wall = time.thread_time() - self._cpu, time.perf_counter() - self._wall
        if self._task is not None:
            self._task.cancel()
        p50, p99 = np.percentile(self._lags, (50, 99)) if self._lags else (0.0, 0.0)
        return float(p50), float(p99), cpu / wall if wall > 0 else 0.0


def why_invalid(
    requests: Sequence[RequestRecord], health: ClientHealth, elapsed_s: float, *, cancelled: bool, asked: int
) -> str | None:
    """The reason why a block may not be used, with its numbers; None for a good one.

    ``asked`` is the number of prompts the block should have sent.
    """
    if cancelled:
        return f"cancelled after {len(requests)} of {asked} requests"
    good = sum(r.ok for r in requests)
    if not requests or good / len(requests) < SUCCESS_LIMIT:
        ratio = good / len(requests) if requests else 0.0
        return f"{good} of {len(requests)} requests succeeded ({ratio:.3f} < {SUCCESS_LIMIT}): {_errors(requests)}"
    late = health.lag_p50_s > LAG_P50_LIMIT_S or health.lag_p99_s > LAG_P99_LIMIT_S
    if late and elapsed_s >= LAG_MIN_ELAPSED_S:
        return (
            f"{CLIENT_LIMIT}: its event loop woke {1000 * health.lag_p50_s:.1f} ms late in the median, "
            f"{1000 * health.lag_p99_s:.0f} ms at the 99th percentile (bounds {1000 * LAG_P50_LIMIT_S:.0f} and "
            f"{1000 * LAG_P99_LIMIT_S:.0f} ms)"
        )
    if health.cpu_share > CPU_SHARE_LIMIT:
        return f"{CLIENT_LIMIT}: it used {health.cpu_share:.2f} of a core (bound {CPU_SHARE_LIMIT:.2f})"
    load = health.chunks / elapsed_s if elapsed_s > 0 else 0.0
    capacity = health.path_capacity_chunks_per_s
    if capacity is not None and capacity < PATH_FACTOR * load:
        return (
            f"{PATH_LIMIT}: it carries {capacity:.0f} chunks/s, the load was {load:.0f} "
            f"(at least {PATH_FACTOR:.0f} times the load is needed): raise workload.stream_interval, which sends fewer "
            "and larger chunks, or run the controller on the GPU host with `kind: local`"
        )
    return None


def _errors(requests: Sequence[RequestRecord]) -> str:
    counts = Counter(r.error for r in requests if r.error is not None)
    return "; ".join(f"{count} x {error}" for error, count in counts.most_common(3)) or "nothing was sent"
