"""Options and output shared by the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sweep.cli.completion import studies
from sweep.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DB = "sqlite:///sweep.db"


def db_option(function: F) -> F:
    """``--db URL``: any SQLAlchemy URL; SWEEP_DB; default ``sqlite:///sweep.db``."""
    return click.option(
        "--db", "db_url", envvar="SWEEP_DB", default=DEFAULT_DB, show_default=True, help="Database (SQLAlchemy URL)."
    )(function)


def json_option(function: F) -> F:
    """``--json``: one JSON document on stdout, keys as documented in docs/json.md."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(function)


def study_argument(function: F) -> F:
    """Optional STUDY name; the newest study where left out."""
    return click.argument("study", required=False, shell_complete=studies)(function)


def print_json(value: Mapping[str, Any] | list[Any]) -> None:
    """The only place that writes JSON for a user."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def fraction(text: str, option: str) -> float:
    """``3%``, ``3 %`` or ``0.03`` -> 0.03. UsageError for anything else, and for 100 % or more."""
    words = text.strip()
    try:
        value = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{option} {text!r} is no share; write 3% or 0.03")
    return value


def is_tty() -> bool:
    return sys.stdout.isatty()
