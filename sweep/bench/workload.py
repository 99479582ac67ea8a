"""Prompt sets: built in, or from a file in one of three formats, and which of them each stage of a study sees.

Formats (``auto`` looks at the first item):

* ``jsonl``: one object a line, ``{"id"?, "category"?, "prompt" | "messages"}``
* ``mtbench``: one object a line, ``{"question_id", "category", "turns"}``; the first turn is the prompt, since later
  ones need the model's own answer
* ``sharegpt``: a JSON array (or one object a line) of ``{"id"?, "conversations": [{"from", "value"}]}``; the prompt
  is everything up to the first human turn

An item that cannot be used is a ``ConfigError`` with file, line (or item) and reason. Nothing is dropped in silence.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sweep.errors import ConfigError
from sweep.model import Prompt, Stage

BUILTIN = "builtin"
CATEGORIES = ("code", "math", "writing", "question_answering", "summarisation", "translation")
FORMATS = ("auto", "jsonl", "mtbench", "sharegpt")
_OTHER = "other"
_ROLES = ("system", "user", "assistant")
_SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}

Item = tuple[str, Any]  # where it stood, for messages ("file:12"), and its JSON value
Reader = Callable[[Mapping[str, Any]], tuple[Any, Any, list[dict[str, str]]]]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of unique id in the order of their source."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(p.category for p in self.prompts))

    @property
    def not_fresh(self) -> tuple[str, ...]:
        """Categories with a single prompt: confirmation has to use it again."""
        return tuple(c for c in self.categories if sum(p.category == c for p in self.prompts) == 1)

    def for_stage(self, stage: Stage, seed: int, per_category: int | None = None) -> tuple[Prompt, ...]:
        """The prompts of one stage, the same in content and order for every arm.

        Each category is shuffled by ``seed`` and cut in halves: search and calibration use the first (the larger),
        confirmation the second, so that its numbers come from fresh prompts. At most ``per_category`` of each are
        taken; categories alternate, so that any stretch of the list is mixed. Raises ``ConfigError`` where a half
        holds fewer than ``per_category``.
        """
        columns = []
        for category in self.categories:
            rows = [p for p in self.prompts if p.category == category]
            random.Random(f"{seed}:{category}").shuffle(rows)
            middle = (len(rows) + 1) // 2
            half = (rows[middle:] or rows) if stage is Stage.CONFIRM else rows[:middle]
            if per_category is not None and len(half) < per_category:
                raise ConfigError(
                    f"prompts {self.name}: category {category!r} has {len(rows)} prompts; {per_category} per stage "
                    f"need {2 * per_category}, since confirmation uses fresh ones"
                )
            columns.append(half[:per_category])
        return tuple(p for row in zip_longest(*columns) for p in row if p is not None)

    def categories_by_sha1(self) -> dict[str, str]:
        """SHA-1 (hex) of the last user message, UTF-8 -> category: how the simulated engine knows a prompt."""
        return {hashlib.sha1(_user_text(p).encode()).hexdigest(): p.category for p in self.prompts}


def load_prompts(
    source: str | Path,
    categories: Sequence[str] | None = None,
    limit: int | None = None,
    *,
    format: str = "auto",
) -> PromptSet:
    """``source`` is ``"builtin"`` or a file. ``categories`` keeps those named, ``limit`` the first of each category.

    Raises ``ConfigError``: unreadable file, broken item, repeated id, no prompt, a category that is not there.
    """
    if format not in FORMATS:
        raise ConfigError(f"unknown prompt format {format!r}; known: {', '.join(FORMATS)}")
    if str(source) == BUILTIN:
        name, prompts = BUILTIN, _builtin()
    else:
        name, prompts = str(source), _from_file(Path(source), format)
    have = tuple(dict.fromkeys(p.category for p in prompts))
    for category in categories or ():
        if category not in have:
            near = difflib.get_close_matches(category, have, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(have)}"
            raise ConfigError(f"prompts {name}: no category {category!r}; {hint}")
    kept: dict[str, list[Prompt]] = {c: [] for c in have if categories is None or c in categories}
    for prompt in prompts:
        rows = kept.get(prompt.category)
        if rows is not None and (limit is None or len(rows) < limit):
            rows.append(prompt)
    chosen = {p.id for rows in kept.values() for p in rows}
    return PromptSet(name, tuple(p for p in prompts if p.id in chosen))


def _builtin() -> list[Prompt]:
    folder = resources.files("sweep.bench") / "prompts"
    prompts = []
    for category in CATEGORIES:
        name = f"{category}.jsonl"
        prompts += _prompts(_lines(name, (folder / name).read_bytes()), "jsonl", name)
    return prompts


def _from_file(path: Path, format: str) -> list[Prompt]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"prompts file {path} cannot be read: {error.strerror or error}") from error
    items = _array(str(path), raw) if raw.lstrip()[:1] == b"[" else _lines(str(path), raw)
    return _prompts(items, format, str(path))


def _lines(name: str, raw: bytes) -> Iterator[Item]:
    for number, line in enumerate(raw.split(b"\n"), 1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        try:
            yield where, json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: not UTF-8 (byte {error.start})") from error
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error


def _array(name: str, raw: bytes) -> Iterator[Item]:
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}: not JSON: {error.msg}") from error
    for number, value in enumerate(values, 1):
        yield f"{name}, item {number}", value


def _prompts(items: Iterator[Item], format: str, name: str) -> list[Prompt]:
    prompts: list[Prompt] = []
    seen: dict[str, str] = {}
    reader = None if format == "auto" else _READERS[format]
    for where, value in items:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: an object is needed, not {type(value).__name__}")
        reader = reader or _guess(value)
        try:
            identity, category, messages = reader(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        text = str(identity) if identity is not None else f"{Path(name).stem}-{len(prompts) + 1}"
        if text in seen:
            raise ConfigError(f"{where}: id {text!r} was used before ({seen[text]})")
        seen[text] = where
        prompts.append(Prompt(text, str(category or _OTHER), tuple(messages)))
    if not prompts:
        raise ConfigError(f"prompts file {name} holds no prompt")
    return prompts


def _guess(first: Mapping[str, Any]) -> Reader:
    if "conversations" in first:
        return _sharegpt
    return _mtbench if "turns" in first else _jsonl


def _jsonl(value: Mapping[str, Any]) -> tuple[Any, Any, list[dict[str, str]]]:
    if ("prompt" in value) == ("messages" in value):
        raise ValueError("exactly one of 'prompt' and 'messages' is needed")
    if "prompt" in value:
        messages = [{"role": "user", "content": _text(value["prompt"], "'prompt'")}]
    else:
        messages = _messages(value["messages"])
    return value.get("id"), value.get("category"), messages


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise ValueError("'messages' must be a list of at least one message")
    messages = []
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"a message needs 'role' ({', '.join(_ROLES)}) and 'content'")
        messages.append({"role": message["role"], "content": _text(message.get("content"), "'content'")})
    if messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return messages


def _mtbench(value: Mapping[str, Any]) -> tuple[Any, Any, list[dict[str, str]]]:
    turns = value.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError("'turns' must be a list of at least one text")
    return value.get("question_id"), value.get("category"), [{"role": "user", "content": _text(turns[0], "turn 1")}]


def _sharegpt(value: Mapping[str, Any]) -> tuple[Any, Any, list[dict[str, str]]]:
    turns = value.get("conversations")
    if not isinstance(turns, list):
        raise ValueError("'conversations' must be a list of turns")
    messages = []
    for turn in turns:
        role = _SHAREGPT_ROLES.get(turn.get("from", "")) if isinstance(turn, dict) else None
        if role is None:
            raise ValueError(f"a turn needs 'from' ({', '.join(_SHAREGPT_ROLES)}) and 'value'")
        messages.append({"role": role, "content": _text(turn.get("value"), "'value'")})
        if role == "user":
            return value.get("id"), value.get("category"), messages
    raise ValueError("the conversation has no human turn")


_READERS: dict[str, Reader] = {"jsonl": _jsonl, "mtbench": _mtbench, "sharegpt": _sharegpt}


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} must be a text that is not empty")
    return value


def _user_text(prompt: Prompt) -> str:
    return next(m["content"] for m in reversed(prompt.messages) if m["role"] == "user")
