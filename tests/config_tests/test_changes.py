"""Overrides of the command line, simulation, and what a resumed study may change."""

from __future__ import annotations

from textwrap import dedent

import pytest

from sweep.config import Overrides, StudySpec, diff, load_text, simulated
from sweep.config.overrides import hours
from sweep.errors import ConfigError, UsageError

TEXT = """\
name: small
model: {path: /models/target}
server:
  args: {tp-size: 2}
space:
  algorithm: [EAGLE3]
  draft_model: [{name: a, path: /models/a}]
  num_steps: [1, 3]
  topk: [1, 4]
  num_draft_tokens: [8]
  args: {speculative-attention-mode: [prefill, decode]}
hosts: [{name: big, ssh: gpu-a, gpus: 4}, {name: other, host: 10.0.0.7, user: me}]
budget: {trials: 9, hours: 3}
simulate: {profile: tiny, time_scale: 5, trials: 4}
"""


def load(text: str = TEXT, **options: object) -> StudySpec:
    return load_text(dedent(text), Overrides(**options), source="s.yaml")  # type: ignore[arg-type]  # keywords of a test


def test_overrides_stand_above_the_yaml() -> None:
    spec = load(
        sets=("workload.max_tokens=32", "space.draft_model[0].path=/else/where", "server.args.page-size=16"),
        trials=2,
        budget="1h30m",
        until="07:00",
        name="renamed",
    )
    assert spec.workload.max_tokens == 32
    assert spec.drafters["a"].path == "/else/where"
    assert spec.server.args == {"tp-size": 2, "page-size": 16}
    assert (spec.budget.trials, spec.budget.hours, spec.budget.until) == (2, 1.5, "07:00")
    assert spec.name == "renamed"


def test_host_picks_from_the_yaml_or_adds_one() -> None:
    picked = load(hosts=("other",)).hosts
    assert [(host.name, host.host, host.user) for host in picked] == [("other", "10.0.0.7", "me")]
    assert [host.name for host in load(hosts=("gpu-a",)).hosts] == ["big"]
    added = load(hosts=("new-alias", "you@10.1.1.1:2222", "local")).hosts
    assert [(host.kind, host.address, host.user, host.port) for host in added] == [
        ("ssh", "new-alias", None, None),
        ("ssh", "10.1.1.1", "you", 2222),
        ("local", None, None, None),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sets": ("workload.max_tokens",)}, "--set workload.max_tokens: write key=value"),
        ({"sets": ("workload.maxtokens=3",)}, "--set workload.maxtokens=3: workload.maxtokens: unknown key"),
        ({"sets": ("workload.max_tokens=many",)}, "workload.max_tokens: must be a whole number, not 'many'"),
        ({"sets": ("hosts[7].gpus=1",)}, "hosts is a list of 2"),
        ({"sets": ("name.x=1",)}, "name is a single value, it has no key 'x'"),
        ({"sets": ("seed=!!python/none",)}, "the tag"),
        ({"budget": "2"}, "--budget 2: write a duration such as 2h"),
        ({"budget": "0h"}, "the duration is zero"),
        ({"until": "7 pm"}, "--until 7 pm: budget.until: '7 pm' is no time of day"),
        ({"hosts": ("a b",)}, "--host a b: write an ssh alias"),
        ({"trials": 0}, "--trials 0: budget.trials: should be greater than or equal to 1"),
    ],
)
def test_a_wrong_override_names_its_option(options: dict[str, object], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(**options)
    assert expected in str(caught.value)


def test_durations() -> None:
    assert hours("2h") == 2
    assert hours("90m") == 1.5
    assert hours("1d 2h") == 26
    assert hours("36s") == pytest.approx(0.01)


def test_simulated_replaces_engine_and_hosts_and_is_marked() -> None:
    spec = simulated(load())
    assert spec.simulated
    assert spec.simulated_by_flag
    assert [(host.name, host.kind, host.address, host.gpus) for host in spec.hosts] == [
        ("big", "local", None, (0, 1, 2, 3)),
        ("other", "local", None, (0, 1)),  # as many as an arm takes
    ]
    assert len({host.base_dir for host in spec.hosts}) == 2  # they share a machine but not a lock
    assert spec.budget.trials == 4
    assert spec.budget.hours == 3
    assert StudySpec.parse(spec.dump()) == spec


def test_simulated_takes_what_the_command_line_says() -> None:
    spec = simulated(load(), "h200-llama8b", trials=2)
    assert spec.simulate is not None
    assert (spec.simulate.profile, spec.simulate.time_scale, spec.budget.trials) == ("h200-llama8b", 5, 2)


def test_simulated_without_a_profile_is_refused() -> None:
    bare = load(TEXT.replace("simulate: {profile: tiny, time_scale: 5, trials: 4}\n", ""))
    with pytest.raises(ConfigError, match="has no simulate block"):
        simulated(bare)
    assert simulated(bare, "tiny").simulate is not None


def test_a_profile_that_is_not_there_is_refused() -> None:
    """By the option and by the YAML, there with its line, before anything is stored or started."""
    with pytest.raises(UsageError, match="no simulation profile 'tyni' \\(nearest: 'tiny'"):
        simulated(load(), "tyni")
    wrong = TEXT.replace("profile: tiny", "profile: tyni")
    with pytest.raises(ConfigError, match=r":\d+: simulate.profile: no simulation profile 'tyni'"):
        load("engine: simulated\n" + wrong)
    assert load(wrong).simulate is not None  # a study of real servers does not need it


def test_engine_simulated_keeps_the_hosts() -> None:
    spec = load(TEXT + "engine: simulated\n")
    assert spec.simulated
    assert not spec.simulated_by_flag
    assert [host.kind for host in spec.hosts] == ["ssh", "ssh"]


def test_no_change_is_no_difference() -> None:
    assert diff(load(), load()).same


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("trials: 9", "trials: 20", "budget.trials: 9 -> 20"),
        ("{name: a, path: /models/a}", "{name: a, path: /models/a}, /models/b", "space.draft_model: ['b'] added"),
        ("num_steps: [1, 3]", "num_steps: [5, 3, 1]", "space.num_steps: [5] added"),
        ("[prefill, decode]", "[prefill, decode, other]", "space.args.speculative-attention-mode: ['other'] added"),
        ("gpus: 4", "gpus: 8", "hosts: "),
        ("trials: 4}", "trials: 8}", "simulate.trials: 4 -> 8"),
        ("seed: 1", "sampler: random", "sampler: 'auto' -> 'random'"),
    ],
)
def test_what_may_be_extended(old: str, new: str, said: str) -> None:
    before = TEXT + "seed: 1\n"
    assert old in before
    found = diff(load(before), load(before.replace(old, new)))
    assert found.refused == ()
    assert len(found.allowed) == 1
    assert found.allowed[0].startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("tp-size: 2", "tp-size: 1", "server.args.tp-size", "was 2, is now 1: the pins are the same on every arm"),
        ("/models/target", "/models/other", "model.path", "two target models cannot be compared"),
        (
            "{name: a, path: /models/a}",
            "{name: a, path: /x}",
            "space.draft_model",
            "give the other drafter another name",
        ),
        ("num_steps: [1, 3]", "num_steps: [3]", "space.num_steps", "an axis may only grow"),
        (
            "speculative-attention-mode: [prefill, decode]",
            "",
            "space.args.speculative-attention-mode",
            "cannot be added",
        ),
        ("name: small", "name: large", "name", "a study keeps its name"),
        ("seed: 1", "seed: 2", "seed", "chooses the prompts"),
        ("seed: 1", "workload: {max_tokens: 9}", "workload.max_tokens", "another workload"),
        ("seed: 1", "objectives: [ttft_p50@1]", "objectives", "judged by the old objectives"),
        ("seed: 1", "engine_version: 0.5.17", "engine_version", "two engine versions"),
    ],
)
def test_what_would_make_old_rows_incomparable_is_refused(old: str, new: str, key: str, reason: str) -> None:
    before = TEXT + "seed: 1\n"
    assert old in before
    found = diff(load(before), load(before.replace(old, new)))
    assert [refused for refused, _ in found.refused] == [key]
    assert reason in found.refused[0][1]


def test_a_simulated_study_keeps_its_profile_and_stays_simulated() -> None:
    other = simulated(load(TEXT.replace("profile: tiny", "profile: h200-llama8b")))
    assert [key for key, _ in diff(simulated(load()), other).refused] == ["simulate.profile"]
    refused = dict(diff(simulated(load()), load()).refused)
    assert {"engine", "simulated_by_flag"} <= set(refused)
    assert "a simulated study stays simulated" in refused["simulated_by_flag"]
