"""--on-finish and --webhook: who is told, and what, when a run ends."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from sweep.config.fields import SECRET_REFERENCE
from sweep.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

COMMAND_TIMEOUT_S = 600.0
WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_ATTEMPTS = 3
_META = "sweep.cli.finish"  # where the options stand in click's context: every command that runs a study shares them


def finish_options(function: F) -> F:
    """Adds the two options; :func:`tell` and :func:`arguments` read them from the running command's context."""
    for flag, metavar, words in (
        ("--webhook", "URL", "POST the JSON summary there at the end; '${NAME}' takes the URL from the environment."),
        ("--on-finish", "COMMAND", "Run this shell command at the end, the JSON summary on its standard input."),
    ):
        option = click.option(flag, metavar=metavar, help=words, expose_value=False, callback=_remember)
        function = option(function)
    return function


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if parameter.name == "webhook":
        _shown(_resolved(value))
    context.meta.setdefault(_META, {})[parameter.name] = value


def _resolved(value: str) -> str:
    """The webhook's URL; ``${NAME}`` stands for what the environment holds, so that no list of processes shows it."""
    reference = SECRET_REFERENCE.fullmatch(value)
    if reference is None:
        return value
    if not (found := os.environ.get(reference[1])):
        raise UsageError(f"--webhook {value}: the environment variable {reference[1]} is not set")
    return found


def _shown(url: str) -> str:
    """Scheme and host: what follows, and what stands before an @, is often the secret. UsageError where it is no URL
    of http or https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets or a port that cannot be read
        host = port = None
    if host is None or parts.scheme not in ("http", "https"):
        raise UsageError("--webhook takes an http or https URL, such as https://hooks.example.org/x")
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def arguments() -> list[str]:
    """The options as given, for a command line that carries the run on; references stay references."""
    found = click.get_current_context().meta.get(_META, {})
    return [word for name, value in found.items() for word in (f"--{name.replace('_', '-')}", value)]


def tell(summary: Mapping[str, Any]) -> None:
    """Tell whoever asked. ``summary`` is what ``start --json`` prints. A listener that fails is named on stderr and
    changes nothing else: the study has ended as it has."""
    found = click.get_current_context().meta.get(_META, {})
    text = json.dumps(summary, allow_nan=False)
    if command := found.get("on_finish"):
        _run(command, summary, text)
    if url := found.get("webhook"):
        _post(_resolved(url), text)


def _run(command: str, summary: Mapping[str, Any], text: str) -> None:
    env = {**os.environ, "SWEEP_STUDY": str(summary["study"]), "SWEEP_STATE": str(summary["state"])}
    try:
        # The user's own command, in the user's own shell. What it prints must not mix with our JSON.
        done = subprocess.run(
            command, shell=True, input=text, text=True, errors="replace", env=env, timeout=COMMAND_TIMEOUT_S,
            stdout=subprocess.PIPE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        click.echo(f"--on-finish: {command!r} was ended after {COMMAND_TIMEOUT_S:.0f} s", err=True)
        return
    click.echo(done.stdout, err=True, nl=False)
    if done.returncode:
        click.echo(f"--on-finish: {command!r} ended with exit code {done.returncode}", err=True)


def _post(url: str, text: str) -> None:
    request = urllib.request.Request(url, text.encode(), {"Content-Type": "application/json"}, method="POST")
    for attempt in range(WEBHOOK_ATTEMPTS):
        try:
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):
                return
        except (http.client.InvalidURL, UnicodeError):  # their words repeat the URL
            click.echo(f"--webhook: {_shown(url)} was not reached: the URL cannot be used as it stands", err=True)
            return
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            if attempt + 1 == WEBHOOK_ATTEMPTS:
                click.echo(f"--webhook: {_shown(url)} was not reached: {error}", err=True)
