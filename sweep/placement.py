"""Which node of a Ray cluster is which GPU host. Pure.

A node says so itself: by the label ``specsweep-host=NAME`` or a custom resource ``specsweep-host:NAME`` of any amount
(``ray start --resources='{"specsweep-host:gpu-a": 1}'``), NAME being the host's in the YAML. An owner on such a node
works there with the local launcher, without SSH; every other owner may live anywhere and reaches its host by SSH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from launchers.hosts.local import LocalSettings
from sweep.reports import OwnerSettings

MARK = "specsweep-host"


def node_of(host: str, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """The id of the living node that is ``host``, from what ``ray.nodes()`` says; None where there is none."""
    for node in nodes:
        labels, resources = node.get("Labels") or {}, node.get("Resources") or {}
        if node.get("Alive") and (labels.get(MARK) == host or f"{MARK}:{host}" in resources):
            return str(node["NodeID"])
    return None


def on_node(settings: OwnerSettings) -> OwnerSettings:
    """The same owner on the host itself."""
    if settings.kind == "local":
        return settings
    transport = LocalSettings(
        name=settings.host,
        python=settings.python,
        activate=settings.activate,
        base_dir=settings.base_dir or LocalSettings.base_dir,
        gpus=settings.gpus,
    )
    return replace(settings, kind="local", transport=transport)
