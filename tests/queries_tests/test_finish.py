"""--on-finish and --webhook: who is told what, and that a deaf listener changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sweep.cli import finish
from sweep.errors import UsageError

SUMMARY = {"study": "night", "state": "finished", "best": []}


@click.command()
@finish.finish_options
def command() -> None:
    click.echo(json.dumps(finish.arguments()))
    finish.tell(SUMMARY)


@pytest.fixture
def heard() -> Iterator[tuple[str, list[bytes]]]:
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


def test_command_gets_the_summary(tmp_path: Path) -> None:
    target = tmp_path / "told.json"
    line = f'cat > {target}; echo "$SWEEP_STUDY $SWEEP_STATE"'
    result = CliRunner().invoke(command, ["--on-finish", line])
    assert result.exit_code == 0
    assert json.loads(target.read_text()) == SUMMARY
    assert "night finished" in result.stderr
    assert json.loads(result.stdout) == ["--on-finish", line]  # nothing of the command's mixes with our output


def test_a_command_that_fails_is_named() -> None:
    result = CliRunner().invoke(command, ["--on-finish", "exit 3"])
    assert result.exit_code == 0
    assert "ended with exit code 3" in result.stderr


def test_webhook_gets_the_summary(heard: tuple[str, list[bytes]]) -> None:
    url, bodies = heard
    assert CliRunner().invoke(command, ["--webhook", url]).exit_code == 0
    assert [json.loads(body) for body in bodies] == [SUMMARY]


def test_webhook_tries_again(heard: tuple[str, list[bytes]]) -> None:
    url, bodies = heard
    result = CliRunner().invoke(command, ["--webhook", f"{url}/flaky"])
    assert len(bodies) == 2
    assert "was not reached" not in result.stderr


def test_a_deaf_webhook_is_named_without_its_token() -> None:
    result = CliRunner().invoke(command, ["--webhook", "http://127.0.0.1:9/hook?token=secret"])
    assert result.exit_code == 0
    assert "http://127.0.0.1:9/hook was not reached" in result.stderr
    assert "secret" not in result.stderr


def test_only_http() -> None:
    result = CliRunner().invoke(command, ["--webhook", "file:///etc/passwd"])
    assert isinstance(result.exception, UsageError)


def test_silent_without_options() -> None:
    result = CliRunner().invoke(command, [])
    assert (json.loads(result.stdout), result.stderr) == ([], "")
