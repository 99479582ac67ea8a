"""One block from the parts that its client processes bring back: merged, and judged. Pure."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sweep.bench.health import CLIENT_LIMIT, LAG_MIN_ELAPSED_S, why_invalid
from sweep.model import BlockResult, BlockSpec, ClientHealth, RequestRecord

# Share of a core, seen in one process while a level is warmed up, for which one process is reckoned. Well below the
# bound at which a block is invalid: a stream's chunks come in bursts, and the measured answers are longer.
COMFORTABLE_SHARE = 0.5
# A client that took less than this and was late all the same waited for a busy machine: more of it would not help.
# It is low because chunks come in bursts: 256 streams whose step takes 20 ms are 4 ms of work at a time.
BUSY_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """What one client process brings back. Times of ``rows`` count from the block's common start; lags are seconds,
    ``cpu_share`` is of one core."""

    rows: tuple[RequestRecord, ...]
    lag_p50_s: float
    lag_p99_s: float
    cpu_share: float
    rtt_s: float | None
    stalled: bool
    cancelled: bool


@dataclass(frozen=True, slots=True)
class Seat:
    """One process's place among those that run a block.

    ``begin`` waits for the common start and returns its clock reading; ``queue`` gives the next prompt of a closed
    loop (an iterator shared by all); ``hangs`` is told when a stream last moved and whether one is waited for, and
    says whether the whole block hangs.
    """

    number: int
    of: int
    begin: Callable[[], Awaitable[float]]
    queue: Iterator[int]
    hangs: Callable[[float, bool], bool]


def whole(
    spec: BlockSpec,
    parts: Sequence[Part],
    *,
    started_at: float,
    prompt_format: str,
    path_capacity: float | None,
    processes: int = 1,
    lost: str | None = None,
) -> BlockResult:
    """The block. Rows stand in the order of the prompts, whoever sent them; what the client cost is that of the
    process that was worst off. ``processes``: how many were to run it, whether or not each brought its part; ``lost``
    says which did not."""
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row.index)
    trips = [part.rtt_s for part in parts if part.rtt_s is not None]
    health = ClientHealth(
        lag_p50_s=max((part.lag_p50_s for part in parts), default=0.0),
        lag_p99_s=max((part.lag_p99_s for part in parts), default=0.0),
        cpu_share=max((part.cpu_share for part in parts), default=0.0),
        chunks=sum(row.chunks for row in rows),
        rtt_s=statistics.median(trips) if trips else None,
        path_capacity_chunks_per_s=path_capacity,
        prompt_format=prompt_format,
        processes=processes,
    )
    if processes > 1:
        shares = tuple(
            {
                "requests": len(part.rows),
                "lag_p50_s": part.lag_p50_s,
                "lag_p99_s": part.lag_p99_s,
                "cpu_share": part.cpu_share,
            }
            for part in parts
        )
        health = replace(health, by_process=shares)
    ends = [row.end_s for row in rows if row.ok] or [row.end_s for row in rows]
    elapsed = max(ends) - min(row.sent_s for row in rows) if rows else 0.0
    cancelled = lost is None and (not parts or any(part.cancelled for part in parts))
    stalled = any(part.stalled for part in parts)
    invalid = lost or why_invalid(rows, health, elapsed, cancelled=cancelled, asked=len(spec.prompts))
    if stalled and invalid is None:
        done = sum(row.ok for row in rows)
        invalid = f"{stall_words(spec)}, after {done} of {len(spec.prompts)} requests"
    return _result(spec, started_at, elapsed, rows, health, invalid, stalled=stalled)


def nothing(spec: BlockSpec, reason: str, path_capacity: float | None, processes: int = 1) -> BlockResult:
    """The block of a server that could not even be asked: every prompt failed with the same reason."""
    rows = [RequestRecord(i, p.id, p.category, 0.0, None, 0.0, error=reason) for i, p in enumerate(spec.prompts)]
    health = ClientHealth(0.0, 0.0, 0.0, 0, path_capacity_chunks_per_s=path_capacity, processes=processes)
    return _result(spec, time.time(), 0.0, rows, health, reason, stalled=False)


def _result(
    spec: BlockSpec,
    started_at: float,
    elapsed: float,
    rows: Sequence[RequestRecord],
    health: ClientHealth,
    invalid: str | None,
    *,
    stalled: bool,
) -> BlockResult:
    return BlockResult(
        stage=spec.stage,
        concurrency=spec.concurrency,
        round=spec.round,
        prompts_hash=spec.prompts_hash,
        started_at=started_at,
        elapsed_s=elapsed,
        requests=tuple(rows),
        client=health,
        invalid=invalid,
        stalled=stalled,
    )


def stall_words(spec: BlockSpec) -> str:
    return f"stalled: no token on any stream for {spec.stall_s:g} s"


def processes_for(spec: BlockSpec, warm: BlockResult | None) -> int:
    """How many client processes run a block: ``spec.client_processes`` where it is stated, else what the warm-up of
    the same level (by one process) asks for. Never more than this machine has cores, or than requests are in flight:
    a process without a core of its own is late by nature."""
    wanted = spec.client_processes or 1
    if spec.client_processes is None and warm is not None and warm.elapsed_s >= LAG_MIN_ELAPSED_S:
        wanted = math.ceil(warm.client.cpu_share / COMFORTABLE_SHARE)
    in_flight = spec.concurrency if spec.request_rate is None else len(spec.prompts)
    return max(1, min(wanted, in_flight, os.cpu_count() or 1))


def next_processes(client: ClientHealth, invalid: str | None) -> int:
    """How many processes the block after this one is asked to have: as many, since all arms are measured alike; twice
    as many where the client was the limit, and by its own work."""
    limited = CLIENT_LIMIT in (invalid or "") and client.cpu_share >= BUSY_SHARE
    return client.processes * (2 if limited else 1)
