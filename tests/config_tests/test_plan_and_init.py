"""`sweep plan` and `sweep init` as a user types them.

A little over 300 lines on purpose: what init writes is what plan is asked to read.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from search_spaces.space import SearchSpace
from sweep.cli.launch_command import parse_command
from sweep.cli.main import cli, main
from sweep.config import load_space
from sweep.errors import UsageError
from sweep.model import ArmConfig

COMMAND = (
    "NCCL_PROTO=LL HF_TOKEN=hf_secret CUDA_VISIBLE_DEVICES=2,3 nohup /opt/env/bin/python3 -m sglang.launch_server "
    "--model-path /models/target --tp 2 --trust-remote-code --host 0.0.0.0 --port 30000 --api-key sk-secret "
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head --speculative-num-steps 3 "
    "--speculative-eagle-topk=4 --speculative-num-draft-tokens 16 --cuda-graph-backend-decode disabled "
    "--cuda-graph-bs-decode 1 2 4 --mem-fraction-static 0.85 --attention-backend triton --frobnicate 3 "
    """--json-model-override-args '{"a": 1}' > server.log 2>&1 &"""
)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


def plan(*args: str) -> dict[str, Any]:
    result = run("plan", *args, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_plan_keeps_its_contract() -> None:
    document = plan("eagle3")
    space = SearchSpace.from_spec(load_space("eagle3"))
    assert document["distinct"] == len(space.candidates) == len(document["arms"])
    assert document["duplicates"] == space.duplicates
    assert [set(item) for item in document["infeasible"]] == [{"config", "reason", "rule"}] * len(space.infeasible)
    assert document["launches"] == sum(document["launches_by_stage"].values())
    assert document["launches"] == sum(host["launches"] for host in document["hosts"])
    assert [host["name"] for host in document["hosts"]] == ["gpu-a", "gpu-b"]
    assert document["arms"][0] == space.known_good[0].as_dict()
    assert document["gpu_hours"] == pytest.approx(
        document["launches"] * document["seconds_per_launch"] / 3600, abs=0.01
    )
    assert document["pairing"]["mode"] == "bracketed"


def test_plan_counts_launches_as_the_agenda_makes_them() -> None:
    # A/A 2, engine default 1, one baseline after 3 trials (the default counts) and the last bracket; 5 trials;
    # confirm: (2 best + baseline) x 2
    document = plan("kimi_k25_eagle3")
    assert document["launches_by_stage"] == {"reference": 5, "search": 5, "confirm": 6}
    runs = document["hosts"][0]["runs"]
    assert runs[:4] == [
        "reference: no speculation",
        "reference: no speculation",
        "reference: EAGLE3 k25-custom (engine default)",
        "search: EAGLE k25-custom 3/4/16, no graphs",
    ]
    assert runs[-1] == "confirm: no speculation"


@pytest.mark.parametrize("args", [("--simulate", "eagle3"), ("eagle3", "--simulate"), ("eagle3", "--simulate=tiny")])
def test_plan_simulated_says_so_wherever_the_option_stands(args: tuple[str, ...]) -> None:
    document = plan(*args)
    assert document["simulated"] is True
    assert {host["kind"] for host in document["hosts"]} == {"local"}
    assert "(SIMULATED)" in run("plan", *args).stdout
    assert "(SIMULATED)" not in run("plan", "eagle3").stdout


def test_plan_takes_overrides() -> None:
    document = plan(
        "eagle3",
        "--set",
        "space.num_steps=[3]",
        "--set",
        "space.topk=[1]",
        "--set",
        "known_good=[]",
        "--host",
        "local",
        "--trials",
        "7",
    )
    assert document["distinct"] == 1
    assert document["trials"] == 1
    assert [host["kind"] for host in document["hosts"]] == ["local"]


def test_plan_of_a_space_without_anything_to_serve_gives_the_reasons() -> None:
    document = plan(
        "eagle3",
        "--set",
        "space.num_steps=[1]",
        "--set",
        "space.topk=[4]",
        "--set",
        "known_good=[]",
        "--set",
        "space.num_draft_tokens=[16, 64]",
    )
    assert document["distinct"] == 0
    assert document["infeasible_count"] == 2
    assert document["launches_by_stage"].get("confirm", 0) == 0


def test_plan_notes_an_unknown_flag_a_queue_and_open_pins(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: {path: /m}\nspace: {algorithm: [NGRAM], num_draft_tokens: [8]}\n"
        "server: {args: {atention-backend: triton, max-running-requests: 4}}\nworkload: {concurrency: [1, 8]}\n"
    )
    notes = "\n".join(plan(str(tmp_path / "s.yaml"))["notes"])
    assert "did you mean --attention-backend?" in notes
    assert "--max-running-requests 4 is below concurrency 8" in notes
    assert "--page-size is pinned to 1 on every arm" in notes
    assert "--max-running-requests is pinned" not in notes
    searched, forced = plan("h200_llama8b_shaped")["notes"]
    assert searched.startswith("the cost model chooses")
    assert forced == "SGLANG_SIMULATE_ACC_LEN forces the accept length: gains are not those of the drafter"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "ends the search when 1 % or less is left to find"),
        ("budget: {trials: 9, regret: 0.02}", "ends the search when 2 % or less is left to find"),
        ("budget: {regret: null}", "the cost model chooses what is searched"),
        ("sampler: tpe", "sampler tpe chooses what is searched"),
        ("budget: {trials: 500}", None),
    ],
)
def test_plan_says_that_a_sampler_chooses(tmp_path: Path, more: str, words: str | None) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: {path: /models/m}\nspace: {algorithm: [EAGLE3], draft_model: [{name: h, path: /h}], "
        "num_steps: [1, 2, 3, 4, 5, 6], topk: [1, 4], num_draft_tokens: [4, 8, 16]}\n"
        "hosts: [{name: here, kind: local, gpus: 1}]\n" + more
    )
    found = [note for note in plan(str(tmp_path / "s.yaml"))["notes"] if "what is searched" in note]
    assert len(found) == (words is not None)
    if words is not None:
        assert words in found[0]
        assert ("ends the search" in found[0]) is ("regret: null" not in more and "tpe" not in more)


@pytest.mark.parametrize(
    ("args", "noted"),
    [
        ("max-running-requests: 64, cuda-graph-bs-decode: [1, 2, 4]", True),
        ("max-running-requests: 64, cuda-graph-bs: [1, 2, 4]", True),
        ("max-running-requests: 64, cuda-graph-max-bs: 4", True),
        ("max-running-requests: 64, cuda-graph-bs-decode: [1, 2, 4, 8]", False),
        ("max-running-requests: 4, cuda-graph-bs-decode: [1, 2, 4]", False),  # the fifth request waits: no such batch
        ("max-running-requests: 64", False),
    ],
)
def test_plan_notes_batches_beyond_the_largest_graph(tmp_path: Path, args: str, noted: bool) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: {path: /m}\nspace: {algorithm: [NGRAM], num_draft_tokens: [8]}\n"
        f"server: {{args: {{{args}}}}}\nworkload: {{concurrency: [1, 8]}}\n"
    )
    notes = "\n".join(plan(str(tmp_path / "s.yaml"))["notes"])
    assert ("captured for 4 requests at most" in notes) == noted, notes


def test_a_wrong_space_ends_with_2_and_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nmodel: {path: /m}\nspace: {algorithm: [EAGLE]}\nbudgte: {trials: 1}\n")
    with pytest.raises(SystemExit) as caught:
        main(["plan", str(path)])
    assert caught.value.code == 2
    assert f"{path}:4: budgte: unknown key (nearest valid name: budget)" in capsys.readouterr().err


def test_init_from_a_command_loads_and_runs_it_first(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    result = run("init", "--from-command", COMMAND, "--host", "me@gpu-box:2222", "-o", str(out))
    assert result.exit_code == 0, result.output
    spec = load_space(out)
    assert spec.model.path == "/models/target"
    assert spec.model.trust_remote_code
    assert spec.server.args == {
        "tp-size": 2,
        "cuda-graph-bs-decode": (1, 2, 4),
        "mem-fraction-static": 0.85,
        "attention-backend": "triton",
        "frobnicate": 3,
        "json-model-override-args": '{"a": 1}',
    }
    assert spec.server.env == {"NCCL_PROTO": "LL", "HF_TOKEN": "${HF_TOKEN}"}
    host = spec.hosts[0]
    assert (host.host, host.user, host.port, host.gpus, host.python) == (
        "gpu-box",
        "me",
        2222,
        (2, 3),
        "/opt/env/bin/python3",
    )
    assert SearchSpace.from_spec(spec).known_good == (ArmConfig("EAGLE3", "head", 3, 4, 16, cuda_graph=False),)
    text = out.read_text()
    assert "secret" not in text + result.output
    for said in (
        "--frobnicate is no option",
        "--port is left out",
        "--api-key is left out",
        "value of HF_TOKEN",
        "nohup",
    ):
        assert said in result.stderr


def test_init_does_not_overwrite_and_can_print(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    assert run("init", "--model", "/m", "--draft", "/d/head", "-o", str(out)).exit_code == 0
    assert load_space(out).space.algorithm == ("EAGLE3",)
    before = out.read_text()
    again = run("init", "--model", "/other", "-o", str(out))
    assert isinstance(again.exception, UsageError)
    assert out.read_text() == before
    assert run("init", "--model", "/other", "-o", str(out), "--force").exit_code == 0
    printed = run("init", "--model", "/other", "-o", "-")
    assert printed.stdout == out.read_text()
    assert load_space(out).space.algorithm == ("NGRAM",)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve /m", "not a SGLang launch"),
        ("python -m sglang.launch_server --model /m 'x", "cannot be split as a shell would"),
        ("python -m sglang.launch_server --model /m --nnodes 2", "several nodes are not supported"),
        ("sglang serve -m /m", "'-m' is neither a flag nor the value of one"),
        ("sglang serve --model /m --speculative-num-steps three", "num_steps must be a whole number, not 'three'"),
        ("", "not a SGLang launch"),
    ],
)
def test_a_command_that_cannot_be_taken_apart(command: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        parse_command(command)


def test_commands_are_taken_apart_as_a_shell_would() -> None:
    launch = parse_command(
        "export A=1 && env B='x y' sglang serve \\\n  --model-path='/m/with space' --random-seed -1 "
        "--cuda-graph-bs-decode 1 2 --enable-metrics # comment"
    )
    assert launch.model == "/m/with space"
    assert launch.env == {"A": "1", "B": "x y"}
    assert launch.args == {"random-seed": -1, "cuda-graph-bs-decode": [1, 2], "enable-metrics": True}
    assert launch.notes == ()
    assert launch.cuda_graph
    assert not parse_command("sglang serve --model /m --disable-cuda-graph").cuda_graph


def on_a_terminal(answers: str, *args: str) -> tuple[int, str]:
    """`sweep init` with a terminal of its own; (exit code, everything that stood on the terminal)."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "sweep", "init", *args]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        os.write(ours, answers.encode())
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end has closed
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    return process.returncode, said.decode()


def test_init_asks_for_what_no_option_said(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    code, said = on_a_terminal("/models/m\n/d/one, /d/two\nme@gpu-a:2222 gpu-b\n8\n", "-o", str(out))
    assert code == 0, said
    spec = load_space(out)
    assert spec.model.path == "/models/m"
    assert [drafter.path for drafter in spec.drafters.values()] == ["/d/one", "/d/two"]
    assert [host.host or host.ssh for host in spec.hosts] == ["gpu-a", "gpu-b"]
    assert spec.gpus_per_arm == 8
    assert spec.gpus_of(spec.hosts[0]) == tuple(range(8))


def test_init_takes_the_defaults_and_asks_only_once(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    code, said = on_a_terminal("/models/m\n\n", "-o", str(out), "--host", "gpu-a", "--gpus", "2")
    assert code == 0, said
    assert "GPU hosts" not in said
    assert "GPUs that one server takes" not in said
    spec = load_space(out)
    assert (spec.space.algorithm, spec.hosts[0].ssh, spec.gpus_per_arm) == (("NGRAM",), "gpu-a", 2)
    code, said = on_a_terminal("", "-o", str(out))
    assert code == 2
    assert "exists; choose another name" in said
    assert "Target model" not in said  # nothing is asked for in vain


def test_init_without_a_terminal_asks_nothing(tmp_path: Path) -> None:
    result = run("init", "-o", str(tmp_path / "s.yaml"))
    assert isinstance(result.exception, UsageError)
    assert "which model?" in str(result.exception)
    assert list(tmp_path.iterdir()) == []
