"""Talks with one command on a session channel: all of its input and both of its outputs at the same time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import paramiko

from sweep.seams import Completed


class NoAnswer(Exception):
    """The command did not end in time, on a connection that is alive."""


@contextlib.contextmanager
def ended_after(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Call ``end`` where the body takes longer: paramiko waits for some answers without any limit.

    A server that died behind a jump host leaves the connection to that jump host whole, so that nothing else would
    end such a wait.
    """
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def converse(channel: paramiko.Channel, stdin: bytes, deadline: float) -> Completed:
    """Feed ``stdin``, read stdout and stderr until the command ends, or ``deadline`` (``time.monotonic``).

    A window that fills up while the other stream is waited for would stop both sides for ever; so nothing is ever
    left unread. Raises NoAnswer, or EOFError when the connection ended before the command. A command that was killed
    has exit code -1: SSH does not give the number of the signal.
    """
    errors: list[bytes] = []
    helpers = [
        threading.Thread(target=_read_errors, args=(channel, errors), daemon=True),
        threading.Thread(target=_feed, args=(channel, stdin), daemon=True),
    ]
    for helper in helpers:
        helper.start()
    output: list[bytes] = []
    while True:
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = channel.recv(1 << 16)
        except TimeoutError:
            if not channel.get_transport().is_active():
                raise EOFError("the connection ended before the command") from None
            raise NoAnswer from None
        if not data:
            break
        output.append(data)
    grace = max(deadline - time.monotonic(), 1.0)
    for helper in helpers:
        helper.join(grace)
    known = channel.status_event.wait(grace)
    if not known or (channel.exit_status == -1 and not channel.get_transport().is_active()):
        raise EOFError("the connection ended before the command")
    return Completed(channel.exit_status, b"".join(output), b"".join(errors))


def _read_errors(channel: paramiko.Channel, into: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := channel.recv_stderr(1 << 16):
            into.append(data)


def _feed(channel: paramiko.Channel, stdin: bytes) -> None:
    with contextlib.suppress(OSError, EOFError):
        if stdin:
            channel.sendall(stdin)
        channel.shutdown_write()
