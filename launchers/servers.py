"""Servers on one host: the host's lock and lease, launches, their logs, and the certainty that nothing is left.

Runs any engine's LaunchSpec over any transport. What must happen on the host itself is done there by
``launchers/supervisor.py``, which this module sends along; see its first lines for files, ownership and processes.
A little over 300 lines on purpose: what may be done to a server stands in one class.
"""

from __future__ import annotations

import base64
import contextlib
import re
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from launchers import path_capacity, run_files
from launchers.containers import ContainerSettings
from launchers.gpu_watch import MEMORY_SLACK_MIB, GpuWatch
from launchers.gpus import Telemetry
from launchers.host_values import Found, ModelFiles, RunningServer, ServerState
from launchers.locks import Holder, Owner, known_dead
from launchers.path_watch import PathWatch
from launchers.remote import Remote
from sweep.errors import BusyError, HostError
from sweep.model import GpuProcess, HostFacts, LaunchSpec, StopReport
from sweep.seams import Completed, HostTools, Transport

# Of a host with a slot for each GPU, and then some: a dead holder may be replaced between the look and the taking.
MAX_TAKEOVERS = 20

__all__ = ["Found", "HostServers", "ModelFiles", "Owner", "RunningServer", "ServerState"]


class HostServers:
    """The servers of one host. All calls block; one thread may stop while another waits or reads.

    Raises HostError for whatever the host does, and BusyError (from :meth:`prepare`, or later from any call that would
    change something) when another controller holds the host. ``base_dir``: where our files go on the host, below a
    folder named after the host; ``~/.specsweep`` where None. ``python`` runs the supervisor and stands for
    ``@PYTHON@``; ``activate`` is a shell command (bash) run before python and before every server. With ``container``
    servers run in containers, and the engine is the image's. ``slot``: the GPUs of a part of the host that is owned
    for itself, beside other such parts. ``replaces`` is a controller known to be dead, of whatever machine.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        tools: HostTools,
        python: str | None,
        base_dir: str | None,
        owner: Owner,
        lease_s: float = 60.0,
        activate: str | None = None,
        container: ContainerSettings | None = None,
        slot: tuple[int, ...] | None = None,
        replaces: Holder | None = None,
    ) -> None:
        self._transport = transport
        self._container = container
        self._tools = tools
        self._owner = owner
        self._replaces = replaces
        self._lease_s = lease_s
        self._remote = Remote(transport, python or "python3", base_dir or "~/.specsweep", activate, slot)
        self._epoch: int | None = None
        self._lock = threading.Lock()
        self._running: dict[str, RunningServer] = {}
        self._forwards: dict[str, tuple[str, contextlib.ExitStack]] = {}
        self._gpus = GpuWatch(transport, self._remote, tools.gpu_query)

    # -- the host

    def inspect(self, version_command: Sequence[str] = ()) -> HostFacts:
        """Connect, send our files, look around. Takes nothing and ends nothing."""
        self._transport.connect()
        offset_s = self._remote.install(self._tools.files)
        facts = self._remote.call("facts")
        gpus, processes, driver = self._gpus.ask()
        version = None
        if version_command:
            answer = self.in_environment(version_command)
            lines = answer.stdout.decode("utf-8", "replace").split()
            version = lines[-1] if answer.exit_code == 0 and lines else None
        return HostFacts(
            name=self._transport.name,
            kind=self._transport.kind,
            hostname=facts["hostname"],
            user=facts["user"],
            machine_id=facts["machine_id"],
            boot_id=facts["boot_id"],
            python=facts["python"],
            python_version=facts["python_version"],
            engine_version=version,
            gpus=gpus,
            gpu_processes=processes,
            driver_version=driver,
            disk_free_mib=facts["disk_free_mib"],
            clock_offset_s=offset_s,
            rtt_s=self._transport.rtt_s(),
        )

    def in_environment(self, argv: Sequence[str]) -> Completed:
        """Run a short command where servers run: inside what ``activate`` enters, or in a container of the image."""
        if self._container is not None:
            argv = self._container.once(argv, self._remote.python)
        return self._transport.run(self._remote.entered(argv), timeout_s=120, idempotent=True)

    def prepare(self, version_command: Sequence[str] = ()) -> HostFacts:
        """:meth:`inspect`, then become the host's owner.

        A holder that is seen to be dead (same machine) is replaced at once, one elsewhere when its lease has run
        out; else BusyError names it. What earlier owners left running lives on until :meth:`reconcile`.
        """
        facts = self.inspect(version_command)
        request: dict[str, Any] = {"owner": self._owner.as_dict(), "lease_s": self._lease_s, "takeover": []}
        for _ in range(MAX_TAKEOVERS):
            reply = self._remote.ask("acquire", request)
            if reply["ok"]:
                self._epoch = reply["epoch"]
                return facts
            if reply["kind"] != "busy":
                raise HostError(f"{self._transport.name}: {reply['message']}")
            holder = Owner.from_dict(reply["holder"])
            ourselves = holder.controller == self._owner.controller
            # Of owners at one place the one made later replaces one that was lost; two hosts of a YAML are as old.
            lost = ourselves and reply["same_place"] and holder.epoch < self._owner.epoch
            if not lost and holder.controller != self._replaces and not known_dead(holder.controller):
                break
            request["takeover"].append(reply["token"])
        if ourselves:
            raise BusyError(
                f"{self._transport.name}: another host of this study is the same machine and holds it. Name each "
                "machine once; with `slots: N` it measures N servers beside each other"
            )
        raise BusyError(
            f"{self._transport.name}: the host is held by {holder}. `sweep stop {holder.study}` ends that study; a "
            f"lease that is not renewed runs out in {reply['lease_left_s']:.0f} s"
        )

    def holder(self) -> Owner | None:
        """Who holds the host now; None where nobody does."""
        held = self._remote.call("holder")["holder"]
        return None if held is None else Owner.from_dict(held)

    def renew(self) -> None:
        """Extend the lease: to be called several times per ``lease_s``. BusyError when the host was taken over."""
        self._owned("renew")

    def close(self) -> None:
        """End the servers still running, give the host back, disconnect. Never raises for a host out of reach: the
        supervisors end their servers when the lease runs out."""
        with contextlib.suppress(HostError, BusyError):
            for server in list(self._running.values()):
                self.stop(server, grace_s=5.0)
            if self._epoch is not None:
                self._owned("release")
        self._epoch = None
        for launch_id in list(self._forwards):
            self._end_forward(launch_id)
        self._transport.close()

    @property
    def path_losses(self) -> int:
        """How often the connection to the host broke so far."""
        return self._transport.losses

    # -- one server

    def start(self, spec: LaunchSpec, launch_id: str) -> RunningServer:
        """Start a server on a free port of the host; returns as soon as its process exists.

        A program that cannot be run is a server that ended with exit code 127 and says so in its log. HostError where
        there is no answer; what may have been started all the same is ended, as far as the host can be reached.
        """
        before = self._gpus.memory(spec.gpus)
        argv: Sequence[str] = spec.argv
        if self._container is not None:
            argv = self._container.run(argv, [*spec.env, *spec.secret_env], spec.gpus)
        secrets = [*([spec.api_key] if spec.api_key else []), *spec.secret_env.values()]
        study, launch = slug(self._owner.study), slug(launch_id)
        try:
            reply = self._owned(
                "start",
                study=study,
                launch=launch,
                argv=self._remote.entered(argv),
                docker=None if self._container is None else self._container.docker,
                env=dict(spec.env),
                secret_env=dict(spec.secret_env),
                files={name: base64.b64encode(content).decode() for name, content in spec.files.items()},
                secrets=secrets,
                python=self._remote.python,
            )
        except HostError:
            with contextlib.suppress(HostError, BusyError):  # nothing was started, or the lease will end it
                self._owned("stop", timeout_s=40, folder=None, study=study, launch=launch, grace_s=0.0)
            raise
        state = reply["state"]
        server = RunningServer(
            launch_id=launch_id,
            host=self._transport.name,
            pid=state["server"]["pid"],
            start_time=state["server"]["start"],
            port=state["port"],
            marker=state["marker"],
            run_dir=reply["folder"],
            epoch=state["epoch"],
            started_at=state["started"],
            argv=tuple(state["argv"][len(self._remote.entered(())) :]),
            gpus=spec.gpus,
            memory_before=before,
            api_key=spec.api_key,
        )
        with self._lock:
            self._running[launch_id] = server
        return server

    def state(self, server: RunningServer) -> ServerState:
        """Is it alive; how did it end. Costs two small file reads."""
        return run_files.state(self._transport, server)

    def read_log(self, server: RunningServer, offset: int) -> tuple[bytes, int]:
        """What the server printed from byte ``offset`` on (at most 1 MiB), and the offset to go on from.

        Where the host kept no longer what is asked for, one line says how many bytes are missing.
        """
        return run_files.read_log(self._transport, server, offset)

    def forward(self, server: RunningServer) -> str:
        """A base URL that reaches the server from here, valid until :meth:`stop`; asked again it is the same."""
        with self._lock:
            if server.launch_id not in self._forwards:
                stack = contextlib.ExitStack()
                url = stack.enter_context(self._transport.forward(server.port))
                self._forwards[server.launch_id] = (url, stack)
            return self._forwards[server.launch_id][0]

    def _end_forward(self, launch_id: str) -> None:
        with self._lock:
            _, stack = self._forwards.pop(launch_id, ("", contextlib.ExitStack()))
        stack.close()

    def stop(self, server: RunningServer, *, grace_s: float = 15.0) -> StopReport:
        """TERM to the group, ``grace_s``, KILL, everything ours by record or marker, then wait for the GPUs.

        Clean means: no process of it is left, none of its pids is in the compute list, and each of its GPUs holds
        at most 256 MiB more than before the start (not asked while another server of ours shares them).
        """
        begun = time.monotonic()
        self._end_forward(server.launch_id)
        reply = self._owned("stop", timeout_s=grace_s + 40, folder=server.run_dir, grace_s=grace_s)
        with self._lock:
            self._running.pop(server.launch_id, None)
            shared = any(set(other.gpus) & set(server.gpus) for other in self._running.values())
        left = tuple(reply["left"])
        listed, memory = self._gpus.freed(server, {server.pid, *reply["pids"]}, shared=shared)
        notes = [
            f"containers {reply['containers_left']} are still there" if reply["containers_left"] else "",
            f"processes {list(left)} survive SIGKILL" if left else "",
            f"nvidia-smi still lists {list(listed)}" if listed else "",
            f"{memory} MiB more GPU memory in use than before the start" if memory > MEMORY_SLACK_MIB else "",
        ]
        note = "; ".join(filter(None, notes))
        took_s = time.monotonic() - begun
        return StopReport(not note, reply["exit_code"], took_s, tuple(sorted({*left, *listed})), memory, note)

    # -- GPUs

    def dirty_gpus(self, gpus: Collection[int]) -> tuple[GpuProcess, ...]:
        """Processes on these GPUs that are not ours, with pid, user and name. They are never touched."""
        return self._gpus.foreign(gpus)

    def telemetry(self, gpus: Collection[int], interval_s: float = 1.0) -> Telemetry:
        """A sampler for these GPUs; nothing is asked where there are none."""
        return self._gpus.telemetry(gpus, interval_s)

    def room(self, gpus: Collection[int]) -> tuple[int, int]:
        return self._gpus.room(gpus)

    def ps(self) -> tuple[Found, ...]:
        """What of ours runs on the host, by record and by marker."""
        return tuple(Found.from_reply(entry) for entry in self._remote.call("ps")["found"])

    def reconcile(self, *, grace_s: float = 5.0) -> tuple[Found, ...]:
        """End everything of ours on the host, whichever study it was started for, and say what it was.

        HostError when something does not die.
        """
        reply = self._owned("end", timeout_s=grace_s + 60, grace_s=grace_s)
        if reply["containers_left"]:
            raise HostError(
                f"{self._transport.name}: containers of ours may still run: {', '.join(reply['containers_left'])}. "
                "Does `docker ps` work there? If they are gone for good, delete their folders below ~/.specsweep"
            )
        if reply["left"]:
            raise HostError(f"{self._transport.name}: processes {reply['left']} of ours survive SIGKILL")
        with self._lock:
            self._running.clear()
        return tuple(Found.from_reply(entry) for entry in reply["ended"])

    def models(self, paths: Sequence[str]) -> dict[str, ModelFiles]:
        """Which of these models (folders or hub names) the host has, with config.json and sizes of weights."""
        answers = self._remote.call("models", paths=list(paths))["models"]
        return {path: ModelFiles.from_reply(path, answer) for path, answer in answers.items()}

    def free_port(self) -> int:
        """A port of the host on which nobody listens now."""
        return int(self._remote.call("facts")["free_port"])

    def watch_path(self) -> PathWatch:
        """A watch over the path to the host; see ``launchers.path_watch``."""
        return PathWatch(self._transport.ping_s)

    def path_capacity(self) -> float:
        """Chunks per second that the path from the host's ports to here carries; see ``launchers.path_capacity``."""
        return path_capacity.measure(self._transport, lambda **request: self._remote.call("flood", **request)["port"])

    def _owned(self, command: str, *, timeout_s: float = 30.0, **request: Any) -> dict[str, Any]:
        if self._epoch is None:
            raise HostError(f"{self._transport.name}: the host was not prepared, or was given back")
        return self._remote.call(command, timeout_s=timeout_s, epoch=self._epoch, **request)


def slug(name: str) -> str:
    """A name as part of a folder's name and of a marker."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:100] or "-"
