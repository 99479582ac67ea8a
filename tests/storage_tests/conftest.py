"""A store in a fresh file, a study in it, and launches of that study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.records import StudyRow
from storage.store import Store
from sweep.model import ArmConfig, Effective, Role, Stage
from tests.storage_tests.samples import ARM, Server, create


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sweep.db'}"


@pytest.fixture
def study(store: Store) -> StudyRow:
    return create(store)


@pytest.fixture
def launch(store: Store, study: StudyRow) -> Callable[..., int]:
    """Begin a launch of an arm (default: the baseline's role by ``trial`` None) and bring it to ready."""

    def make(arm: ArmConfig = ARM, *, trial: int | None = None, stage: Stage = Stage.SEARCH, **changes: Any) -> int:
        role = Role.CANDIDATE if trial is not None else Role.BASELINE
        made = store.begin_launch(
            study.id,
            arm=arm,
            role=role,
            host="gpu-a",
            stage=stage,
            sequence=store.next_sequence(study.id, "gpu-a"),
            trial=trial,
        )
        server = Server(effective=Effective(arm, {"tp_size": 1}), **changes)
        store.launch_started(made, server)
        store.launch_ready(made, server)
        return made

    return make
