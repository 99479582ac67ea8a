"""The command line in the test's own process. Folders that use it have a fixture ``url``, the database's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from storage.store import Store
from sweep.cli.main import main

Run = Callable[..., tuple[int, str, str]]


def exit_code(words: Sequence[str]) -> int:
    """That of `sweep WORDS`."""
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def sweep(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """``sweep("best", "night")`` on the test's database or another: (exit code, stdout, stderr)."""

    def run(*argv: str, db: str = url) -> tuple[int, str, str]:
        code = exit_code([*argv, "--db", db])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run
