"""A real simulated study: told at the end, watched while it runs, reported afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from storage.store import Store
from sweep.report.live import serve

pytestmark = [pytest.mark.ray, pytest.mark.long]


def test_smoke_is_told_watched_and_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sweep.db'}"
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "SWEEP_DB": url}
    sweep = [sys.executable, "-m", "sweep"]
    start = [*sweep, "start", "smoke", "--simulate", "--trials", "1", "--json", "--on-finish", "cat > told.json"]
    with subprocess.Popen(start, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pages = _watch(url, process)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert any("this page follows it" in page for page in pages)
    assert json.loads((tmp_path / "told.json").read_text()) == json.loads(out)

    subprocess.run([*sweep, "report", "-o", "report.html"], cwd=tmp_path, env=env, check=True, capture_output=True)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "SIMULATED: this study ran on simulated servers (profile h200-llama8b)" in page
    faster = r'<span class="whole">[\d.]+ %</span> faster than no speculation'
    assert re.search(rf'<p class="verdict">EAGLE3 eagle3-llama8b \S+ is {faster}', page)
    assert "python3 -m sglang.launch_server --model-path meta-llama" in page


def _watch(url: str, process: subprocess.Popen[bytes]) -> list[str]:
    """What the live page shows, look by look, until the study has ended."""
    path = Path(url.removeprefix("sqlite:///"))
    while not path.exists() and process.poll() is None:
        time.sleep(0.1)  # another process makes the file
    pages: list[str] = []
    with Store.open(url) as store:
        while not store.studies() and process.poll() is None:
            time.sleep(0.1)  # another process writes the row
        with serve(store, store.study(None).id) as address:
            while process.poll() is None:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    pages.append(answer.read().decode())
                time.sleep(1.0)  # between two looks
    return pages
