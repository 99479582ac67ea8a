"""Ray: one actor per GPU host. The only module that imports ray.

An actor owns its host through a :class:`sweep.owner.HostOwner`: SSH connection, GPUs, launches and benchmark worker.
Calls return values; a lost actor or node comes back as a :class:`HostLost` value. Actors take no CPU slot
(``num_cpus=0``): the work they own happens on the GPU host.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sweep.errors import HostError
from sweep.owner import HostOwner
from sweep.placement import node_of, on_node
from sweep.ray_address import require_cluster
from sweep.ray_home import VARIABLE, RayHome, end_stale
from sweep.reports import OwnerSettings


@dataclass(frozen=True, slots=True)
class HostLost:
    """The actor of a host is gone (killed, node lost, out of memory): what was running there must be reconciled."""

    host: str
    message: str


class Pool(Protocol):
    """Runs methods of host owners: by Ray in a study, inline in tests of the layers above."""

    def open(self, settings: Mapping[str, OwnerSettings]) -> None:
        """Make an owner for each host; a host opened again gets a new one in place of a lost one."""
        ...

    async def call(self, host: str, method: str, *args: Any) -> Any:
        """Call ``HostOwner.method(*args)`` on the owner of ``host``; returns its value or :class:`HostLost`."""
        ...

    def close(self) -> None: ...


class InlinePool:
    """Owners in this process, each call in a thread."""

    def __init__(self) -> None:
        self._owners: dict[str, HostOwner] = {}

    def open(self, settings: Mapping[str, OwnerSettings]) -> None:
        self._owners |= {name: HostOwner(value) for name, value in settings.items()}

    async def call(self, host: str, method: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(self._owners[host], method), *args)

    def close(self) -> None:
        for owner in self._owners.values():
            owner.close()


class PatientPool:
    """Calls of a pool, until patience with a host is at its end: an owner may hang and yet live, and Ray waits for it
    for ever."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}
        self._given_up: set[str] = set()
        self._why: dict[str, str] = {}  # of the last time

    def open(self, settings: Mapping[str, OwnerSettings]) -> None:
        self._pool.open(settings)
        self._given_up -= set(settings)

    async def call(self, host: str, method: str, *args: Any) -> Any:
        if host in self._given_up:
            return HostLost(host, self._why[host])
        task = asyncio.ensure_future(self._pool.call(host, method, *args))
        under_way = self._under_way.setdefault(host, set())
        under_way.add(task)
        try:
            await asyncio.wait({task})
        finally:
            under_way.discard(task)
            task.cancel()
        return HostLost(host, self._why[host]) if task.cancelled() else task.result()

    def close(self) -> None:
        self._pool.close()

    def waiting(self) -> list[str]:
        """Hosts whose owner has not answered every call."""
        return [host for host, tasks in self._under_way.items() if tasks]

    def give_up(self, host: str, why: str) -> None:
        """From now on every call of this owner comes back as :class:`HostLost`, those under way too, until the host
        is opened anew."""
        self._given_up.add(host)
        self._why[host] = why
        for task in self._under_way.get(host, ()):
            task.cancel()


class HostActor(HostOwner):
    """An owner in a process of its own, which must not hand on to servers what marks this process as Ray's."""

    def __init__(self, settings: OwnerSettings) -> None:
        os.environ.pop(VARIABLE, None)
        super().__init__(settings)


class RayPool:
    """Owners as Ray actors, on a cluster of our own (``address=None``) or on one that is there."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._actors: dict[str, Any] = {}
        self._home: RayHome | None = None
        self._connected = False

    def open(self, settings: Mapping[str, OwnerSettings]) -> None:
        if not self._connected:
            self._connect()
        import ray

        actor = ray.remote(HostActor)
        for name, value in settings.items():
            if name in self._actors:  # one that hangs lives on
                ray.kill(self._actors[name])
            node, placed = self._place(value)
            where = {"scheduling_strategy": _only(node)} if node else {}
            options = {"num_cpus": 0, "num_gpus": 0, "max_concurrency": 8, "max_restarts": 0, **where}
            self._actors[name] = actor.options(**options).remote(placed)

    def _place(self, settings: OwnerSettings) -> tuple[str | None, OwnerSettings]:
        """(the one node where the owner may live, None for any; the owner's settings there)."""
        import ray

        if self._home is not None:
            return None, settings
        nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it untyped
        node = node_of(settings.machine or settings.host, nodes)
        if node is not None:
            return node, on_node(settings)
        # A local host is the machine of the controller, not that of whichever node.
        return (ray.get_runtime_context().get_node_id() if settings.kind == "local" else None), settings

    def _connect(self) -> None:
        """To be called from the main thread: Ray installs a handler for SIGTERM, which ends the start of a cluster."""
        end_stale()
        os.environ |= ENVIRONMENT
        if self._address is not None:
            require_cluster(self._address)
        if self._address is None:
            self._home = RayHome()
            os.environ |= own_cluster_environment(self._home)
        import ray  # reads its environment here

        try:
            if self._home is not None:
                ray.init(
                    address="local",
                    include_dashboard=False,
                    num_cpus=1,
                    num_gpus=0,
                    object_store_memory=80 * 1024 * 1024,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(self._home.temp),
                    log_to_driver=False,
                    configure_logging=False,
                )
            else:
                ray.init(address=self._address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # a node that does not come up in time is a bare Exception of Ray
            where = self._address or "a local cluster"
            raise HostError(
                f"Ray could not be started or reached at {where}: {_why(error)}. "
                "Check the address, the token (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH with RAY_AUTH_MODE=token) and "
                "that Ray and Python versions are equal on both sides."
            ) from error
        self._connected = True

    async def call(self, host: str, method: str, *args: Any) -> Any:
        import ray
        import ray.exceptions

        try:
            return await getattr(self._actors[host], method).remote(*args)
        except (
            ray.exceptions.RayActorError,
            ray.exceptions.ActorUnschedulableError,
            ray.exceptions.ObjectLostError,
            ray.exceptions.RaySystemError,
        ) as error:
            return HostLost(host, f"the Ray actor of host {host} is gone: {_last_line(error)}")

    def close(self) -> None:
        if self._connected:
            import ray

            for actor in self._actors.values():
                ray.kill(actor)
            ray.shutdown()
        if self._home is not None:
            self._home.remove()


ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # else SIGTERM, which we handle, prints a dump of the stack
}


def own_cluster_environment(home: RayHome) -> dict[str, str]:
    """What a cluster of our own is started with."""
    return {
        VARIABLE: str(home.path),
        # As many actors at once as there are hosts: Ray otherwise warns of them, on our standard output.
        "RAY_worker_maximum_startup_concurrency": "256",
        "RAY_worker_niceness": "0",  # Ray's own is 15: the client in an owner would wait behind everything else here
        "SPT_NOENV": "1",  # Ray's processes set their titles; without this they would lose their environment with it
        # A token of this run only, by environment: nothing is left in the user's home, and no other account of this
        # machine can use the cluster.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(24),
    }


def _only(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _why(error: Exception) -> str:
    """The reason why there is no connection, in one line."""
    text = str(error)
    at = text.find("Version mismatch")  # its lines say which side has which version
    return _last_line(error) if at < 0 else " ".join(text[at:].split())


def _last_line(error: Exception) -> str:
    """Ray puts a traceback into the message; what happened stands in its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
