"""A webhook for tests: what was posted to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[bytes]]]:
    """Its URL and the bodies it has got. Below /flaky its first answer is an error."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(500 if len(bodies) == 1 and self.path == "/flaky" else 204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()
    thread.join()
