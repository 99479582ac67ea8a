"""The README as a stranger follows it: from `git clone` to an opened report, then a study of one's own.

Runs only what stands in the README's `sh` blocks, in their order, in a clone and environments of its own. Takes minutes
and the package registries: `make walkthrough`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.store import Store
from tests.browser import Driver, complaints, drawn, needs_browser, until

ROOT = Path(__file__).parents[2]
COMMAND_S = 1500.0
pytestmark = [pytest.mark.walkthrough, pytest.mark.timeout(3600), needs_browser]


def commands(section: str) -> list[str]:
    """The lines of the `sh` blocks of one section of the README, without their comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = re.split(r"^## ", text.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", part, flags=re.MULTILINE | re.DOTALL)
    lines = [re.split(r"\s+#", line)[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@dataclass
class Shell:
    """A user's shell: where they stand, their home, and what is first on their PATH."""

    folder: Path
    home: Path
    first: Path | None = None

    def environment(self) -> dict[str, str]:
        """That of whoever runs the tests, with a home of its own; how packages are reached stays."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SWEEP_", "RAY_", "VIRTUAL_ENV", "PYTEST"))}
        real = Path.home()
        kept.setdefault("XDG_CONFIG_HOME", str(real / ".config"))
        kept.setdefault("PYENV_ROOT", str(real / ".pyenv"))
        kept.setdefault("PIP_CACHE_DIR", str(self.home / "pip"))  # the second environment takes what the first fetched
        kept |= {"HOME": str(self.home), "PIP_NO_CACHE_DIR": "off"}
        here = str(Path(sys.executable).parent)
        path = [p for p in kept["PATH"].split(":") if p != here]  # what runs the tests is not what the user has
        kept["PATH"] = ":".join([*([str(self.first)] if self.first else []), *path])
        return kept

    def run(self, line: str, *, exit_code: int = 0) -> str:
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        assert done.returncode == exit_code, f"`{line}` ended with {done.returncode}:\n{done.stdout[-4000:]}"
        return done.stdout


def test_from_clone_to_an_opened_report_and_a_study_of_ones_own(tmp_path: Path, browser: Driver) -> None:
    try_lines, own_lines = commands("Two commands"), commands("With your GPUs")

    clone, demo, tests, report = try_lines
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path, tmp_path / "home")
    assert clone == "git clone REPOSITORY specsweep && cd specsweep"
    shell.run(clone.replace("REPOSITORY", str(ROOT)))
    shell.folder = tmp_path / "specsweep"
    said = shell.run(demo)
    assert "study 'eagle3' is finished" in said
    assert "SIMULATED" in said
    assert tests == "make test"  # what ran before this, and will not run once more inside itself
    shell.run(report)

    written = shell.folder / report.split()[-1]
    browser.get(written.as_uri())
    until(lambda: drawn(browser), 60.0)
    assert complaints(browser) == []
    verdict = browser.execute_script("return document.querySelector('.verdict').textContent")
    assert verdict.replace("\N{NO-BREAK SPACE}", " ") in said
    assert len(browser.execute_script("return [...document.querySelectorAll('.plot')].map(p => p.id)")) >= 7

    venv.create(tmp_path / "own", with_pip=True)
    shell.first = tmp_path / "own" / "bin"
    install, init, doctor, plan, rehearse, start, best = own_lines
    assert install == "pip install ."
    shell.run(install)
    _out_of_the_checkout(shell, tmp_path / "elsewhere")
    assert shell.run("sweep --help").startswith("Usage: sweep")
    shell.run(init)
    said = shell.run(doctor, exit_code=7)  # the host of the README is not there
    assert "FAIL  connection" in said
    assert "fail" not in said.split("host gpu-a")[0].lower()
    assert "configurations" in shell.run(plan)
    said = shell.run(rehearse)
    assert "is finished" in said
    assert start == rehearse.removesuffix(" --simulate")  # takes the GPUs
    ranking = shell.run(best)
    assert ranking.splitlines()[0].startswith("SIMULATED: study")
    with Store.open(f"sqlite:///{shell.folder / 'sweep.db'}", create=False) as store:
        assert {trial.verdict for trial in store.trials(store.study(None).id)} == {"complete"}


def _out_of_the_checkout(shell: Shell, folder: Path) -> None:
    """Stand where no package of ours lies, so that what was installed is what runs."""
    folder.mkdir()
    shell.folder = folder
