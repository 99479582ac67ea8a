"""Reading a search space: what is refused, with file, line, key and the nearest valid name; and what is not."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from launchers.redact import Redactor
from launchers.supervisor import MIN_SECRET
from sweep.config import StudySpec, find, load_space, load_text, plain_env, secret_env, shipped
from sweep.errors import ConfigError
from sweep.model import ArmConfig, Constraint, Drafter, Objective

MINIMAL = """\
name: small
model: {path: /models/target}
space:
  algorithm: [EAGLE3]
  draft_model: [/models/head-a, {name: b, path: /models/head-b, revision: main}]
  num_steps: {low: 1, high: 5, step: 2}
  topk: [1, 4]
  num_draft_tokens: [8]
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(dedent(text), source="s.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_minimal_space_and_its_defaults() -> None:
    spec = load_text(MINIMAL)
    assert spec.space.num_steps == (1, 3, 5)
    assert spec.drafters == {
        "head-a": Drafter("head-a", "/models/head-a"),
        "b": Drafter("b", "/models/head-b", "main"),
    }
    assert spec.goals == (Objective("output_throughput", 1, maximize=True),)
    assert [(host.name, host.kind) for host in spec.hosts] == [("local", "local")]
    assert spec.gpus_of(spec.hosts[0]) == (0,)
    assert not spec.simulated


def test_dump_and_parse_are_inverse() -> None:
    import json

    spec = load_text(
        MINIMAL
        + dedent("""\
        server: {args: {tp: 2, cuda-graph-bs-decode: [1, 2]}, env: {HF_TOKEN: "${HF_TOKEN}", NCCL_PROTO: LL}}
        hosts: [{ssh: gpu-a, gpus: [2, 3]}, {name: x, host: 10.0.0.1, user: me, port: 22}]
        workload: {concurrency: [1, 8], chat_template_args: {enable_thinking: false}, slo: {ttft_ms: 200}}
        objectives: [output_throughput@8, {metric: ttft_p50, concurrency: 1, direction: minimize}]
        constraints: ["ttft_p99@8 < 0.2 s"]
        budget: {trials: 3, hours: 1.5, until: 07:30}
        """)
    )
    stored = json.loads(json.dumps(spec.dump()))
    assert StudySpec.parse(stored) == spec
    assert stored["server"]["args"] == {"tp-size": 2, "cuda-graph-bs-decode": [1, 2]}
    assert spec.limits == (Constraint("ttft_p99", 8, below=True, limit=200.0, text="ttft_p99@8 < 0.2 s"),)
    assert spec.goals[1] == Objective("ttft_p50", 1, maximize=False)
    assert spec.gpus_per_arm == 2
    assert spec.budget.until == "07:30"


def test_known_good_takes_an_axis_of_one_value() -> None:
    spec = load_text(MINIMAL + "known_good: [{algorithm: EAGLE3, draft_model: b, num_steps: 3, topk: 4}]\n")
    assert spec.known_good_arms == (ArmConfig("EAGLE3", "b", 3, 4, 8),)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("topk: [1, 4]", "topkk: [1, 4]", "s.yaml:7: space.topkk: unknown key (nearest valid name: topk)"),
        ("name: small", "nmae: small", "nmae: unknown key (nearest valid name: name)"),
        ("topk: [1, 4]", "topk: []", "s.yaml:7: space.topk: the axis is empty"),
        ("topk: [1, 4]", "topk: [1, a]", "s.yaml:7: space.topk[1]: must be a whole number, not 'a'"),
        ("topk: [1, 4]", "topk: [1, 1.5]", "space.topk[1]: must be a whole number, not 1.5"),
        ("topk: [1, 4]", "topk: [1, 1]", "space.topk: the value 1 is given twice"),
        ("topk: [1, 4]", "topk: [0]", "space.topk[0]: should be greater than or equal to 1, not 0"),
        ("topk: [1, 4]", "topk: {low: 4, high: 1}", "space.topk: the range 4..1 by 1 is empty"),
        ("topk: [1, 4]", "topk: {low: 1, hihg: 4}", "space.topk: unknown key 'hihg' in a range"),
        ("topk: [1, 4]", "cuda_graph: [on, off]", "space.cuda_graph[0]: must be true or false, not the text 'on'"),
        ("[EAGLE3]", "[true]", 'space.algorithm[0]: is a YAML boolean where text is meant; write it in quotes: "true"'),
        (
            "[EAGLE3]",
            "[EAGEL3]",
            "space.algorithm[0]: 'EAGEL3' is no speculative algorithm of SGLang (nearest valid name: EAGLE3)",
        ),
        ("[EAGLE3]", "[none]", "space.algorithm[0]: no speculation is the baseline"),
        ("{path: /models/target}", "/models/target", "s.yaml:2: model: must be a mapping, not '/models/target'"),
        ("{path: /models/target}", "{}", "s.yaml:2: model.path: is missing"),
        ("name: small", "name: a b", "s.yaml:1: name: 'a b' has characters"),
        ("/models/head-a,", "/models/b,", "two draft models are named 'b'"),
        ("topk: [1, 4]", "topk: [1, 4]\n  topk: [2]", "s.yaml:8: space.topk: the key is given twice, first on line 7"),
    ],
)
def test_a_wrong_key_or_value_is_said_with_its_place(old: str, new: str, expected: str) -> None:
    assert old in MINIMAL
    assert expected in refusal(MINIMAL.replace(old, new))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("sampler: tep", "s.yaml:9: sampler: 'tep' is not possible (nearest valid name: tpe)"),
        ("engine: sglnag", "s.yaml:9: engine: 'sglnag' is no engine (nearest valid name: sglang)"),
        ("engine: simulated", "s.yaml:9: engine: engine simulated needs a simulate block"),
        ("hosts: []", "s.yaml:9: hosts: is empty"),
        ("constraints: []", "s.yaml:9: constraints: is empty"),
        ("hosts: [{ssh: a, kind: shs}]", "hosts[0].kind: 'shs' is no kind of host (nearest valid name: ssh)"),
        ("hosts: [{ssh: a, gpsu: 1}]", "hosts[0].gpsu: unknown key (nearest valid name: gpus)"),
        ("hosts: [{ssh: a, gpus: 0}]", "hosts[0].gpus: a host has 1 to 64 GPUs"),
        ("hosts: [{ssh: a, gpus: [1, 1]}]", "hosts[0].gpus: a GPU is given twice"),
        ("hosts: [{ssh: a}, {ssh: a}]", "hosts[1].name: two hosts are named 'a'"),
        ("hosts: [{name: a}]", "host 'a' needs exactly one of ssh (an alias) and host (an address)"),
        ("hosts: [{kind: local, container: i, activate: a}]", "container and activate both say where the engine is"),
        ("hosts: [{kind: local, container: {imag: i}}]", "image"),
        ("runtime: docker", "s.yaml:9: runtime: unknown key; to run servers in docker, write `container: IMAGE`"),
        ("container: i", "s.yaml:9: container: unknown key; to run servers in docker, write `container: IMAGE`"),
        ("hosts: [{ssh: a, runtime: docker}]", "hosts[0].runtime: unknown key; to run servers in docker, write"),
        ("hosts: [{ssh: a, image: i}]", "hosts[0].image: unknown key; to run servers in docker, write `container: IM"),
        ("hosts: [{ssh: a, kind: docker}]", "hosts[0].kind: 'docker' is no kind of host; to run servers in docker"),
        ("workload: {runtime: 3}", "workload.runtime: unknown key"),
        ("hosts: [{kind: local, user: me}]", "host 'local' is local and takes no user"),
        ("hosts: [{ssh: a, port: 99999}]", "hosts[0].port: should be less than or equal to 65535"),
        ("workload: {concurrency: 0}", "workload.concurrency[0]: should be greater than or equal to 1"),
        ("workload: {temperature: 3}", "workload.temperature: should be less than or equal to 2"),
        (
            "workload: {format: shargpt}",
            "workload.format: 'shargpt' is no prompt format (nearest valid name: sharegpt)",
        ),
        ("workload: {prompts: none.jsonl}", "workload.prompts: there is no file 'none.jsonl'"),
        ("objectives: [throughput@1]", "objectives[0].metric: 'throughput' is no metric"),
        ("objectives: [output_throughput@8]", "objectives[0].concurrency: 8 is not among workload.concurrency [1]"),
        (
            "objectives: [{metric: ttft_p50, direction: maximize}]",
            "objectives[0].direction: objective 'ttft_p50': direction 'maximize' is wrong",
        ),
        ('constraints: ["ttft_p99 ~ 3"]', "s.yaml:9: constraints[0]: cannot read constraint"),
        ("budget: {until: 25:00}", "budget.until: '25:00' is no time of day"),
        ("budget: {trials: 0}", "budget.trials: should be greater than or equal to 1"),
        (
            "server: {args: {speculative-num-steps: 3}}",
            "server.args.speculative-num-steps: --speculative-num-steps cannot",
        ),
        ("server: {args: {nnodes: 2}}", "server.args.nnodes: nnodes must be 1: an arm runs on one host"),
        ("server: {args: {tp: 1, tensor-parallel-size: 2}}", "--tp-size is given twice"),
        ("server: {args: {a: .nan}}", ".nan is no usable number"),
        (
            "server: {env: {HF_TOKEN: hf_abc}}",
            "server.env.HF_TOKEN: looks like a secret, and what stands here is stored",
        ),
        ("server: {env: {A: true}}", "server.env.A: is a YAML boolean where text is meant"),
        ('server: {env: {A: "x${B}"}}', "server.env.A: a reference to the environment is the whole value"),
        ("server: {args: {tp-size: 4}}\nhosts: [{ssh: a, gpus: 2}]", "s.yaml:10: hosts[0].gpus: an arm takes 4 GPUs"),
        ("known_good: [{algorithm: EAGLE3, draft_model: c}]", "known_good[0].draft_model: 'c' is no draft model"),
        ("known_good: [{algorithm: EAGLE3, num_steps: 2}]", "known_good[0].num_steps: 2 is not on the axis"),
        ("simulated_by_flag: true", "s.yaml:9: simulated_by_flag: unknown key"),
        ("simulate: {}", "simulate.profile: is missing"),
        ("simulate: {profile: p, time_scale: 0}", "simulate.time_scale: should be greater than 0"),
    ],
)
def test_an_added_line_that_is_wrong_is_said_with_its_place(lines: str, expected: str) -> None:
    assert expected in refusal(MINIMAL + lines + "\n")


def test_a_flag_that_is_pin_and_axis_is_refused() -> None:
    text = MINIMAL + "  args: {page-size: [1, 16]}\nserver: {args: {page_size: 1}}\n"
    assert "space.args.page-size: --page-size is also pinned in server.args" in refusal(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n", "a search space is a mapping"),
        ("name: [\n", "s.yaml:2: not valid YAML"),
        ("name: x\n\tfoo: 1\n", "a tab is used for indentation"),
        ("a: 1\n---\nb: 2\n", "more than one YAML document"),
        ("x: !!python/object/apply:os.system [ls]\n", "s.yaml:1: x: the tag"),
        ("x: !!python/name:os.system\n", "is not allowed"),
        ("x: !mine 3\n", "the tag '!mine' is not allowed"),
        ("a: &a {b: 1}\nc: {<<: *a}\n", "merge keys"),
        ("? [a, b]\n: 1\n", "a key is plain text"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("[" * 20000, "nested too deeply"),
        ("n: 99999999999999999999999\n", "the number is too large"),
    ],
)
def test_what_is_no_plain_yaml_mapping_is_refused(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_aliases_may_not_grow() -> None:
    lines = ["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "grows too large through its aliases" in refusal("\n".join(lines))


def test_yaml_1_2_words_stay_text() -> None:
    spec = load_text(MINIMAL + 'server: {args: {a: no, b: on, c: 0x10, d: 1e3, e: 010}}\nbudget: {until: "10:00"}\n')
    assert spec.server.args == {"a": "no", "b": "on", "c": "0x10", "d": 1000.0, "e": 10}
    assert load_text(MINIMAL + "budget: {until: 10:00}\n").budget.until == "10:00"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name: x\0", "is a binary file"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is not UTF-8 text"),
        (b"# " + b"x" * (1024 * 1024), "is too large for a search space"),
        (b"", "is empty"),
        (b"name: \x07\n", "is not text"),
    ],
)
def test_files_that_are_no_search_space(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_space(path)


def test_a_missing_file_a_directory_and_near_names(tmp_path: Path) -> None:
    (tmp_path / "eagle3-big.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"there is no such search space; did you mean .*eagle3-big\.yaml"):
        load_space(tmp_path / "eagle3-bg.yaml")
    with pytest.raises(ConfigError, match="did you mean eagle3"):
        load_space("eagle")
    with pytest.raises(ConfigError, match="is a directory"):
        load_space(tmp_path)


def test_a_shipped_space_is_found_by_its_bare_name_but_a_file_of_that_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find("eagle3") == shipped()["eagle3"]
    (tmp_path / "eagle3").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert load_space("eagle3").name == "small"


def test_prompts_are_looked_for_beside_the_yaml(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "Hello"}\n')
    (tmp_path / "s.yaml").write_text(MINIMAL + "workload: {prompts: mine.jsonl}\n")
    assert load_space(tmp_path / "s.yaml").workload.prompts == str(tmp_path / "mine.jsonl")


def test_secrets_come_from_the_environment_and_are_never_dumped() -> None:
    spec = load_text(MINIMAL + 'server: {env: {HF_TOKEN: "${MY_TOKEN}", NCCL_PROTO: LL, N: 3}}\n')
    assert plain_env(spec) == {"NCCL_PROTO": "LL", "N": "3"}
    assert secret_env(spec, {"MY_TOKEN": "s3cret"}) == {"HF_TOKEN": "s3cret"}
    assert spec.dump()["server"]["env"]["HF_TOKEN"] == "${MY_TOKEN}"
    with pytest.raises(ConfigError, match=r"server\.env\.HF_TOKEN: the environment variable MY_TOKEN is not set"):
        secret_env(spec, {})


def test_a_secret_that_logs_could_not_hide_is_refused() -> None:
    spec = load_text(MINIMAL + 'server: {env: {HF_TOKEN: "${MY_TOKEN}"}}\n')
    for value in ("", "x" * MIN_SECRET):
        assert secret_env(spec, {"MY_TOKEN": value}) == {"HF_TOKEN": value}
        assert value not in Redactor([value]).text(f"it is {value}") or not value
    for value in ("x" * (MIN_SECRET - 1), f"  x{' ' * MIN_SECRET}"):
        with pytest.raises(ConfigError, match=r"HF_TOKEN: the value of MY_TOKEN has [15] characters") as refused:
            secret_env(spec, {"MY_TOKEN": value})
        assert value not in str(refused.value)


def test_many_problems_are_all_said_at_once() -> None:
    text = refusal(MINIMAL + "sampler: tep\nseed: -1\nworkload: {repeats: 0}\n")
    assert len(text.splitlines()) == 3
