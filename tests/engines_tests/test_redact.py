"""Secrets are found by name and by value, whatever they look like; what is no secret stays readable."""

from __future__ import annotations

import json
import random
import shlex
import string
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from launchers.redact import MASK, Redactor
from launchers.supervisor import MIN_SECRET

DATA = Path(__file__).parents[1] / "data" / "sglang-0.5.17"
HOSTILE = [
    "plain-secret-123",
    "with space and 'single' quotes",
    'with "double" quotes',
    "both ' and \" of them",
    "$(rm -rf /); `id` && echo",
    "back\\slash\\n and \t tab",
    "line one secret\nline two secret",
    "ünïcödé-sécret-☃",
    "a.b*c+d?e(f)[g]{h}|i^j$",
    "--looks-like-a-flag",
    "0123456789",
    "%41%42 percent",
    "end=with=equals==",
]


def _ways(secret: str) -> list[str]:
    """How programs print an argument."""
    return [
        f"server_args=ServerArgs(model_path='/m', api_key={secret!r}, admin_api_key={secret!r}, port=3000)",
        f"server_args={{'model_path': '/m', 'api_key': {secret!r}, 'port': 3000}}",
        json.dumps({"api_key": secret, "port": 3000}),
        json.dumps({"launch_command": f"--port 3000 --api-key {secret}"}, ensure_ascii=False),
        f"argv: {['--port', '3000', '--api-key', secret]!r}",
        f"sglang serve --api-key {shlex.quote(secret)} --port 3000",
        f"GET /x?api_key={quote(secret, safe='')}&port=3000",
        f"HF_TOKEN={secret}",
        f"Authorization: Bearer {secret}",
        f"somewhere in the middle {secret} of a line",
    ]


def _leaks(secret: str, text: str) -> bool:
    forms = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe="")}
    return any(form in text for form in forms)


@pytest.mark.parametrize("secret", HOSTILE)
def test_hostile_values_by_value(secret: str) -> None:
    redactor = Redactor([secret])
    for line in _ways(secret):
        for piece in (redactor.text(line), "\n".join(redactor.text(part) for part in line.split("\n"))):
            assert not _leaks(secret, piece), line
            assert MASK in piece


def test_random_secrets_by_value() -> None:
    rng = random.Random(7)
    for _ in range(300):
        secret = "".join(rng.choice(string.printable) for _ in range(rng.randint(MIN_SECRET, 40)))
        if len(secret.strip()) < MIN_SECRET:
            continue
        redactor = Redactor([secret])
        for line in _ways(secret):
            assert secret not in redactor.text(line)
            assert repr(secret)[1:-1] not in redactor.text(line)


@pytest.mark.parametrize("secret", ["k3y", "0123456789abcdef", "hf_abcdefghijklmnopqrstuv", "it's"])
def test_by_name_alone(secret: str) -> None:
    """Nothing is known of the value: its name is enough."""
    redactor = Redactor()
    for line in (
        f"server_args=ServerArgs(model_path='/m', api_key={secret!r}, port=3000)",
        f"server_args={{'api_key': {secret!r}, 'port': 3000}}",
        json.dumps({"api_key": secret}),
        f"{['--api-key', secret]!r}",
        f"run --api-key {shlex.quote(secret)} --port 3000",
        f"HF_TOKEN={shlex.quote(secret)}",
        f"WANDB_API_KEY={shlex.quote(secret)} MY_PASSWORD={shlex.quote(secret)}",
        f"X-API-Key: {shlex.quote(secret)}",
        f"api-key: {shlex.quote(secret)}\nport: 3000",
    ):
        assert secret not in redactor.text(line), line
        assert shlex.quote(secret) not in redactor.text(line), line
        assert "3000" in redactor.text(line) or "3000" not in line


def test_by_shape_alone() -> None:
    redactor = Redactor()
    assert "hf_" not in redactor.text("downloading with hf_AbCdEfGhIjKlMnOpQrSt now")
    assert "s3cr3tpw" not in redactor.text("fetching http://me:s3cr3tpw@proxy.example:3128/x")
    assert "abcdef123456" not in redactor.text("header Bearer abcdef123456")


def test_what_is_no_secret_stays() -> None:
    redactor = Redactor(["sesame-open"])
    for line in (
        "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 87, token usage: 0.00, accept len: 2.33",
        "max_total_num_tokens=1863472, chunked_prefill_size=8192, tokenizer_path='/m', skip_tokenizer_init=False",
        "server_args=ServerArgs(api_key=None, speculative_token_map=None, speculative_num_draft_tokens=8)",
        "--speculative-num-draft-tokens 8 --max-total-tokens 40000",
        "#new-token: 512, #cached-token: 64, api_key: None, key: value",
    ):
        assert redactor.text(line) == line


@pytest.mark.parametrize("name", ["baseline", "eagle3_steps3_topk4_draft8"])
def test_recorded_server_info(name: str) -> None:
    info = json.loads((DATA / "http" / f"{name}.server_info.json").read_text())
    assert Redactor().value(info) == info  # it holds none, and nothing else is touched
    key = "0f" * 24
    secret = {
        **info,
        "api_key": key,
        "internal_states": [{**info["internal_states"][0], "admin_api_key": key}],
        "launch_command": ["--port", "3000", "--api-key", key],
        "env_vars": {"HF_TOKEN": "abcd1234", "PATH": "/bin"},
    }
    cleaned = Redactor().value(secret)
    assert key not in json.dumps(cleaned)
    assert "abcd1234" not in json.dumps(cleaned)
    assert cleaned["api_key"] == MASK
    assert cleaned["env_vars"]["PATH"] == "/bin"
    assert cleaned["launch_command"] == ["--port", "3000", "--api-key", MASK]
    assert {k: v for k, v in cleaned.items() if k in info and k not in ("api_key", "internal_states")} == {
        k: v for k, v in info.items() if k not in ("api_key", "internal_states")
    }


@pytest.mark.parametrize("piece", [".", "-", "_", "x", "a.", "--a", "a://", "api_key-", "token."])
def test_long_lines_take_no_time(piece: str) -> None:
    """Whatever a server prints without a newline: each place of it looks like the beginning of a name."""
    line = (piece * (1 << 16))[: 1 << 16]
    begun = time.process_time()
    cleaned = Redactor(["sesame-open"]).text(f"{line} MY_API_KEY=abcd")
    assert time.process_time() - begun < 10.0  # measured: 2 s at most; without bounds, hours
    assert "abcd" not in cleaned


def test_argv() -> None:
    redactor = Redactor(["deep-secret"])
    argv = ["python", "--api-key", "x1", "--admin-api-key=y2", "--port", "1", "--note", "has deep-secret inside"]
    assert redactor.argv(argv) == [
        "python", "--api-key", MASK, f"--admin-api-key={MASK}", "--port", "1", "--note", f"has {MASK} inside",
    ]  # fmt: skip


def test_a_recorded_log_line_with_a_key() -> None:
    line = next(
        line
        for line in (DATA / "launch" / "baseline.log").read_text().split("\n")
        if "server_args=" in line
    )  # fmt: skip
    key = "aB3$'\"\\ x"
    dirty = line.replace("api_key=None", f"api_key={key!r}", 1)
    assert dirty != line
    cleaned = Redactor().text(dirty)
    assert repr(key)[1:-1] not in cleaned
    assert cleaned.replace(repr(key)[0] + MASK + repr(key)[0], "None", 1) == line


def test_short_secrets_are_found_by_name_only() -> None:
    assert Redactor(["1"]).text("port=3001 api_key='1'") == f"port=3001 api_key='{MASK}'"
    assert Redactor([""]).text("abc") == "abc"
    assert Redactor(["x" * (MIN_SECRET - 1)]).text("an xxxxx") == "an xxxxx"
    assert Redactor(["x" * MIN_SECRET]).text("an xxxxxx") == f"an {MASK}"
