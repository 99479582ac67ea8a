"""Arguments: what the real SGLang answered, its rewrites and refusals, its flags per version."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from launchers.simulated import server as simulated
from launchers.simulated import truth

PROFILE = truth.load("h200-llama8b")


def parse(*flags: str, version: str = "0.5.17") -> tuple[argparse.Namespace, list[str]]:
    args = simulated.build_parser(version).parse_args(["--model-path", "/models/target", *flags])
    warnings: list[str] = []
    simulated.resolve(args, PROFILE, warnings.append)
    return args, warnings


def eagle3(steps: int | None, topk: int | None, tokens: int | None, *more: str) -> tuple[str, ...]:
    out = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/eagle3"]
    for flag, value in (("num-steps", steps), ("eagle-topk", topk), ("num-draft-tokens", tokens)):
        if value is not None:
            out += [f"--speculative-{flag}", str(value)]
    return (*out, *more)


def test_topk_one_fixes_the_draft_tokens() -> None:
    args, warnings = parse(*eagle3(3, 1, 8))
    assert args.speculative_num_draft_tokens == 4
    assert "adjusted to speculative_num_steps + 1" in " ".join(warnings)
    _, quiet = parse(*eagle3(3, 1, 4))
    assert not any("adjusted" in line for line in quiet)


def test_automatic_choice_and_running_requests() -> None:
    args, warnings = parse(*eagle3(None, None, None))
    chosen = (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens)
    assert chosen == (5, 4, 8)
    assert args.max_running_requests == 48
    assert "reset to 48" in " ".join(warnings)
    args, warnings = parse(*eagle3(3, 1, 4, "--max-running-requests", "16"))
    assert args.max_running_requests == 16
    assert not any("reset to 48" in line for line in warnings)


def test_other_architectures_choose_a_chain() -> None:
    kimi = truth.load("kimi-k25-8xgpu")
    args = simulated.build_parser("0.5.23").parse_args(["--model-path", "m", *eagle3(None, None, None)])
    simulated.resolve(args, kimi, lambda _: None)
    assert (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens) == (3, 1, 4)


def test_ngram_overwrites_topk() -> None:
    args, _ = parse("--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", "4")
    assert (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens) == (1, 10, 12)
    args, _ = parse("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
    assert (args.speculative_num_steps, args.speculative_num_draft_tokens) == (0, 8)  # as recorded


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        (("--speculative-algorithm", "EAGEL3"), "ValueError", "Unknown speculative algorithm name: EAGEL3"),
        (eagle3(3, None, None), "TypeError", "'>' not supported between instances of 'NoneType' and 'int'"),
        (eagle3(None, 4, None), "AssertionError", ""),
        (
            eagle3(3, 4, 8, "--page-size", "16", "--attention-backend", "torch_native"),
            "ValueError",
            "speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton'); "
            "got attention_backend='torch_native'.",
        ),
        (eagle3(3, 4, 8, "--attention-backend", "trtllm_mha"), "ValueError", "only supports topk = 1"),
        (eagle3(3, 1, 4, "--attention-backend", "flex_attention"), "AssertionError", "Flex Attention"),
        (("--tokenizer-path", "x", "--model-path", "/opt/no-such-model"), "OSError", "Repo id must be in the form"),
    ],
)
def test_refusals_in_sglangs_words(flags: tuple[str, ...], kind: str, words: str) -> None:
    with pytest.raises(simulated.ConfigError) as error:
        parse(*flags)
    assert error.value.kind == kind
    assert words in str(error.value)


def test_paged_trees_on_a_backend_that_takes_them() -> None:
    args, _ = parse(*eagle3(3, 4, 8, "--page-size", "16", "--attention-backend", "triton"))
    assert args.speculative_num_draft_tokens == 8


def test_flags_differ_by_version(capsys: pytest.CaptureFixture[str]) -> None:
    args, _ = parse("--cuda-graph-bs", "1", "2", "4")
    assert args.cuda_graph_bs_decode == [1, 2, 4]
    with pytest.raises(SystemExit) as ended:
        parse("--cuda-graph-bs", "1", "2", version="0.5.23")
    assert ended.value.code == 2
    assert "ambiguous option: --cuda-graph-bs could match" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse("--uno-lora-path", "x")
    assert parse("--uno-lora-path", "x", version="0.5.23")[0].uno_lora_path == "x"


def test_config_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text('# secrets\napi_key: "se\'cret # 1"\nenable-metrics: true\ncuda_graph_bs_decode: [1, 2]\ntp: 2\n')
    args = simulated.build_parser("0.5.23").parse_args(["--model-path", "m", *simulated.config_arguments(str(file))])
    assert (args.api_key, args.enable_metrics, args.cuda_graph_bs_decode, args.tp_size) == (
        "se'cret # 1", True, [1, 2], 2,
    )  # fmt: skip
    file.write_text('{"api_key": "k", "log-requests": false}')
    assert simulated.config_arguments(str(file)) == ["--api-key=k"]


def test_runs_on_python_3_8() -> None:
    import ast

    for name in ("server.py", "nvidia_smi.py"):
        source = (Path(simulated.__file__).parent / name).read_text()
        tree = ast.parse(source, feature_version=(3, 8))
        modules: set[Any] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").split(".")[0])
        assert modules <= set(__import__("sys").stdlib_module_names)
