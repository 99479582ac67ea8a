"""docs/reference/yaml.md from the models that check a search space."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from sweep.config import StudySpec, find, shipped
from sweep.config.fields import NAME_PATTERN

INTRO = """# Keys of a search space

`search_spaces/eagle3.yaml` is the annotated example to copy; `sweep init` writes one for your model; `sweep plan`
checks one and says what it comes to. A wrong key, type or value is refused with file, line and the nearest valid name.
`--set KEY=VALUE` overrides any key for one run (`--set workload.max_tokens=64`).

Where a list is meant, a single value is a list of one. A number axis may hold null: that flag is left out.
"""
_KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
# Set by the program and refused in a file.
_NOT_IN_A_FILE = ("simulated_by_flag", "references_only", "slot_of")


def page(cell: Callable[[object], str]) -> str:
    """The page, without its first line."""
    schema = StudySpec.model_json_schema()
    shown = yaml.safe_load(find("eagle3").read_text(encoding="utf-8"))
    out = [INTRO, *_shipped(cell)]
    for title, part, where in _sections(schema):
        example = _at(shown, where)
        out += ["", f"## {title}", "", _words(part.get("description") or ""), ""]
        out += ["| key | type | default | unit | meaning | example |", "|---|---|---|---|---|---|"]
        for name, entry in part["properties"].items():
            if name in _NOT_IN_A_FILE:
                continue
            row = [
                f"`{name}`",
                _type(entry, schema),
                _default(name, entry, part),
                entry.get("unit", ""),
                _meaning(entry, schema),
                _example(entry, example, name),
            ]
            out.append("| " + " | ".join(cell(word) for word in row) + " |")
    return "\n".join(out).replace("\n\n\n", "\n\n") + "\n"


def _shipped(cell: Callable[[object], str]) -> list[str]:
    """The spaces that come with the package, by the comment that each begins with."""
    out = ["Spaces that come with the package, by their bare names:", "", "| name | what |", "|---|---|"]
    for name, path in shipped().items():
        lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        out.append(f"| `{name}` | {cell(' '.join(line.lstrip('# ') for line in lines))} |")
    return out


def paths() -> set[str]:
    """Every key there is, with dots: ``workload.slo.ttft_ms``."""
    sections = _sections(StudySpec.model_json_schema())
    return {
        ".".join((*where, name))
        for _, part, where in sections
        for name in part["properties"]
        if name not in _NOT_IN_A_FILE
    }


def undocumented() -> list[str]:
    """Keys without a meaning."""
    schema = StudySpec.model_json_schema()
    return [
        f"{title}: {name}"
        for title, part, _ in _sections(schema)
        for name, entry in part["properties"].items()
        if name not in _NOT_IN_A_FILE and not _meaning(entry, schema)
    ]


def _sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Title, schema and path of the root and of every model in it, in the order of their first use."""
    yield "Top level", {**schema, "description": StudySpec.__doc__}, ()
    seen: set[str] = set()

    def inside(
        part: Mapping[str, Any], where: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
        for name, entry in part["properties"].items():
            for reference in _references(entry):
                if reference not in seen:
                    seen.add(reference)
                    many = "[]" if _is_list(entry) else ""
                    here = (*where, name)
                    yield f"{'.'.join(here)}{many}", schema["$defs"][reference], here
                    yield from inside(schema["$defs"][reference], here)

    yield from inside(schema, ())


def _references(entry: Any) -> list[str]:
    if isinstance(entry, Mapping):
        own = [entry["$ref"].rsplit("/", 1)[-1]] if "$ref" in entry else []
        return own + [found for key, value in entry.items() if key != "$ref" for found in _references(value)]
    return [found for item in entry for found in _references(item)] if isinstance(entry, list) else []


def _is_list(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "array" or any(choice.get("type") == "array" for choice in entry.get("anyOf", []))


def _type(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "anyOf" in entry:
        kinds = [_type(choice, schema) for choice in entry["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in entry:
        return ", ".join(f"`{choice}`" for choice in entry["enum"])
    if "$ref" in entry:
        return "mapping"
    kind = entry.get("type")
    if kind == "array":
        items = entry.get("items") or {}
        inner = _type(items, schema) if isinstance(items, Mapping) else ""
        return f"list of {f'({inner})' if ' or ' in inner else inner or 'values'}"
    if kind == "object":
        return "mapping"
    if kind == "null":
        return "null"
    if str(entry.get("pattern", "")).strip("^$") == NAME_PATTERN.pattern:
        return "name"
    return _KINDS.get(str(kind), "value") + _limits(entry)


def _limits(entry: Mapping[str, Any]) -> str:
    low, high = entry.get("minimum"), entry.get("maximum")
    above, below = entry.get("exclusiveMinimum"), entry.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:,}"
    words = [f"{sign} {value:,}" for sign, value in ((">=", low), (">", above), ("<", below)) if value is not None]
    return f" {', '.join(words)}".replace(".0", "") if words else ""


def _default(name: str, entry: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    if name in part.get("required", ()):
        # A drafter's or host's name is filled in before the models see it.
        return "" if "default:" in entry.get("description", "") else "**required**"
    if "default" not in entry:
        return "see there"
    value = entry["default"]
    if isinstance(value, list):
        value = [_set(item) if isinstance(item, Mapping) else item for item in value]
    return f"`{_flow(value)}`"


def _set(part: Mapping[str, Any]) -> dict[str, Any]:
    """What is not null."""
    return {key: value for key, value in part.items() if value is not None}


def _meaning(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "description" in entry:
        return _words(entry["description"])
    references = _references(entry)
    return _words(schema["$defs"][references[0]].get("description", "")) if references else ""


def _words(text: str) -> str:
    """A docstring as Markdown on one line."""
    return " ".join(text.split()).replace("``", "`")


def _example(entry: Mapping[str, Any], shown: Any, name: str) -> str:
    value = entry.get("example")
    if value is None and isinstance(shown, Mapping):
        value = shown.get(name)
        if _references(entry):
            return ""  # a part: its own section has the examples
    return "" if value is None or value in ({}, []) else f"`{_flow(value)}`"


def _at(shown: Any, where: tuple[str, ...]) -> Any:
    for key in where:
        shown = shown.get(key) if isinstance(shown, Mapping) else None
        shown = shown[0] if isinstance(shown, list) and shown else shown
    return shown


def _flow(value: Any) -> str:
    """A value as YAML writes it on one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()
