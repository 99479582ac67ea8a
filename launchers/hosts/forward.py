"""A loopback port here whose connections go to a loopback port there, through SSH channels.

Two threads per connection and blocking calls: on one core this carries more chunks than an event loop around
paramiko's file descriptors would, because a chunk then crosses one thread border instead of two.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import paramiko

from sweep.errors import HostError

_READ = 1 << 16


def quiet_close(channel: paramiko.Channel) -> None:
    """Close a channel whose connection may be gone, which paramiko reports as EOFError."""
    with contextlib.suppress(OSError, EOFError):
        channel.close()


class Forwarder:
    """Listens on 127.0.0.1 until :meth:`close`. A dropped SSH connection costs the connections that were open, not
    the listener: new ones go over whatever ``open_channel`` finds then."""

    def __init__(self, open_channel: Callable[[], paramiko.Channel]) -> None:
        self._open_channel = open_channel
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket | paramiko.Channel] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"forward-{self.port}", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            channel = self._open_channel()
        except (HostError, paramiko.SSHException, OSError, EOFError):
            connection.close()  # the client sees a connection that was closed, as from a server that is not there
            return
        with self._lock:
            if self._closed:
                connection.close()
                quiet_close(channel)
                return
            self._open |= {connection, channel}
        upward = threading.Thread(target=self._up, args=(connection, channel), daemon=True)
        upward.start()
        try:
            while data := channel.recv(_READ):
                connection.sendall(data)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        except OSError:  # the client went away, or the channel broke
            quiet_close(channel)
        if not channel.get_transport().is_active():
            with contextlib.suppress(OSError):  # no clean end: the client must not take it for one
                connection.shutdown(socket.SHUT_RDWR)
        upward.join()
        quiet_close(channel)
        connection.close()
        with self._lock:
            self._open -= {connection, channel}

    @staticmethod
    def _up(connection: socket.socket, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(_READ):
                channel.sendall(data)
        with contextlib.suppress(OSError, EOFError):
            channel.shutdown_write()

    def close(self) -> None:
        """Stop listening and end the connections that are open."""
        with self._lock:
            self._closed = True
            still_open = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in still_open:
            with contextlib.suppress(OSError, EOFError):
                end.shutdown(socket.SHUT_RDWR)
