"""One of several client processes of a block: ``python -m sweep.bench.worker``, started by :mod:`sweep.bench.crew`.

It speaks messages on stdin and stdout, and ends with its parent: when stdin closes there is nobody left to measure for.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

from sweep.bench.client import run_part
from sweep.bench.frames import INDEX, Job, receive, send
from sweep.bench.http import open_client
from sweep.bench.parts import Part, Seat


async def work(pipe: BinaryIO) -> Part:
    """Take the job, wait for the common start, do the part."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    job: Job = await receive(reader)
    start: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    cancel, hang = threading.Event(), threading.Event()
    orders = asyncio.create_task(_obey(reader, start, cancel, hang))

    async def begin() -> float:
        send(pipe, ("ready", None))
        origin = await start
        await asyncio.sleep(max(0.0, origin - time.perf_counter()))
        return origin

    def hangs(moved: float, waiting: bool) -> bool:
        send(pipe, ("moved", (moved, waiting)))
        return hang.is_set()

    seat = Seat(job.number, job.of, begin, _indices(job.queue), hangs)
    async with open_client(job.target) as client:
        part = await run_part(client, job.spec, job.prepared, seat, cancel)
    orders.cancel()
    return part


def _indices(queue: int) -> Iterator[int]:
    """Prompts as they become due. Each is one record of the pipe that all processes read: the kernel hands a record
    to one of them, and what is read is a whole one, since nothing but whole ones is written."""
    while record := os.read(queue, INDEX.size):
        yield INDEX.unpack(record)[0]


async def _obey(
    reader: asyncio.StreamReader, start: asyncio.Future[float], cancel: threading.Event, hang: threading.Event
) -> None:
    while True:
        try:
            kind, value = await receive(reader)
        except asyncio.IncompleteReadError:
            os._exit(1)  # the parent is gone: at once, whatever this process was about to do
        if kind == "begin":
            start.set_result(value)
        elif kind == "cancel":
            cancel.set()
            if not start.done():
                start.set_result(time.perf_counter())
        elif kind == "hang":
            hang.set()


def main() -> None:
    # Messages have stdout to themselves; whatever else is printed goes the way of errors.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer: tuple[str, Any]
    try:
        answer = ("part", asyncio.run(work(pipe)))
    except Exception:  # noqa: BLE001 - a defect of ours, whichever: the parent raises it
        answer = ("failed", traceback.format_exc())
    send(pipe, answer)


if __name__ == "__main__":
    main()
