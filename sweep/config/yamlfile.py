"""YAML text to plain values, with the line of every key kept for error messages.

The schema is YAML 1.2's core: only ``true`` and ``false`` are booleans, so that ``NO``, ``on`` or ``07:30`` stay the
text they look like. Tags, merge keys, duplicate keys and anything that could make a small file large are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sweep.errors import ConfigError

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000  # after aliases are followed
MAX_DEPTH = 24  # ours has at most six levels

Location = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """Plain values and where each stands: ``lines[("space", "topk", 0)]`` is a line number from 1."""

    source: str
    data: dict[str, Any]
    lines: dict[Location, int] = field(default_factory=dict)
    overridden: dict[Location, str] = field(default_factory=dict)  # keys set on the command line -> the option

    def place(self, location: Location) -> str:
        """``file:line`` of the nearest enclosing key that is written down, or the option that set it."""
        for end in range(len(location), -1, -1):
            part = location[:end]
            if part in self.overridden:
                return self.overridden[part]
            if part in self.lines:
                return f"{self.source}:{self.lines[part]}"
        return self.source


class _Loader(yaml.SafeLoader):
    """PyYAML's safe composer with YAML 1.2's core schema; constructors are not used at all."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("tag:yaml.org,2002:float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def read(path: Path) -> str:
    """The text of a file; a missing, empty, huge or binary one is a ConfigError that says so."""
    try:
        size = path.stat().st_size
        if path.is_file() and size > MAX_BYTES:
            raise ConfigError(f"{path}: {size} bytes is too large for a search space (at most {MAX_BYTES})")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if b"\0" in content:
        raise ConfigError(f"{path}: is a binary file, not YAML")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); not a YAML search space") from error


def parse(text: str, source: str) -> Document:
    """Plain values of one YAML document whose top is a mapping."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"{source}: is too large for a search space (at most {MAX_BYTES} bytes)")
    root = _compose(text, source)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.value == ""):
        raise ConfigError(f"{source}: is empty; `sweep init` writes a search space to start from")
    document = Document(source, {})
    data = _Plain(document).value(root, (), 0)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}:1: a search space is a mapping of keys such as name, model and space")
    document.data = data
    return document


def value_of(text: str, source: str) -> Any:
    """A single YAML value, as ``--set key=value`` takes it."""
    root = _compose(text, source)
    return None if root is None else _Plain(Document(source, {})).value(root, (), 0)


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        words = str(error.problem or error.context)
        if "\\t" in words:
            words = "a tab is used for indentation; YAML takes spaces only"
        elif "single document" in str(error.context):
            words = "there is more than one YAML document (---) in the file"
        raise ConfigError(f"{source}{line}: not valid YAML: {words}") from error
    except yaml.YAMLError as error:  # a ReaderError: control characters
        raise ConfigError(f"{source}: is not text: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: is nested too deeply") from error
    return node


class _Plain:
    """Turns a node tree into plain values and notes the lines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0

    def fail(self, node: yaml.Node, location: Location, words: str) -> ConfigError:
        key = dotted(location)
        return ConfigError(f"{self.document.source}:{node.start_mark.line + 1}: {key + ': ' if key else ''}{words}")

    def value(self, node: yaml.Node, location: Location, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self.fail(node, location, "the YAML is nested too deeply or grows too large through its aliases")
        self.document.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, location, "tag:yaml.org,2002:map")
            return self._mapping(node, location, depth)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, location, "tag:yaml.org,2002:seq")
            return [self.value(item, (*location, index), depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, location)

    def _check_tag(self, node: yaml.Node, location: Location, plain: str) -> None:
        if node.tag != plain:
            raise self.fail(node, location, f"the tag {node.tag!r} is not allowed; a search space holds plain values")

    def _mapping(self, node: yaml.MappingNode, location: Location, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fail(key_node, location, "a key is plain text, not a list or a mapping")
            key = str(key_node.value)
            here = (*location, key)
            if key in out:
                first = self.document.lines[here]
                raise self.fail(key_node, here, f"the key is given twice, first on line {first}")
            if key == "<<":
                raise self.fail(key_node, location, "merge keys (<<) are not supported; write the keys out")
            self.document.lines[here] = key_node.start_mark.line + 1
            out[key] = self.value(value_node, here, depth + 1)
        return out

    def _scalar(self, node: yaml.Node, location: Location) -> Any:
        text = str(node.value)
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                if len(text) > 20:
                    raise self.fail(node, location, "the number is too large")
                return int(text)
            case "float":
                # .inf and .nan are not Python's spelling; no key takes them
                number = math.inf if "n" in text.lower() else float(text)
                if not math.isfinite(number):
                    raise self.fail(node, location, f"{text} is no usable number")
                return number
            case _:
                raise self.fail(
                    node, location, f"the tag {node.tag!r} is not allowed; a search space holds plain values"
                )


def dotted(location: Location) -> str:
    """``("space", "topk", 0)`` as ``space.topk[0]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
