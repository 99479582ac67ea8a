"""A study run within the test's own process: real hosts and servers, owners in threads instead of Ray actors."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launchers.locks import start_time
from storage import queries
from storage.records import TrialRow
from storage.store import Store
from sweep import session
from sweep.cli.progress import PlainProgress
from sweep.config import Overrides, StudySpec, load_text, simulated
from sweep.pool import InlinePool

SPACE = """
name: small
engine: {engine}
model: {{path: org/model}}
server:
  args: {{tp-size: 1, attention-backend: triton, page-size: 1, max-running-requests: 8}}
  env: {{SPECSWEEP_SIM: '{sim}'}}
space:
  algorithm: [EAGLE3]
  draft_model: [{{name: head, path: org/head}}]
  num_steps: [3]
  topk: [1, 4]
  num_draft_tokens: {tokens}
workload: {{prompts: builtin, categories: [code], per_category: 2, max_tokens: 48, concurrency: [1], repeats: 1}}
objectives: [output_throughput@1]
measurement: {{calibrate_launches: 1, engine_default: false, confirm_top: {confirm}, confirm_launches: 1,
  tolerance: 0.3, stall_timeout_s: {stall}}}
hosts: {hosts}
simulate: {{profile: tiny, time_scale: 1}}
"""


def space(
    hosts: list[dict[str, Any]],
    *,
    engine: str = "simulated",
    sim: Mapping[str, Any] | None = None,
    tokens: tuple[int, ...] = (4, 8),
    confirm: int = 0,
    stall: float = 10.0,
) -> str:
    """A YAML of 3/1/4 and one arm 3/4/N for each of ``tokens``; a launch takes about a second."""
    return SPACE.format(
        engine=engine,
        sim=json.dumps(sim or {}),
        hosts=json.dumps(hosts),
        tokens=list(tokens),
        confirm=confirm,
        stall=stall,
    )


class Study:
    """One study in ``folder``, of this YAML or (as under ``--simulate``) this specification.

    ``lines`` is what a user would have seen.
    """

    def __init__(self, folder: Path, yaml: str, *, spec: StudySpec | None = None) -> None:
        self.store = Store.open(f"sqlite:///{folder / 'inline.db'}")
        self.spec = load_text(yaml, Overrides()) if spec is None else simulated(spec)
        self.row = session.create(self.store, self.spec, yaml)
        self.lines: list[str] = []

    def run(self) -> str:
        """To its next state; raises SweepError."""
        self.row = self.store.study_by_id(self.row.id)
        return session.run(self.store, self.row, self.spec, lambda *_: PlainProgress(self.lines.append), InlinePool())

    def trials(self) -> dict[str, TrialRow]:
        """By label's numbers, e.g. ``3/1/4``."""
        return {trial.config.label().split()[2]: trial for trial in self.store.trials(self.row.id)}

    def status(self) -> dict[str, Any]:
        return queries.status(self.store, self.row.id)


@contextlib.contextmanager
def foreign_gpu_process(state: Path, pid: int, mib: int = 9000) -> Iterator[None]:
    """Let process ``pid`` hold memory of the simulated GPU 0 whose state is in this folder."""
    state.mkdir(parents=True, exist_ok=True)
    entry = {"pid": pid, "start": str(start_time(pid)), "gpus": {"0": mib}, "name": "someone-elses-job"}
    path = state / f"{pid}.json"
    path.write_text(json.dumps(entry))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def gpu_state(base: Path) -> Path:
    """Where the simulated GPUs of a host with this base folder are kept."""
    return base / os.uname().nodename / "sim-gpus"
