"""What options of the command line may change in a search space."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sweep.config import yamlfile
from sweep.config.yamlfile import Document, Location
from sweep.errors import UsageError

_UNITS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "min": 1 / 60, "s": 1 / 3600}
_ADDRESS = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>[^@:\s]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of ``start``, ``resume``, ``plan`` and ``doctor`` that stand above the YAML.

    ``sets``: ``dotted.key=YAML value``; ``hosts``: names of hosts in the YAML, ssh aliases, ``user@host:port`` or
    ``local``; ``budget``: a duration such as ``2h`` or ``1h30m``; ``until``: a time of day.
    """

    sets: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    trials: int | None = None
    budget: str | None = None
    until: str | None = None
    name: str | None = None

    def apply(self, document: Document) -> None:
        """Change the document's values in place; raises UsageError for what cannot be read."""
        for text in self.sets:
            _set(document, text)
        if self.hosts:
            known = document.data.get("hosts")
            entries = [item for item in known if isinstance(item, dict)] if isinstance(known, list) else []
            _put(document, ("hosts",), [_host(text, entries) for text in self.hosts], f"--host {' '.join(self.hosts)}")
        if self.trials is not None:
            _put(document, ("budget", "trials"), self.trials, f"--trials {self.trials}")
        if self.budget is not None:
            _put(document, ("budget", "hours"), hours(self.budget), f"--budget {self.budget}")
        if self.until is not None:
            _put(document, ("budget", "until"), self.until, f"--until {self.until}")
        if self.name is not None:
            _put(document, ("name",), self.name, f"--name {self.name}")


def hours(text: str) -> float:
    """``2h``, ``90m``, ``1h30m``, ``1.5h`` in hours; a bare number is refused, its unit would be a guess."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\s*", "", text).strip():
        raise UsageError(f"--budget {text}: write a duration such as 2h, 90m or 1h30m")
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise UsageError(f"--budget {text}: the duration is zero")
    return total


def _set(document: Document, text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text}: write key=value, for example --set workload.max_tokens=128")
    location: Location = tuple(
        int(part) if part.isdigit() else part for part in re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")
    )
    _put(document, location, yamlfile.value_of(value, f"--set {key}"), f"--set {text}")


def _put(document: Document, location: Location, value: Any, option: str) -> None:
    target: Any = document.data
    for depth, part in enumerate(location):
        last = depth == len(location) - 1
        if isinstance(target, list):
            if not isinstance(part, int) or part >= len(target):
                raise UsageError(f"{option}: {yamlfile.dotted(location[:depth])} is a list of {len(target)}")
        elif not isinstance(target, dict):
            raise UsageError(f"{option}: {yamlfile.dotted(location[:depth])} is a single value, it has no key {part!r}")
        else:
            part = str(part)
        if last:
            target[part] = value
        elif isinstance(target, dict) and target.get(part) is None:
            target[part] = {}
        if not last:
            target = target[part]
    document.lines = {at: line for at, line in document.lines.items() if at[: len(location)] != location}
    document.overridden[location] = option


def _host(text: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    for entry in known:
        if text in (entry.get("name"), entry.get("ssh"), entry.get("host")):
            return entry
        name, _, number = text.rpartition(".")
        if number.isdigit() and name == entry.get("name") and entry.get("slots", 1) != 1:
            raise UsageError(f"--host {text}: is a slot of {name}; name the host, or change its gpus and slots")
    if text in ("local", "localhost"):
        return {"name": "local", "kind": "local"}
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise UsageError(f"--host {text}: write an ssh alias, user@host:port, or local")
    if match["user"] is None and match["port"] is None:
        return {"name": text, "ssh": text}
    entry = {"name": match["host"], "host": match["host"]}
    if match["user"]:
        entry["user"] = match["user"]
    return entry | ({"port": int(match["port"])} if match["port"] else {})
