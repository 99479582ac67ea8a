"""best and pareto do not touch what grows with the requests; the benchmark of their speed runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from storage import queries
from storage.pareto import pareto
from storage.records import StudyRow
from storage.store import Store
from tests.storage_tests.samples import (
    arm,
    block,
    complete,
    gain,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("trials", [2, 40])
def test_no_query_reads_requests_or_grows_with_the_trials(
    store: Store, study: StudyRow, launch: Callable[..., int], trials: int
) -> None:
    complete(store, study, [arm(4 + n) for n in range(trials)])
    store.add_block(launch(arm(4), trial=0), block())
    store.replace_analysis(study.id, [gain(n, n / 100) for n in range(trials)], {})
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(store.database._engine, "before_cursor_execute", note)
    queries.best(store, study.id)
    pareto(store, study.id)
    asked = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(asked) == 12  # eight of best, four of pareto
    assert not any("FROM requests" in statement or "JOIN requests" in statement for statement in asked)


def test_the_benchmark_prints_its_figures() -> None:
    command = [
        sys.executable,
        "benchmarks/queries.py",
        "--trials",
        "100",
        "--requests",
        "12",
        "--repeats",
        "1",
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["trials"], answer["requests"]) == (100, 12)
    assert answer["database_mib"] > 0.3
    assert min(answer[key] for key in ("best_s", "pareto_s", "show_s")) > answer["python_s"]
