"""Full disks and jumping clocks, on the host and on the controller's machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults_helpers import Lab, changed, wait_for

SLOW = {"simulate": {"time_scale": 5.0}, "workload": {"max_tokens": 60}}


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A tmpfs of ``size``."""
    if os.geteuid() != 0:
        pytest.skip("a small disk is a tmpfs, and mounting one needs root")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes whatever is left on the disk."""
    path = place / "full"
    with path.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(4096))
    return path


def finish(lab: Lab, process: subprocess.Popen[bytes]) -> None:
    """Whatever the controller made of it, `resume` ends the study."""
    code = process.wait(timeout=180)
    assert code in (0, 1, 3, 7, 130), lab.said()
    lab.check_nothing_left()
    if lab.query("SELECT state FROM studies") != [("finished",)]:
        lab.run("resume")


def test_disk_full_on_the_host(lab: Lab, tmp_path: Path) -> None:
    """A block under way is not disturbed; launches fail as the surroundings' fault until there is room again."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        lab.host = {**lab.host, "base_dir": str(disk / "host")}
        lab.write(SLOW)
        process = lab.spawn("start")
        lab.until(lab.measuring())
        before = lab.blocks()
        full = fill(disk)
        failed = "SELECT 1 FROM launches WHERE verdict = 'infra_error'"
        wait_for(lambda: lab.query(failed) or process.poll() is not None, 120, lab.said)
        assert lab.query(failed), "the full disk was never met"
        full.unlink()
        finish(lab, process)
        lab.check(before)
        lab.end()


def test_disk_full_on_the_controller(lab: Lab, tmp_path: Path) -> None:
    """What cannot be stored ends the study at once, servers first; nothing that was stored is lost."""
    with small_disk(tmp_path / "disk", "12m") as disk:
        lab.place = disk
        lab.write(SLOW)
        process = lab.spawn("start")
        lab.until(lab.measuring())
        full = fill(disk)
        assert process.wait(timeout=120) == 3, lab.said()
        assert "is full" in lab.said()
        lab.check_nothing_left()
        full.unlink()
        before = lab.blocks()
        lab.run("resume")
        lab.check(before)


FAKE_CLOCK = """#!{python}
import runpy, sys, time
real = time.time
time.time = lambda: real() + float(open({offset!r}).read())
words = [word for word in sys.argv[1:] if word != "-IS"]
if words[0] == "-c":
    sys.argv = ["-c", *words[2:]]
    exec(words[1], {{"__name__": "__main__"}})
else:
    sys.argv = words
    sys.path.insert(0, words[0].rpartition("/")[0])
    runpy.run_path(words[0], run_name="__main__")
"""


@pytest.mark.parametrize("jump", [86400.0, -86400.0], ids=["forwards", "backwards"])
@pytest.mark.parametrize("where", ["host", "controller"])
def test_clock_jump(lab: Lab, tmp_path: Path, where: str, jump: float) -> None:
    """A wall clock that jumps by a day in the middle of a block ends no lease and fails nothing.

    The machine's clock is left alone: `time.time` is another one in every process of the side concerned.
    """
    offset = tmp_path / "offset"
    offset.write_text("0")
    options = {"lease": 15}
    if where == "host":
        python = tmp_path / "python"
        python.write_text(FAKE_CLOCK.format(python=sys.executable, offset=str(offset)))
        python.chmod(0o755)
        lab.host = {**lab.host, "python": str(python)}
    else:
        options["clock"] = str(offset)  # type: ignore[assignment]  # an option's value is text in the end
    lab.write(changed(SLOW, {"workload": {"max_tokens": 100}}))
    process = lab.spawn("start", **options)
    lab.until(lab.measuring())
    before = lab.blocks()
    new = tmp_path / "offset.new"
    new.write_text(str(jump))
    new.replace(offset)  # at once: every process of that side reads it all the time
    time.sleep(4)
    lab.ends(process)
    lab.check(before)
    assert lab.query("SELECT count(*) FROM launches WHERE verdict != 'complete'") == [(0,)]
