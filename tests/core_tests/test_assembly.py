"""The settings that a study's owners are given."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launchers import locks
from launchers.locks import Holder, start_time, this_holder
from storage.store import Store
from sweep import session
from sweep.assembly import host_states
from sweep.config import load_text
from sweep.errors import BusyError, ConfigError
from sweep.owner import HostOwner
from sweep.planning import prompts_of
from sweep.reports import OwnerSettings
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


def test_a_study_whose_secret_is_not_there_gets_no_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    text = yaml().replace("server: {", 'server: {env: {HF_TOKEN: "${NO_SUCH_TOKEN}"}, ')
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_TOKEN is not set"):
        session.create(store, load_text(text), text)
    assert store.studies() == []
    monkeypatch.setenv("NO_SUCH_TOKEN", "long enough")
    session.create(store, load_text(text), text)
    assert [study.name for study in store.studies()] == ["night"]


HERE = """
name: night
engine: simulated
simulate: {{profile: tiny}}
model: {{path: /models/target}}
server: {{args: {{tp-size: 1, attention-backend: triton}}}}
space: {{algorithm: [EAGLE3], draft_model: [{{name: head, path: /drafters/head}}], num_steps: [3], topk: [1]}}
hosts: [{{name: gpu-a, kind: local, gpus: 1, base_dir: {base}}}]
"""


def test_an_owner_on_another_node_takes_the_host_from_the_controller_that_was_seen_dead(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches a node of a cluster: the node itself cannot see whether a process of our machine lives."""
    yaml_text = HERE.format(base=tmp_path / "base")
    spec = load_text(yaml_text)
    dead = replace(this_holder(), start_time=1)
    row = replace(session.create(store, spec, yaml_text), controller=dead.as_dict())
    (host,) = host_states(store, row, spec, prompts_of(spec)).values()
    settings: OwnerSettings = pickle.loads(pickle.dumps(host.settings))
    before = HostOwner(replace(settings, owner=replace(settings.owner, controller=dead)))
    blind, ours = HostOwner(replace(settings, replaces=None)), HostOwner(settings)
    try:
        assert before.prepare().error is None
        monkeypatch.setattr(locks, "_machine_id", lambda: "another machine")
        refused = blind.prepare()
        assert refused.exit_code == BusyError.exit_code
        assert f"held by study 'night', process {dead.pid} of " in (refused.error or "")
        assert ours.prepare().error is None
        assert blind.prepare().exit_code == BusyError.exit_code, "ours lives"
    finally:
        for owner in (before, blind, ours):
            owner.close()
