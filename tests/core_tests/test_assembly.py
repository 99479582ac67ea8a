"""The settings that a study's owners are given."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launchers.locks import Holder, start_time, this_holder
from storage.store import Store
from sweep import session
from sweep.assembly import host_states
from sweep.config import load_text
from sweep.planning import prompts_of
from tests.core_tests.search_rows import yaml


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/t.db") as made:
        yield made


def replaced(store: Store, before: Holder | None) -> Holder | None:
    """Whom the owners may replace, where the study had this controller before."""
    spec = load_text(yaml())
    row = replace(session.create(store, spec, yaml()), controller=None if before is None else before.as_dict())
    (host,) = host_states(store, row, spec, prompts_of(spec)).values()
    return host.settings.replaces


def test_a_controller_seen_to_be_dead_may_be_replaced(store: Store) -> None:
    dead = replace(this_holder(), start_time=1)
    assert replaced(store, dead) == dead


@pytest.mark.parametrize("where", ["nowhere", "here", "elsewhere"])
def test_others_may_not(store: Store, where: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        living = replace(this_holder(), pid=process.pid, start_time=start_time(process.pid) or 0)
        before = {"nowhere": None, "here": living, "elsewhere": replace(living, machine_id="another", start_time=1)}
        try:
            assert replaced(store, before[where]) is None
        finally:
            process.kill()
