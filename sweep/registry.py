"""Names of engines and host kinds, and where each lives. A new one is one file and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sweep.errors import UsageError

ENGINES: Mapping[str, str] = {
    "sglang": "launchers.engines.sglang:SglangEngine",
    "simulated": "launchers.engines.simulated:SimulatedEngine",
}

HOSTS: Mapping[str, str] = {
    "ssh": "launchers.hosts.ssh:SshTransport",
    "local": "launchers.hosts.local:LocalTransport",
}

# How a host of the YAML becomes the settings of its kind.
HOST_SETTINGS: Mapping[str, str] = {
    "ssh": "launchers.hosts.ssh:settings_of",
    "local": "launchers.hosts.local:settings_of",
}


def load(table: Mapping[str, str], name: str) -> Any:
    """The class behind ``name``, imported only now. UsageError, with the nearest valid name, for an unknown one."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1, cutoff=0.4)
        hint = f"nearest: {near[0]!r}; " if near else ""
        raise UsageError(f"unknown name {name!r} ({hint}known: {', '.join(sorted(table))})")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
