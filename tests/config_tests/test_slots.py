"""`slots: N`: one host of the YAML, N hosts of the study."""

from __future__ import annotations

import json

import pytest

from search_spaces.space import SearchSpace
from sweep.cli.plan import describe
from sweep.config import Overrides, StudySpec, load_text, simulated, without_slots
from sweep.errors import ConfigError, UsageError

TEXT = """\
name: s
model: {path: org/model}
server: {args: {tp-size: 2}}
space: {algorithm: [EAGLE3], draft_model: [org/head], num_steps: [1, 3], topk: [1], num_draft_tokens: [2, 4]}
simulate: {profile: tiny}
hosts:
  - {name: gpu-a, ssh: gpu-a, gpus: [4, 5, 6, 7, 1], slots: 2, base_dir: /scratch}
  - {name: gpu-b, ssh: gpu-b, gpus: 4}
"""


def load(old: str = "", new: str = "", **options: object) -> StudySpec:
    assert old in TEXT
    return load_text(TEXT.replace(old, new), Overrides(**options), source="s.yaml")  # type: ignore[arg-type]  # by name


def test_each_slot_is_a_host_with_gpus_of_its_own() -> None:
    spec = load()
    assert [(host.name, host.machine, host.gpus, host.slot) for host in spec.hosts] == [
        ("gpu-a.0", "gpu-a", (4, 5), (4, 5)),
        ("gpu-a.1", "gpu-a", (6, 7), (6, 7)),
        ("gpu-b", "gpu-b", (0, 1, 2, 3), None),
    ]
    assert {host.ssh for host in spec.hosts[:2]} == {"gpu-a"}
    assert {host.base_dir for host in spec.hosts[:2]} == {"/scratch"}, "one lock for both"
    assert StudySpec.parse(json.loads(json.dumps(spec.dump()))) == spec


def test_without_gpus_as_many_as_the_slots_take() -> None:
    spec = load("gpus: [4, 5, 6, 7, 1], slots: 2", "slots: 3")
    assert [host.gpus for host in spec.hosts[:3]] == [(0, 1), (2, 3), (4, 5)]


def test_the_hosts_of_the_yaml_again() -> None:
    whole = without_slots(load().hosts)
    assert [(host.name, host.slot, host.gpus) for host in whole] == [
        ("gpu-a", None, (4, 5, 6, 7)),
        ("gpu-b", None, (0, 1, 2, 3)),
    ]


def test_simulated_slots_share_a_machine() -> None:
    hosts = simulated(load()).hosts
    assert [(host.name, host.kind, host.slot, host.machine) for host in hosts] == [
        ("gpu-a.0", "local", (4, 5), "gpu-a"),
        ("gpu-a.1", "local", (6, 7), "gpu-a"),
        ("gpu-b", "local", None, "gpu-b"),
    ]
    assert hosts[0].base_dir == hosts[1].base_dir != hosts[2].base_dir


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("slots: 2", "slots: 3", "s.yaml:7: hosts[0].slots: 3 slots of 2 GPUs (tp-size x pp-size) take 6, and host "),
        ("slots: 2", "slots: 0", "s.yaml:7: hosts[0].slots: should be greater than or equal to 1"),
        ("slots: 2", "slot_of: x", "s.yaml:7: hosts[0].slot_of: unknown key; `slots: N` divides a host"),
        ("name: gpu-b", "name: gpu-a.1", "s.yaml:8: hosts[1].name: two hosts are named 'gpu-a.1'"),
        ("gpus: [4, 5, 6, 7, 1], slots: 2", "gpus: 1", "s.yaml:7: hosts[0].gpus: an arm takes 2 GPUs"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(old, new)
    assert said in str(caught.value)


def test_host_names_a_host_not_a_slot() -> None:
    assert [host.name for host in load(hosts=("gpu-a",)).hosts] == ["gpu-a.0", "gpu-a.1"]
    with pytest.raises(UsageError, match=r"gpu-a\.1: is a slot of gpu-a; name the host"):
        load(hosts=("gpu-a.1",))


def test_the_plan_says_who_is_measured_beside_whom_and_why_not() -> None:
    spec = load()
    document = describe(spec, SearchSpace.from_spec(spec))
    assert [host["name"] for host in document["hosts"]] == ["gpu-a.0", "gpu-a.1", "gpu-b"]
    (slots,) = [note for note in document["notes"] if note.startswith("host gpu-a: 2 slots of 2 GPUs are measured")]
    assert "Neighbours share power" in slots
    (alone,) = [
        note for note in document["notes"] if note.startswith("host gpu-b: a server takes 2 of 4 GPUs, and one")
    ]
    assert "`slots: 2`" in alone
    full = load("gpus: 4}", "gpus: 3}")
    assert not [note for note in describe(full, SearchSpace.from_spec(full))["notes"] if note.startswith("host gpu-b")]
