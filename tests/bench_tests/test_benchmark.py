"""The client's benchmark, small: it prints what it promises, and the client is not the dearest of the three."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmark_prints_one_object() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "client.py"), "--json", "--rounds", "1"]
    command += ["--requests", "16", "--chunks", "300", "--concurrency", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    value = json.loads(done.stdout)
    assert set(value) == {"chunks_per_s", "cpu_us_per_chunk"}
    for figures in value.values():
        assert set(figures) == {"ours", "aiohttp", "httpx"}
        assert all(figure > 0 for figure in figures.values())
    cpu = value["cpu_us_per_chunk"]
    assert cpu["ours"] < min(cpu["aiohttp"], cpu["httpx"])
