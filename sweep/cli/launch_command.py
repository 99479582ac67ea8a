"""A SGLang launch command, taken apart."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launchers.engines.flags import table_for
from sweep.config.fields import OWNED_FLAGS, SECRET_NAME, flag_name
from sweep.errors import UsageError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_SKIPPED_WORDS = {"env", "export", "exec", "nohup", "sudo", "time"}
_SEPARATORS = {"&&", "||", ";", "|", "&"}
_SPECULATIVE = {
    "speculative-algorithm": "algorithm",
    "speculative-draft-model-path": "draft",
    "speculative-num-steps": "num_steps",
    "speculative-eagle-topk": "topk",
    "speculative-num-draft-tokens": "num_draft_tokens",
}
_GRAPHS_OFF = {"disable-cuda-graph", "disable-decode-cuda-graph"}


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch command says. ``args`` are the pins; ``notes`` say what was left out or not understood."""

    model: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    python: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    algorithm: str | None = None
    drafts: tuple[str, ...] = ()
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    cuda_graph: bool = True
    gpus: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_options(
        self, *, model: str | None, drafts: Sequence[str], hosts: Sequence[str], gpus: int | None = None
    ) -> Launch:
        """The same with what the command line says instead; ``gpus`` is how many one server takes."""
        pins = self.args if gpus is None else {**self.args, "tp-size": gpus}
        return replace(
            self,
            model=model or self.model,
            drafts=tuple(drafts) or self.drafts,
            hosts=tuple(hosts) or self.hosts,
            args=pins,
        )


def parse_command(text: str) -> Launch:
    """Take a shell command apart: environment assignments, python, ``sglang serve`` or the module, flags.

    Raises UsageError where it is no SGLang launch on one host.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--from-command: cannot be split as a shell would: {error}") from error
    notes: list[str] = []
    env, words = _environment(words, notes)
    python, words = _program(words, text)
    flags = _flags(words, notes)
    return _sorted_out(flags, env, python, notes)


def _environment(words: list[str], notes: list[str]) -> tuple[dict[str, str], list[str]]:
    env: dict[str, str] = {}
    for index, word in enumerate(words):
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            env[assignment[1]] = assignment[2]
        elif word not in _SKIPPED_WORDS and word not in _SEPARATORS:
            return env, words[index:]
        elif word in _SKIPPED_WORDS - {"env", "export"}:
            notes.append(f"`{word}` is left out")
    return env, []


def _program(words: list[str], text: str) -> tuple[str | None, list[str]]:
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if re.fullmatch(r"python[\d.]*", name) and words[1:3] == ["-m", "sglang.launch_server"]:
        return (words[0] if "/" in words[0] else None), words[3:]
    if name == "sglang" and words[1:2] == ["serve"]:
        # the console script lies beside its python
        return (words[0].rsplit("/", 1)[0] + "/python" if "/" in words[0] else None), words[2:]
    raise UsageError(
        "--from-command: not a SGLang launch; it reads `[NAME=value ...] python -m sglang.launch_server FLAGS` or "
        f"`sglang serve FLAGS`, not {shlex.join(words[:3]) if words else text!r}"
    )


def _flags(words: list[str], notes: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word in _SEPARATORS or re.match(r"\d*>|<", word):
            notes.append(f"from `{word}` on the command is left out")
            break
        if not word.startswith("--"):
            raise UsageError(f"--from-command: {word!r} is neither a flag nor the value of one")
        name, equals, attached = word.partition("=")
        values = [attached] if equals else []
        while not equals and index < len(words) and not _starts_something(words[index]):
            values.append(words[index])
            index += 1
        plain = flag_name(name)
        if plain in out:
            notes.append(f"--{plain} is given twice; the last one counts, as in SGLang")
        scalars = [_scalar(value) for value in values]
        out[plain] = True if not scalars else scalars[0] if len(scalars) == 1 else scalars
    return out


def _starts_something(word: str) -> bool:
    flag = word.startswith("-") and not _NUMBER.fullmatch(word)
    return flag or word in _SEPARATORS or bool(re.match(r"\d*>|<", word))


def _scalar(text: str) -> str | int | float:
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _sorted_out(flags: dict[str, Any], env: dict[str, str], python: str | None, notes: list[str]) -> Launch:
    table, _ = table_for("")
    taken: dict[str, Any] = {}
    gpus = _gpus(env, notes)
    for name in list(flags):
        if name == "nnodes" and flags[name] != 1:
            raise UsageError(
                "--from-command: --nnodes above 1: an arm runs on one host, several nodes are not supported"
            )
        if name == "cuda-graph-backend-decode":
            taken["graphs"] = flags.pop(name) != "disabled"
        elif name in _GRAPHS_OFF:
            taken["graphs"] = not flags.pop(name)
        elif name in _SPECULATIVE:
            taken[_SPECULATIVE[name]] = flags.pop(name)
        elif name in ("model-path", "revision", "trust-remote-code"):
            taken[name] = flags.pop(name)
        elif name in OWNED_FLAGS:
            flags.pop(name)
            notes.append(f"--{name} is left out: {OWNED_FLAGS[name]}")
        elif not table.knows(name):
            near = table.nearest(name)
            notes.append(
                f"--{name} is no option of SGLang {table.version} that is known here; it is kept as a pin"
                + (f" (nearest: --{near})" if near else "")
            )
    for key in env:
        if SECRET_NAME.search(key):
            env[key] = f"${{{key}}}"
            notes.append(f"the value of {key} is not written down; it is taken from the environment at start")
    return Launch(
        model=None if taken.get("model-path") is None else str(taken["model-path"]),
        revision=None if taken.get("revision") is None else str(taken["revision"]),
        trust_remote_code=bool(taken.get("trust-remote-code", False)),
        python=python,
        args=flags,
        env=env,
        algorithm=None if taken.get("algorithm") is None else str(taken["algorithm"]).upper(),
        drafts=(str(taken["draft"]),) if taken.get("draft") is not None else (),
        num_steps=_whole(taken, "num_steps"),
        topk=_whole(taken, "topk"),
        num_draft_tokens=_whole(taken, "num_draft_tokens"),
        cuda_graph=taken.get("graphs", True),
        gpus=gpus,
        notes=tuple(notes),
    )


def _whole(taken: dict[str, Any], key: str) -> int | None:
    value = taken.get(key)
    if value is not None and not isinstance(value, int):
        raise UsageError(f"--from-command: {key} must be a whole number, not {value!r}")
    return value


def _gpus(env: dict[str, str], notes: list[str]) -> tuple[int, ...] | None:
    listed = env.pop("CUDA_VISIBLE_DEVICES", None)
    if listed is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        notes.append(f"CUDA_VISIBLE_DEVICES={listed} is left out; say which GPUs under hosts")
        return None
    return tuple(int(number) for number in listed.split(","))
