"""The report served on this machine's loopback, made anew at each look, and optuna-dashboard beside it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from storage import reading
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import SweepError, UsageError
from sweep.exports.optuna_study import rebuild
from sweep.report.facts import collect
from sweep.report.page import plotly_js, render

LOOPBACK = "127.0.0.1"


def from_here(host: str | None) -> bool:
    """Whether a request's Host header names this machine: a page of another site must not read ours through a name
    that it points here."""
    return (host or "").rsplit(":", 1)[0] in (LOOPBACK, "localhost")


class _Unbothered(BaseServer):
    """A reader who closes the page while it loads is no error for the terminal."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _PageServer(_Unbothered, ThreadingHTTPServer):
    pass


@contextmanager
def serve(store: Store, study_id: int, port: int = 0) -> Iterator[str]:
    """Serve the page while the block runs; yields its URL. UsageError where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not from_here(self.headers.get("Host")):
                self._answer(403, "text/plain", "only for this machine")
                return
            try:
                revision = reading.revision(store, study_id)
                if self.path == "/":
                    page = render(collect(store, store.study_by_id(study_id)), revision=revision)
                    self._answer(200, "text/html; charset=utf-8", page)
                elif self.path == "/state":
                    self._answer(200, "application/json", json.dumps({"revision": revision}))
                elif self.path == "/plotly.js":
                    self._answer(200, "text/javascript; charset=utf-8", plotly_js(), cache="max-age=3600")
                else:
                    self._answer(404, "text/plain", "nothing here")
            except SweepError as error:
                self._answer(500, "text/plain; charset=utf-8", str(error))

        def _answer(self, status: int, kind: str, body: str, cache: str = "no-store") -> None:
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", cache)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """The terminal is for the user."""

    try:
        server = _PageServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise UsageError(f"port {port} cannot be used: {error.strerror or error}; name another with --port") from error
    with _running(server):
        yield f"http://{LOOPBACK}:{server.server_port}/"


class _ThreadingWSGIServer(_Unbothered, ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The terminal is for the user."""


@contextmanager
def dashboard(store: Store, study: StudyRow) -> Iterator[str | None]:
    """optuna-dashboard over the study as it is now, on a free loopback port; None where it is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna_dashboard") is None:
        yield None
        return
    from sweep.search.files import dashboard as application

    server = make_server(
        LOOPBACK, 0, _guarded(application(rebuild(store, study))), server_class=_ThreadingWSGIServer,
        handler_class=_Quiet,
    )  # fmt: skip
    with _running(server):
        yield f"http://{LOOPBACK}:{server.server_port}/"


def _guarded(application: Callable[..., Any]) -> Callable[..., Any]:
    """The WSGI application, answering this machine's own names alone."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if from_here(environ.get("HTTP_HOST")):
            return application(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"only for this machine"]

    return answer


@contextmanager
def _running(server: ThreadingHTTPServer | WSGIServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
