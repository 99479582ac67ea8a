"""Whole studies on simulated servers of this machine, owners in this process: everything but Ray is real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launchers.engines.simulated import profile_text
from storage import details
from storage.best import best
from storage.pareto import pareto
from storage.records import StudyRow
from storage.store import Store
from sweep import session
from sweep.config import Overrides, StudySpec, load_text
from sweep.config.places import Simulate
from sweep.pool import InlinePool

SPACE = """
name: pairs
engine: simulated
model: {path: meta-llama/Llama-3.1-8B-Instruct}
server: {args: {attention-backend: triton, page-size: 1, max-running-requests: 8, cuda-graph-bs-decode: [1, 2, 4, 8]}}
space:
  algorithm: [EAGLE3]
  draft_model: [{name: head, path: some/eagle3-head}]
  num_steps: [1, 3]
  topk: [1]
  num_draft_tokens: [2, 4]
workload: {categories: [code, writing], per_category: 2, max_tokens: 32, concurrency: [1], repeats: 2}
objectives: [output_throughput@1]
budget: {trials: 1}
measurement: {calibrate_launches: 1, engine_default: false, confirm_top: 0, tolerance: 0.3}
simulate: {profile: tiny, time_scale: 1.0}
hosts: [{name: gpu, kind: local, gpus: 1, base_dir: BASE}]
"""


class Listener:
    """Keeps every event and hands it on."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.then: Callable[[Mapping[str, Any]], None] = lambda event: None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        self.then(event)


@dataclass
class Lab:
    """A database, a private host folder, and studies run to their end in them.

    ``after_launch`` is asked after each launch of the search, with its event, by how many seconds the host's clock of
    drift is to move on: servers started later run at what the profile's ``effects.drift`` says of that time.
    """

    folder: Path
    store: Store
    after_launch: Callable[[Mapping[str, Any]], float] = lambda event: 0.0
    heard: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        self.heard.then = self._move_clock

    def _move_clock(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "finished" and (seconds := self.after_launch(event)):
            (epoch,) = self.folder.glob("host/**/drift_epoch")
            epoch.write_text(repr(float(epoch.read_text()) - seconds))

    def spec(self, *sets: str, profile: Mapping[str, Any] | None = None) -> StudySpec:
        """The space above with ``KEY=VALUE`` changes and the tiny profile with ``profile``'s keys."""
        known = json.loads(profile_text("tiny"))
        path = self.folder / "profile.json"
        path.write_text(json.dumps(known | dict(profile or {})))
        text = SPACE.replace("BASE", str(self.folder / "host"))
        spec = load_text(text, Overrides(sets=sets), source="space.yaml")
        # A YAML names shipped profiles only; the engine itself takes the path of one.
        return spec.model_copy(update={"simulate": Simulate.model_construct(profile=str(path), time_scale=1.0)})

    def create(self, spec: StudySpec) -> StudyRow:
        return session.create(self.store, spec, "")

    def run(self, *sets: str, profile: Mapping[str, Any] | None = None) -> StudyRow:
        spec = self.spec(*sets, profile=profile)
        study = self.create(spec)
        assert session.run(self.store, study, spec, lambda books, settings: self.heard, InlinePool()) == "finished"
        return self.store.study_by_id(study.id)

    def show(self, study: StudyRow, trial: int) -> dict[str, Any]:
        return details.show(self.store, study.id, trial)

    def best(self, study: StudyRow, *, lossy: bool = False) -> dict[str, Any]:
        return best(self.store, study.id, lossy=lossy)

    def pareto(self, study: StudyRow) -> dict[str, Any]:
        return pareto(self.store, study.id)

    def kinds(self, *wanted: str) -> list[Mapping[str, Any]]:
        return [event for event in self.heard.events if event["kind"] in wanted]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Store.open(f"sqlite:///{tmp_path}/t.db") as store:
        yield Lab(tmp_path, store)


Run = Callable[..., StudyRow]
