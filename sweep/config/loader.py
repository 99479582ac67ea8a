"""From a YAML file to a :class:`StudySpec`, every error with file, line, key and the nearest valid name."""

from __future__ import annotations

import difflib
import re
import typing
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sweep.config import yamlfile
from sweep.config.checks import nearest, problems
from sweep.config.fields import AtKey, freeze, meant_container
from sweep.config.models import StudySpec
from sweep.config.overrides import Overrides
from sweep.config.simulate import simulated
from sweep.config.slots import with_slots
from sweep.config.yamlfile import Document, Location, dotted
from sweep.errors import ConfigError

SHOWN = 20  # problems in one message
# Lists that may be left out but, where they are written, are meant to hold something.
NEVER_EMPTY: tuple[Location, ...] = (
    ("space", "draft_model"),
    ("objectives",),
    ("constraints",),
    ("hosts",),
    ("workload", "categories"),
)
_WORDS = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "none_required": "must be null",
    "string_too_short": "must not be empty",
}


def shipped() -> dict[str, Path]:
    """The search spaces that come with the package, by bare name."""
    folder = Path(str(resources.files("search_spaces")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(path: str | Path) -> Path:
    """A file, or a shipped search space by its bare name (``eagle3``); a near name is said where there is none."""
    given = Path(path).expanduser()
    if given.exists():
        return given
    known = shipped()
    if str(path) in known:
        return known[str(path)]
    names = list(known)
    if given.parent.is_dir():
        names += [str(item) for item in given.parent.glob("*.y*ml")]
    close = difflib.get_close_matches(str(path), names, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; shipped ones: {', '.join(known)}"
    raise ConfigError(f"{path}: there is no such search space{hint}")


def load_space(path: str | Path, overrides: Overrides | None = None) -> StudySpec:
    """Read a search space. ``path`` is a file or the bare name of a shipped one. Raises ConfigError."""
    found = find(path)
    if found.is_dir():
        raise ConfigError(f"{found}: is a directory, not a YAML file")
    return load_text(yamlfile.read(found), overrides, source=str(path), folder=found.parent)


def load_text(
    text: str, overrides: Overrides | None = None, *, source: str = "<text>", folder: Path | None = None
) -> StudySpec:
    """As :func:`load_space`, from text. ``folder``: where relative prompt files are looked for."""
    document = yamlfile.parse(text, source)
    if overrides is not None:
        overrides.apply(document)
    _refuse_before(document)
    return _checked(document, folder or Path())


def load_stored(old: StudySpec, text: str, overrides: Overrides) -> StudySpec:
    """A study as it was started, options of that start included, with what the command line changes now.

    ``text`` is its YAML: hosts that were left out at the start are known by their names there. Raises ConfigError and
    UsageError.
    """
    ours = ("format", "simulated_by_flag", "references_only")
    kept = {key: value for key, value in old.dump().items() if key not in ours}
    if overrides.hosts:
        kept["hosts"] = yamlfile.parse(text, "the stored YAML").data.get("hosts")
    document = Document("the stored study", kept)
    overrides.apply(document)
    spec = _checked(document, Path())
    return simulated(spec, trials=spec.budget.trials) if old.simulated_by_flag else spec


def _checked(document: Document, folder: Path) -> StudySpec:
    _find_prompts(document, folder)
    try:
        spec = StudySpec.model_validate(freeze(document.data))
    except ValidationError as error:
        found = [item for item in error.errors(include_url=False) if not _follows(item, error)]
        raise _error([_said(document, item) for item in found]) from None
    wrong = [_line(document, location, words) for location, words in problems(spec)]
    if wrong:
        raise _error(wrong)
    return with_slots(spec)


def _error(lines: list[str]) -> ConfigError:
    rest = len(lines) - SHOWN
    return ConfigError("\n".join(lines[:SHOWN] + ([f"... and {rest} more"] if rest > 0 else [])))


def _refuse_before(document: Document) -> None:
    lines = []
    for key, words in {
        "simulated_by_flag": "`--simulate` is an option of the command",
        "references_only": "`sweep calibrate` is a command",
    }.items():
        if key in document.data:
            lines.append(_line(document, (key,), f"unknown key; {words}"))
    hosts = document.data.get("hosts")
    for place, host in enumerate(hosts if isinstance(hosts, list) else ()):
        if isinstance(host, dict) and "slot_of" in host:
            lines.append(_line(document, ("hosts", place, "slot_of"), "unknown key; `slots: N` divides a host"))
    for location in NEVER_EMPTY:
        value: Any = document.data
        for part in location:
            value = value.get(part) if isinstance(value, dict) else None
        if value == [] or value == {}:
            lines.append(_line(document, location, "is empty; give at least one value or leave the key out"))
    if lines:
        raise _error(lines)


def _find_prompts(document: Document, folder: Path) -> None:
    workload = document.data.get("workload")
    if not isinstance(workload, dict):
        return  # refused by the models
    prompts = workload.get("prompts")
    if isinstance(prompts, str) and prompts != "builtin" and (folder / prompts).is_file():
        workload["prompts"] = str((folder / prompts).resolve())


def _line(document: Document, location: Location, words: str) -> str:
    return f"{document.place(location)}: {dotted(location)}: {words}"


def _follows(item: Any, error: ValidationError) -> bool:
    """True for "too short" said of a list whose items were dropped for errors of their own."""
    deeper = (other["loc"] for other in error.errors(include_url=False) if len(other["loc"]) > len(item["loc"]))
    return item["type"] == "too_short" and any(loc[: len(item["loc"])] == item["loc"] for loc in deeper)


def _said(document: Document, item: Any) -> str:
    """One of pydantic's errors in our words."""
    location: Location = tuple(item["loc"])
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if location and location[-1] == "[key]":
        location = location[:-1]
    if kind == "extra_forbidden":
        key, at_host = str(location[-1]), len(location) == 1 or (location[0] == "hosts" and len(location) == 3)
        words = "unknown key" + ((at_host and meant_container(key)) or nearest(key, _keys_at(location[:-1])))
    elif kind == "value_error":
        problem = context["error"]
        words = str(problem)
        if isinstance(problem, AtKey):
            location = (*location, problem.key)
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        words = f"{value!r} is not possible{nearest(str(value), choices)}"
    elif kind == "string_pattern_mismatch":
        words = f"{value!r} has characters that are not possible here (pattern {context.get('pattern')})"
    elif kind == "string_type" and isinstance(value, bool):
        words = f'is a YAML boolean where text is meant; write it in quotes: "{str(value).lower()}"'
    elif kind == "bool_type" and isinstance(value, str):
        words = f"must be true or false, not the text {value!r}"
    elif kind in _WORDS:
        words = _WORDS[kind] + ("" if kind == "missing" or isinstance(value, dict | tuple) else f", not {value!r}")
    else:  # ranges and lengths: pydantic's own words are plain
        words = item["msg"].replace("Input should", "should") + (
            "" if isinstance(value, dict | tuple) else f", not {value!r}"
        )
    return _line(document, _written(location), words)


def _written(location: Location) -> Location:
    """The part of pydantic's location that is a key of the YAML; branches of a union are named in it too."""
    branches = {"str", "int", "float", "bool", "none", "nullable"}
    return tuple(
        part
        for part in location
        if not (
            isinstance(part, str) and (part in branches or part.startswith(("tuple[", "constrained-", "function-")))
        )
    )


def _keys_at(location: Location) -> list[str]:
    """Valid keys of the mapping at a location."""
    part: Any = StudySpec
    for step in location:
        if isinstance(step, str) and isinstance(part, type) and issubclass(part, BaseModel):
            info = part.model_fields.get(step)
            part = _model_in(info.annotation) if info is not None else None
    return list(part.model_fields) if isinstance(part, type) and issubclass(part, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The model inside ``X | None``, ``tuple[X, ...]`` or ``Annotated[X, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
