"""Which node of a cluster is which host, and what its owner becomes there."""

from __future__ import annotations

from typing import Any

import pytest

from launchers.hosts.local import LocalSettings
from launchers.hosts.ssh import SshSettings
from launchers.locks import Owner, this_holder
from sweep.placement import node_of, on_node
from sweep.reports import OwnerSettings


def node(name: str, *, alive: bool = True, labels: Any = None, resources: Any = None) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Labels": labels, "Resources": resources or {}}


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([node("1"), node("2", labels={"specsweep-host": "gpu-a"})], "2"),
        ([node("1", resources={"specsweep-host:gpu-a": 1.0})], "1"),
        ([node("1", labels={"specsweep-host": "gpu-b"}, resources={"specsweep-host:gpu-ab": 1.0})], None),
        ([node("1", alive=False, labels={"specsweep-host": "gpu-a"})], None),
        ([], None),
    ],
)
def test_a_node_says_which_host_it_is(nodes: list[dict[str, Any]], found: str | None) -> None:
    assert node_of("gpu-a", nodes) == found


def owner(kind: str, transport: Any) -> OwnerSettings:
    return OwnerSettings(
        "gpu-a", kind, transport, "/venv/bin/python", None, None, (0, 1), "sglang", {}, Owner("s", this_holder())
    )


def test_on_its_host_an_owner_needs_no_ssh() -> None:
    placed = on_node(owner("ssh", SshSettings("gpu-a", "gpu-a")))
    assert placed.kind == "local"
    assert placed.transport == LocalSettings("gpu-a", "/venv/bin/python", None, "~/.specsweep", (0, 1))
    local = owner("local", LocalSettings("gpu-a"))
    assert on_node(local) is local
