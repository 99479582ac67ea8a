"""Names of engines and hosts, loaded only when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launchers.engines.sglang import SglangEngine
from launchers.engines.simulated import SimulatedEngine
from sweep.errors import UsageError
from sweep.registry import ENGINES, HOSTS, load


def test_engines_are_found_by_name() -> None:
    assert load(ENGINES, "sglang") is SglangEngine
    assert load(ENGINES, "simulated") is SimulatedEngine
    assert set(HOSTS) == {"ssh", "local"}


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="nearest: 'sglang'"):
        load(ENGINES, "sglangg")
    with pytest.raises(UsageError, match="known: local, ssh") as error:
        load(HOSTS, "zzzz")
    assert "nearest" not in str(error.value)


def test_the_table_itself_imports_nothing_heavy() -> None:
    code = (
        "import sweep.registry, sys; print([m for m in ('paramiko', 'httpx', 'ray', 'launchers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
