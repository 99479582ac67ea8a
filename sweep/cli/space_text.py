"""A search space written down from what a launch command says, with a comment beside every part."""

from __future__ import annotations

import json
import re
from typing import Any

from sweep.cli.launch_command import Launch
from sweep.errors import UsageError


def to_yaml(launch: Launch, name: str | None) -> str:
    """An annotated search space around what the command runs, so that it is one of the arms."""
    tp = launch.args.get("tp-size", 1)
    gpus: Any = list(launch.gpus) if launch.gpus else (tp if isinstance(tp, int) else 1)
    algorithm = launch.algorithm or ("EAGLE3" if launch.drafts else "NGRAM")
    lines = [
        "# A search space to start from. The shipped eagle3.yaml explains every key; `sweep plan` shows what it makes,",
        "# `sweep doctor` whether the hosts can run it, `sweep start` runs it (with --simulate: without a GPU).",
        f"name: {_text(name or _study_name(launch))}  # of the study in the database; --name gives another",
        "engine: sglang",
        "",
        "# The target model, as every arm serves it.",
        "model:",
        f"  path: {_text(launch.model)}",
        *([f"  revision: {_text(launch.revision)}"] if launch.revision else []),
        *(["  trust_remote_code: true"] if launch.trust_remote_code else []),
        "",
        "# Pins: the same on every arm, the baseline without speculation included. Any option of SGLang, undashed.",
        "# What is left open and would differ with speculation is pinned for you; `sweep plan` says which.",
        "server:",
        *_mapping("args", launch.args),
        *_mapping("env", launch.env),
        "",
        "# What is tried: every combination that SGLang can serve; `sweep plan` counts them.",
        "space:",
        f"  algorithm: [{algorithm}]",
        *_axes(launch, algorithm),
        "",
        *_known_good(launch, algorithm),
        "# What is asked of each server. Concurrency levels are measured one after the other on one launch.",
        "workload:",
        "  prompts: builtin          # or the path of a JSONL, ShareGPT or MT-Bench file: what pays depends on yours",
        "  max_tokens: 256           # answers stop by themselves or here",
        "  concurrency: [1, 8]       # requests in flight: your load, and one alone",
        "",
        "# What is optimised: the first one ranks. Any metric at a measured load, for example ttft_p99@8.",
        "objectives: [output_throughput@1, output_throughput@8]",
        "# What a configuration must keep to win.",
        '# constraints: ["ttft_p99 < 500 ms"]',
        "",
        "# When to end: whichever comes first.",
        'budget: {trials: 12}        # also hours: 8, until: "07:00"',
        "",
        "# The best are measured again on fresh launches with fresh prompts; only that number is reported.",
        "measurement: {confirm_top: 2, confirm_launches: 2}",
        "",
        "# Where: ssh aliases as in ~/.ssh/config, addresses, or this machine. `python`: of SGLang's environment.",
        "hosts:",
        *(_host(text, gpus, launch.python) for text in launch.hosts or ("local",)),
        "",
        "# What `--simulate` takes, to try all this here: servers that behave like an H200 with an 8B model.",
        "simulate: {profile: h200-llama8b, time_scale: 0.2, trials: 6}",
    ]
    return "\n".join(lines) + "\n"


def _axes(launch: Launch, algorithm: str) -> list[str]:
    if algorithm == "NGRAM":
        tokens = sorted({4, 8, 12, 16} | ({launch.num_draft_tokens} if launch.num_draft_tokens else set()))
        return [f"  num_draft_tokens: {tokens}"]
    lines = [f"  draft_model: [{', '.join(_text(path) for path in launch.drafts)}]"] if launch.drafts else []
    for key, usual in (("num_steps", {1, 2, 3, 5}), ("topk", {1, 4}), ("num_draft_tokens", {4, 8, 16})):
        value = getattr(launch, key)
        lines.append(f"  {key}: {sorted(usual | ({value} if value else set()))}")
    return [*lines, *(["  cuda_graph: [true, false]"] if not launch.cuda_graph else [])]


def _known_good(launch: Launch, algorithm: str) -> list[str]:
    numbers = {key: getattr(launch, key) for key in ("num_steps", "topk", "num_draft_tokens")}
    if algorithm == "NGRAM":
        numbers = {key: value for key, value in numbers.items() if key == "num_draft_tokens"}
    given = {key: value for key, value in numbers.items() if value is not None}
    if not launch.algorithm or not given:
        return []
    parts = [f"algorithm: {algorithm}"]
    if launch.drafts and algorithm != "NGRAM":
        parts.append(f"draft_model: {_text(launch.drafts[0].rstrip('/').rsplit('/', 1)[-1])}")
    parts += [f"{key}: {value}" for key, value in given.items()]
    parts += [] if launch.cuda_graph else ["cuda_graph: false"]
    return ["# Tried first: what the command runs today.", "known_good:", f"  - {{{', '.join(parts)}}}", ""]


def _host(text: str, gpus: Any, python: str | None) -> str:
    parts = [f"name: {_text(text.rsplit('@', 1)[-1].split(':')[0])}"]
    match = re.fullmatch(r"(?:(?P<user>[^@]+)@)?(?P<host>[^@:]+)(?::(?P<port>\d+))?", text)
    if match is None:
        raise UsageError(f"--host {text}: write an ssh alias, user@host:port, or local")
    if text in ("local", "localhost"):
        parts.append("kind: local")
    elif match["user"] or match["port"]:
        parts.append(f"host: {_text(match['host'])}")
        parts += [f"user: {_text(match['user'])}"] if match["user"] else []
        parts += [f"port: {match['port']}"] if match["port"] else []
    else:
        parts.append(f"ssh: {_text(text)}")
    parts.append(f"gpus: {gpus}")
    parts += [f"python: {_text(python)}"] if python else []
    return f"  - {{{', '.join(parts)}}}"


def _mapping(key: str, values: dict[str, Any]) -> list[str]:
    if not values:
        return [f"  {key}: {{}}"]
    return [f"  {key}:", *(f"    {name}: {_text(value)}" for name, value in values.items())]


def _text(value: Any) -> str:
    """A YAML flow scalar or list; JSON is one, and plain words stay plain."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value)
    if plain and str(value).lower() not in ("true", "false", "null"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _study_name(launch: Launch) -> str:
    last = (launch.model or "study").rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:40].lower() or "study"
