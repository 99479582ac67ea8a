"""Which long options each SGLang version takes, and how one is written: full names only, current names only.

The table (``sglang_flags.json``) was read from the argument parsers of the versions it names. SGLang's parser accepts
unique prefixes silently and drops old names between releases, so aliases, prefixes and old names are spelled out here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sweep.model import FlagValue

# Old switches that stand for a value of a current option.
_REWRITES: dict[str, tuple[tuple[str, str], ...]] = {
    "disable-cuda-graph": (("cuda-graph-backend-decode", "disabled"), ("cuda-graph-backend-prefill", "disabled")),
    "disable-decode-cuda-graph": (("cuda-graph-backend-decode", "disabled"),),
    "disable-prefill-cuda-graph": (("cuda-graph-backend-prefill", "disabled"),),
    "disable-piecewise-cuda-graph": (("cuda-graph-backend-prefill", "disabled"),),
    "enable-breakable-cuda-graph": (("cuda-graph-backend-prefill", "breakable"),),
    "enforce-piecewise-cuda-graph": (("cuda-graph-backend-prefill", "tc_piecewise"),),
}
_KINDS = {"v": "value", "l": "list", "s": "switch", "t": "toggle"}


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Options of one version. ``kinds``: name without dashes -> value | list | switch | toggle (with ``--no-``)."""

    version: str
    kinds: Mapping[str, str]
    aliases: Mapping[str, str]
    dests: Mapping[str, str]  # options whose key in /server_info is not their own name

    def canonical(self, name: str) -> str:
        """The full current name: dashes and underscores alike, aliases and unique prefixes spelled out.

        A name the version does not know is returned as it came (plugins add options); see :meth:`nearest`.
        """
        name = name.strip().lstrip("-").replace("_", "-")
        name = self.aliases.get(name, name)
        if name in self.kinds:
            return name
        starts = {self.aliases.get(n, n) for n in (*self.kinds, *self.aliases) if n.startswith(name)}
        return starts.pop() if len(starts) == 1 else name

    def key(self, name: str) -> str:
        """The key of an option in ``/server_info``."""
        name = self.canonical(name)
        return self.dests.get(name, name.replace("-", "_"))

    def knows(self, name: str) -> bool:
        return self.canonical(name) in self.kinds or name.lstrip("-").replace("_", "-") in _REWRITES

    def nearest(self, name: str) -> str | None:
        """The known option most like ``name``, None where nothing is near."""
        found = difflib.get_close_matches(name.lstrip("-").replace("_", "-"), self.kinds, n=1, cutoff=0.75)
        return found[0] if found else None

    def render(self, name: str, value: FlagValue) -> tuple[str, ...]:
        """argv of one option. None is left out; booleans are switches, or words where the option takes a value."""
        kind = self.kinds.get(name)
        if value is None:
            return ()
        if isinstance(value, bool):
            if kind in ("value", "list"):
                return (f"--{name}", str(value).lower())
            if value:
                return (f"--{name}",)
            return (f"--no-{name}",) if kind == "toggle" else ()
        if isinstance(value, str | int | float):
            # A value that begins with a dash would be read as an option of its own.
            text = str(value)
            return (f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text)
        return (f"--{name}", *(str(item) for item in value)) if value else ()

    def normalise(self, args: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
        """Canonical name -> value, old switches rewritten. An option given by its current name wins over a rewrite."""
        out: dict[str, FlagValue] = {}
        rewritten: dict[str, FlagValue] = {}
        for name, value in args.items():
            plain = name.strip().lstrip("-").replace("_", "-")
            if plain in _REWRITES:
                if value:
                    rewritten.update(_REWRITES[plain])
            else:
                out[self.canonical(plain)] = value
        return {**rewritten, **out}


def release(version: str) -> tuple[int, ...]:
    """``0.5.23.post1`` -> (0, 5, 23); an empty tuple where the text is no version."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")[:3]) if found else ()


@cache
def _tables() -> tuple[FlagTable, ...]:
    data = json.loads(resources.files(__package__).joinpath("sglang_flags.json").read_text(encoding="utf-8"))
    return tuple(
        FlagTable(
            version,
            {name: _KINDS[letters[i]] for name, letters in data["flags"].items() if letters[i] != "-"},
            data["aliases"],
            data["dests"],
        )
        for i, version in enumerate(data["versions"])
    )


def table_for(version: str) -> tuple[FlagTable, str | None]:
    """The table of a version, and a note where it is not that version's own: the newest one that is not newer, the
    oldest for still older ones, the newest where the version is unknown."""
    tables, asked = _tables(), release(version)
    if not asked:
        return tables[-1], f"SGLang's version is unknown; its flags are taken to be those of {tables[-1].version}"
    fitting = [table for table in tables if release(table.version) <= asked]
    table = fitting[-1] if fitting else tables[0]
    if release(table.version) == asked:
        return table, None
    return table, f"SGLang {version} has no flag table of its own; that of {table.version} is used"
