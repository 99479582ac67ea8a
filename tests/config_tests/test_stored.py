"""`sweep resume` with options: what the start was given stays, and only what is said now changes."""

from __future__ import annotations

import pytest

from sweep.config import Overrides, StudySpec, diff, load_stored, load_text, simulated
from sweep.errors import ConfigError, UsageError

TEXT = """
name: night
model: {path: /models/target}
server: {args: {tp-size: 1}}
space: {algorithm: [NGRAM], num_draft_tokens: [4, 8, 16]}
workload: {max_tokens: 128}
budget: {trials: 9}
hosts:
  - {name: gpu-a, ssh: gpu-a, gpus: 1}
  - {name: gpu-b, host: 10.0.0.8, user: ml, gpus: [2, 3], slots: 2}
simulate: {profile: h200-llama8b, time_scale: 0.5, trials: 6}
"""


def started(*, simulate: bool = False, **options: object) -> StudySpec:
    """As `sweep start` stores it and `sweep resume` reads it."""
    spec = load_text(TEXT, Overrides(**options))  # type: ignore[arg-type]  # each test names its own options
    return StudySpec.parse((simulated(spec) if simulate else spec).dump())


def test_options_of_the_start_survive_options_of_the_resume() -> None:
    old = started(sets=("workload.max_tokens=32",), hosts=("gpu-a",), trials=4)
    now = load_stored(old, TEXT, Overrides(until="07:00", name="night"))
    assert now.workload.max_tokens == 32
    assert now.budget.trials == 4
    assert [host.name for host in now.hosts] == ["gpu-a"]
    found = diff(old, now)
    assert found.refused == ()
    assert len(found.allowed) == 1
    assert found.allowed[0].startswith("budget.until")


def test_a_host_left_out_at_the_start_is_known_by_its_name() -> None:
    now = load_stored(started(hosts=("gpu-a",)), TEXT, Overrides(hosts=("gpu-a", "gpu-b")))
    assert [(host.name, host.address, host.gpus) for host in now.hosts] == [
        ("gpu-a", "gpu-a", (0,)),
        ("gpu-b.0", "10.0.0.8", (2,)),
        ("gpu-b.1", "10.0.0.8", (3,)),
    ]


def test_slots_stay_as_they_are() -> None:
    old = started()
    assert load_stored(old, TEXT, Overrides(trials=12)).hosts == old.hosts


def test_a_simulated_study_stays_simulated() -> None:
    old = started(simulate=True, hosts=("gpu-a",), sets=("simulate.time_scale=0.1",))
    more = load_stored(old, TEXT, Overrides(trials=7))
    assert (more.simulated_by_flag, more.budget.trials, more.simulate) == (True, 7, old.simulate)
    assert more.hosts == old.hosts
    later = load_stored(old, TEXT, Overrides(until="07:00"))
    assert later.budget.trials == 6  # what the start took from the simulate block
    other = load_stored(old, TEXT, Overrides(hosts=("gpu-b",)))
    assert {host.kind for host in other.hosts} == {"local"}
    assert diff(old, more).refused == ()


def test_what_is_wrong_is_said_with_the_option() -> None:
    with pytest.raises(ConfigError, match=r"--set workload\.max_tokens=none.*workload\.max_tokens: must be a whole"):
        load_stored(started(), TEXT, Overrides(sets=("workload.max_tokens=none",)))
    with pytest.raises(UsageError, match="write key=value"):
        load_stored(started(), TEXT, Overrides(sets=("workload",)))
