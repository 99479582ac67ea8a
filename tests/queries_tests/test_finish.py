"""--on-finish and --webhook: who is told what, and that a deaf listener changes nothing."""

from __future__ import annotations

import json
import socket
import threading
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


def test_webhook_gets_the_summary(webhook: tuple[str, list[bytes]]) -> None:
    url, bodies = webhook
    assert CliRunner().invoke(command, ["--webhook", url]).exit_code == 0
    assert [json.loads(body) for body in bodies] == [SUMMARY]


def test_webhook_tries_again(webhook: tuple[str, list[bytes]]) -> None:
    url, bodies = webhook
    result = CliRunner().invoke(command, ["--webhook", f"{url}/flaky"])
    assert len(bodies) == 2
    assert "was not reached" not in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/hook?token=secret",
        "http://127.0.0.1:9/services/secret",
        "http://me:secret@127.0.0.1:9/hook",
        "http://127.0.0.1:9/se cret",
        "http://127.0.0.1:9/sécret",
    ],
)
def test_a_deaf_webhook_is_named_without_its_secret(url: str) -> None:
    result = CliRunner().invoke(command, ["--webhook", url])
    assert result.exit_code == 0, result.exception
    assert "http://127.0.0.1:9 was not reached" in result.stderr
    assert "cret" not in result.stderr


def test_what_answers_in_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            for _ in range(finish.WEBHOOK_ATTEMPTS):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        result = CliRunner().invoke(command, ["--webhook", f"http://127.0.0.1:{port}/"])
        thread.join(10)
    assert result.exit_code == 0, result.exception
    assert f"http://127.0.0.1:{port} was not reached" in result.stderr


def test_webhook_from_the_environment(webhook: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, bodies = webhook
    monkeypatch.setenv("HOOK", url)
    result = CliRunner().invoke(command, ["--webhook", "${HOOK}"])
    assert [json.loads(body) for body in bodies] == [SUMMARY]
    assert json.loads(result.stdout) == ["--webhook", "${HOOK}"]  # a detached run's command line holds the name alone


def test_a_webhook_that_the_environment_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    result = CliRunner().invoke(command, ["--webhook", "${HOOK}"])
    assert isinstance(result.exception, UsageError)
    assert "HOOK is not set" in str(result.exception)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "hook", "http://", "http://[::1", "http://host:port/"])
def test_only_http(url: str) -> None:
    result = CliRunner().invoke(command, ["--webhook", url])
    assert isinstance(result.exception, UsageError)


def test_a_command_that_prints_no_text() -> None:
    result = CliRunner().invoke(command, ["--on-finish", "printf '\\377'"])
    assert result.exit_code == 0, result.exception


def test_silent_without_options() -> None:
    result = CliRunner().invoke(command, [])
    assert (json.loads(result.stdout), result.stderr) == ([], "")
