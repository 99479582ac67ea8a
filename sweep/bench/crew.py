"""A block by several client processes, where one would measure itself.

The load is that of one process: in a closed loop the processes share the slots and one queue of prompts, so that a
prompt is sent when any slot becomes free; in an open loop all draw the same arrivals and each keeps its share. All
begin at one reading of CLOCK_MONOTONIC, which on Linux is one clock for the whole machine, and their times count from
it. Both arms of a pair are run by the same number of processes (``sweep.launching``; pairs are only made so).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from sweep.bench.frames import INDEX, Job, pack, receive
from sweep.bench.http import Target
from sweep.bench.parts import Part
from sweep.bench.prepare import Prepared
from sweep.model import BlockSpec

_AHEAD_S = 0.05  # from the word to begin to the common start: every process must have heard it
_POLL_S = 0.02
_END_S = 5.0  # for handing over the rows after a cancel, a hang or a lost process
_START_S = 60.0  # for starting the interpreter and building the requests


class _Member:
    """One client process and what it said last."""

    def __init__(self, number: int, process: Process) -> None:
        self.number = number
        self.process = process
        self.ready = asyncio.Event()
        self.moved = (0.0, False)  # when its streams last moved, and whether one is waited for
        self.part: Part | None = None
        self.failure: str | None = None

    async def listen(self) -> None:
        """Until it has handed over its part, has failed, or is gone."""
        assert self.process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while self.part is None and self.failure is None:
                kind, value = await receive(self.process.stdout)
                if kind == "ready":
                    self.ready.set()
                elif kind == "moved":
                    self.moved = value
                elif kind == "part":
                    self.part = value
                else:
                    self.failure = value

    def tell(self, kind: str, value: float | None = None) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(pack((kind, value)))

    async def end(self) -> int:
        """Its exit status; a process that has more to do, or does not end, is killed."""
        assert self.process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            if self.part is None and self.failure is None:
                self.process.kill()
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.process.wait(), _END_S)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        return await self.process.wait()


async def run_crew(
    target: Target, spec: BlockSpec, prepared: Prepared, processes: int, cancel: threading.Event | None
) -> tuple[float, list[Part], str | None]:
    """(Unix time of the start, the parts, which process was lost or could not be started, or None). No process is left
    when it returns or raises. A defect of ours in a process is raised here as ``RuntimeError`` with its traceback."""
    queue, prompts = os.pipe()
    members: list[_Member] = []
    feeding = asyncio.create_task(asyncio.to_thread(_feed, prompts, len(spec.prompts)))
    try:
        for number in range(processes):
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "sweep.bench.worker",
                    stdin=PIPE,
                    stdout=PIPE,
                    pass_fds=(queue,),
                    start_new_session=True,  # an interrupt from the keyboard is for the parent, which ends this one
                )
            except OSError as error:  # no memory, no process, no file descriptor to be had
                return time.time(), [], f"client process {number + 1} of {processes} could not be started: {error}"
            members.append(_Member(number, process))
            assert process.stdin is not None
            process.stdin.write(pack(Job(target, spec, prepared, number, processes, queue)))
        return await _conduct(members, spec, cancel)
    finally:
        os.close(queue)
        for member in members:
            await member.end()
        await feeding


def _feed(pipe: int, count: int) -> None:
    """All prompts in order; a pipe holds some 16,000, the rest follows as they are taken."""
    data = memoryview(b"".join(INDEX.pack(index) for index in range(count)))
    try:
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more
            while data:
                data = data[os.write(pipe, data) :]
    finally:
        os.close(pipe)


async def _conduct(
    members: Sequence[_Member], spec: BlockSpec, cancel: threading.Event | None
) -> tuple[float, list[Part], str | None]:
    listening = [asyncio.create_task(member.listen()) for member in members]
    started_at, begun, deadline = time.time(), False, time.perf_counter() + _START_S
    ending = False
    while not all(task.done() for task in listening):
        await asyncio.wait(listening, timeout=_POLL_S)
        now = time.perf_counter()
        if not begun and not ending and all(member.ready.is_set() for member in members):
            begun, started_at, deadline = True, time.time() + _AHEAD_S, float("inf")
            _tell(members, "begin", now + _AHEAD_S)
        gone = any(t.done() and m.part is None for t, m in zip(listening, members, strict=True))
        word = "cancel" if gone or (cancel is not None and cancel.is_set()) else None
        if word is None and begun and _hangs(members, spec.stall_s, now):
            word = "hang"
        if word is not None and not ending:
            ending, deadline = True, now + _END_S
            _tell(members, word)
        if now > deadline:
            break
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    for member in members:
        if member.failure is not None:
            raise RuntimeError(f"client process {member.number + 1} of {len(members)} failed:\n{member.failure}")
    parts = [member.part for member in members if member.part is not None]
    lost = [member for member in members if member.part is None]
    if not lost or (cancel is not None and cancel.is_set()):
        return started_at, parts, None
    status = await lost[0].end()
    return started_at, parts, f"client process {lost[0].number + 1} of {len(members)} was lost (exit status {status})"


def _tell(members: Sequence[_Member], kind: str, value: float | None = None) -> None:
    for member in members:
        member.tell(kind, value)


def _hangs(members: Sequence[_Member], limit_s: float | None, now: float) -> bool:
    """No stream of any process has moved for so long, and one of them is waited for."""
    if limit_s is None or not any(member.moved[1] for member in members):
        return False
    return now - max(member.moved[0] for member in members) > limit_s
