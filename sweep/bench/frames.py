"""Messages between the processes of one block: a length, then a pickle. Both ends are ours and of one version."""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from sweep.bench.http import Target
from sweep.bench.prepare import Prepared
from sweep.model import BlockSpec

_LENGTH = struct.Struct("!Q")
INDEX = struct.Struct("=I")  # one prompt of the shared queue


@dataclass(frozen=True, slots=True)
class Job:
    """What a client process is asked to do. ``queue`` is the descriptor from which prompts of a closed loop are read.

    It travels through a pipe: the target's API key stands in no argument list and in no environment.
    """

    target: Target
    spec: BlockSpec
    prepared: Prepared
    number: int
    of: int
    queue: int


def pack(message: Any) -> bytes:
    body = pickle.dumps(message)
    return _LENGTH.pack(len(body)) + body


def send(pipe: BinaryIO, message: Any) -> None:
    pipe.write(pack(message))
    pipe.flush()


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises ``asyncio.IncompleteReadError`` where the other end is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
