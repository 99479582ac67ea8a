"""The live page's server: what it answers, to whom, and that it ends."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from socketserver import StreamRequestHandler, TCPServer
from urllib.parse import urlsplit

import pytest

from storage import reading
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.report.live import dashboard, serve


def get(url: str, path: str, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_serves_page_state_and_script(store: Store, study: StudyRow) -> None:
    with serve(store, study.id) as url:
        status, kind, body = get(url, "/")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert b'<script src="plotly.js">' in body
        assert len(body) < 500_000  # the script is fetched once, not with every look
        revision = json.loads(get(url, "/state")[2])["revision"]
        assert f'data-live="{revision}"'.encode() in body
        assert len(get(url, "/plotly.js")[2]) > 1_000_000
        assert get(url, "/../../etc/passwd")[0] == 404


def test_revision_changes_with_the_study(store: Store, study: StudyRow) -> None:
    with serve(store, study.id) as url:
        before = get(url, "/state")[2]
        assert get(url, "/state")[2] == before
        store.add_event(study.id, None, "note", {})
        assert get(url, "/state")[2] != before


def test_only_this_machine_may_ask(store: Store, study: StudyRow) -> None:
    with serve(store, study.id) as url:
        assert get(url, "/state", Host="evil.test")[0] == 403
        assert get(url, "/state", Host="localhost:1")[0] == 200
        assert urlsplit(url).hostname == "127.0.0.1"


def test_the_dashboard_answers_this_machine_alone_too(store: Store, study: StudyRow) -> None:
    with dashboard(store, study) as url:
        assert url is not None
        assert get(url, "/api/studies", Host="evil.test")[0] == 403
        assert study.name.encode() in get(url, "/api/studies")[2]
        assert urlsplit(url).hostname == "127.0.0.1"


def test_a_reader_who_goes_away_is_no_error(
    store: Store, study: StudyRow, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    close = TCPServer.shutdown_request

    def gone(self: StreamRequestHandler) -> None:
        raise BrokenPipeError  # the answer that nobody takes

    def closed(self: TCPServer, request: socket.socket) -> None:
        close(self, request)
        over.set()  # errors were dealt with before

    monkeypatch.setattr(StreamRequestHandler, "finish", gone)
    monkeypatch.setattr(TCPServer, "shutdown_request", closed)
    with serve(store, study.id) as url:
        get(url, "/state")
        assert over.wait(10)
    assert "Traceback" not in capfd.readouterr().err


def test_other_errors_are_shown(
    store: Store, study: StudyRow, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: Store, study_id: int) -> str:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(reading, "revision", broken)
    with serve(store, study.id) as url, pytest.raises(http.client.RemoteDisconnected):
        get(url, "/state")
    assert "a bug of ours" in capfd.readouterr().err


def test_a_taken_port_is_said_in_words(store: Store, study: StudyRow) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} cannot be used"), serve(store, study.id, port):
            pass


def test_it_ends_with_the_block(store: Store, study: StudyRow) -> None:
    with serve(store, study.id) as url:
        pass
    with pytest.raises(ConnectionRefusedError):
        get(url, "/state")
