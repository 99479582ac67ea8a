"""The tab key, asked of a real bash."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.store import Store
from sweep.cli.completion import SHELLS
from tests.report_tests.made import make

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database of two studies and a YAML, where the user stands."""
    folder = tmp_path_factory.mktemp("home")
    with Store.open(f"sqlite:///{folder / 'sweep.db'}") as store:
        make(store)
        make(store, "nightly", arms=(), baseline=False)
    (folder / "my.yaml").touch()
    return folder


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SWEEP", "_SWEEP"))}
    return {**kept, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def completed(home: Path, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    script = (
        'eval "$(sweep completion bash)"; shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        'compopt() { :; }; _sweep_completion sweep; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [str(BASH), "--norc", "-c", script, "bash", *words],
        cwd=home, env=environment(home), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("sweep", "re"), ["resume", "report"]),
        (("sweep", "compl"), ["completion"]),
        (("sweep", "--vers"), ["--version"]),
        (("sweep", "report", "--form"), ["--format"]),
        (("sweep", "report", "--format", ""), ["html", "md"]),
        (("sweep", "report", "n"), ["nightly", "night"]),
        (("sweep", "best", "nightl"), ["nightly"]),
        (("sweep", "start", "sm"), ["smoke"]),
        (("sweep", "start", "my"), []),  # left to bash, which knows files
        (("sweep", "best", "--db", "sqlite:///none.db", "n"), []),
    ],
)
def test_offers(home: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(home, *words) == offered
    assert not (home / "none.db").exists()


def test_the_tab_key(home: Path) -> None:
    """An interactive bash on a terminal: what is typed, then the key, once for a command and once for a file."""
    ours, theirs = os.openpty()
    env = {**environment(home), "PS1": "ready> ", "TERM": "dumb"}
    with subprocess.Popen(
        [str(BASH), "--norc", "--noprofile", "-i"], cwd=home, env=env,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as shell:  # fmt: skip
        os.close(theirs)
        try:
            _typed(ours, 'eval "$(sweep completion bash)"; echo loa""ded\n', "loaded")
            _typed(ours, "sweep calib\t", "sweep calibrate ")
            _typed(ours, "\x15sweep start my\t", "sweep start my.yaml")
        finally:
            shell.kill()
            os.close(ours)


def _typed(terminal: int, keys: str, shown: str) -> None:
    os.write(terminal, keys.encode())
    said, end = "", time.monotonic() + 30
    while shown not in said:
        assert time.monotonic() < end, f"{shown!r} is not in {said!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                said += os.read(terminal, 4096).decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(home: Path, shell: str) -> None:
    done = subprocess.run(
        ["sweep", "completion", shell], env=environment(home), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "_SWEEP_COMPLETE" in done.stdout
