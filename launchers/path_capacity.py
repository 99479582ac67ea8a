"""How many streamed chunks per second a path from a host carries before it slows down what is measured through it."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from sweep.seams import Transport

CHUNK_BYTES = 4096  # a cumulative chunk of a long answer
FULL_S = 0.5
PACED_S = 1.0
PACED_CONNECTIONS = 16
PACED_RATE = 60.0  # chunks per second and connection, as a server streams tokens


def measure(transport: Transport, flood: Callable[..., int]) -> float:
    """The lower of two limits, in chunks per second. Takes about two seconds.

    The line's: one connection as full as it gets, in bytes ÷ CHUNK_BYTES. Ours: chunks that arrive one by one, as
    they do in a measurement, per second of this process's CPU time; chunks travel together on a full path, which would
    make the cost of each look smaller than it is. ``flood(connections=, rate=, seconds=, chunk_bytes=)`` starts a
    sender on the host and gives its port.
    """
    full, seconds, _ = _read(transport, flood, connections=1, rate=None, seconds=FULL_S)
    paced, _, cpu_s = _read(transport, flood, connections=PACED_CONNECTIONS, rate=PACED_RATE, seconds=PACED_S)
    return min(full / seconds, paced / max(cpu_s, 1e-6))


def _read(
    transport: Transport, flood: Callable[..., int], *, connections: int, rate: float | None, seconds: float
) -> tuple[float, float, float]:
    """Chunks that arrived, over how long, and this process's CPU time meanwhile; both in seconds."""
    port = flood(connections=connections, rate=rate, seconds=seconds, chunk_bytes=CHUNK_BYTES)
    received = 0
    with transport.forward(port) as url, selectors.DefaultSelector() as selector:
        address = urlsplit(url)
        for _ in range(connections):
            connection = socket.create_connection((address.hostname, address.port), timeout=30)
            selector.register(connection, selectors.EVENT_READ)
        selector.select(30)
        begun, cpu = time.perf_counter(), time.process_time()
        while selector.get_map():
            for key, _ in selector.select(30):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                received += len(data)
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
        return received / CHUNK_BYTES, time.perf_counter() - begun, time.process_time() - cpu
