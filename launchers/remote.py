"""Sends the supervisor to a host and talks with it: one JSON object in, one out, per command."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launchers import gpus as smi
from launchers import supervisor
from sweep.errors import BusyError, HostError
from sweep.model import Gpu, GpuProcess
from sweep.seams import Transport

# Home folder, host name and time in one go, before anything of ours is there.
_HELLO = 'printf "%s\\n" "$HOME"; uname -n; date +%s.%N'

# Imported rather than run, so that the host keeps it compiled.
_RUN = "import os, sys; os.umask(0o77); sys.path.insert(0, sys.argv[1]); from {} import main; main(sys.argv[1:])"


class Remote:
    """The supervisor's commands on one host, or on a ``slot`` of it. ``base`` is known after :meth:`install`."""

    def __init__(
        self,
        transport: Transport,
        python: str,
        base_dir: str,
        activate: str | None,
        slot: tuple[int, ...] | None = None,
    ) -> None:
        self.python = python
        self.base = ""
        self._transport = transport
        self._base_dir = base_dir
        self._activate = activate
        self._slot = slot
        self._module = ""

    def entered(self, argv: Sequence[str]) -> list[str]:
        """argv as run inside the environment that ``activate`` enters; what it prints goes to stderr."""
        if not self._activate:
            return list(argv)
        return ["bash", "-c", '{ eval "$1"; } >&2 && shift && exec "$@"', "specsweep", self._activate, *argv]

    def install(self, files: Mapping[str, bytes]) -> float:
        """Find our place on the host, write the supervisor and ``files`` there. Returns host clock − our clock, s."""
        offset_s = self._hello()
        source = Path(supervisor.__file__).read_bytes()
        self._module = f"specsweep_supervisor_{hashlib.sha256(source).hexdigest()[:12]}"
        self._transport.put(f"{self.base}/bin/{self._module}.py", source)
        for name, content in files.items():
            self._transport.put(f"{self.base}/{name}", content)
        return offset_s

    def _hello(self) -> float:
        rtt_s = self._transport.rtt_s()
        answer = self._transport.run(["sh", "-c", _HELLO], idempotent=True)
        ended = time.time()
        lines = answer.stdout.decode("utf-8", "replace").splitlines()
        if answer.exit_code != 0 or len(lines) < 3:
            words = answer.stderr.decode("utf-8", "replace").strip() or "no answer"
            raise HostError(f"{self._transport.name}: cannot run commands there: {words}")
        home, hostname, clock = lines[-3:]
        folder = home + self._base_dir[1:] if self._base_dir.startswith("~") else self._base_dir
        # One home folder may serve many hosts over NFS: each has a lock and launches of its own.
        self.base = f"{folder}/{re.sub(r'[^A-Za-z0-9._-]', '-', hostname)}"
        if self._slot is not None:
            self.base += f"/slots/{'-'.join(map(str, self._slot))}"  # the supervisor reads the GPUs from the name
        return float(clock) - (ended - rtt_s / 2)  # the clock is read last, its answer then takes half a round trip

    def filled(self, argv: Sequence[str]) -> list[str]:
        """``@PYTHON@`` and ``@BASE@`` replaced."""
        return [word.replace("@PYTHON@", self.python).replace("@BASE@", self.base) for word in argv]

    def ask(self, command: str, request: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """The supervisor's answer, refusals included. HostError where there is none."""
        program = _RUN.format(self._module)
        argv = self.entered([self.python, "-IS", "-c", program, f"{self.base}/bin", command, self.base])
        stdin = json.dumps(dict(request)).encode()
        answer = self._transport.run(argv, timeout_s=timeout_s, stdin=stdin, idempotent=True)
        try:
            reply: dict[str, Any] = json.loads(answer.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
            reply["ok"]
        except (ValueError, LookupError, TypeError):
            words = answer.stderr.decode("utf-8", "replace").strip()[-500:] or f"exit status {answer.exit_code}"
            hint = ""
            if answer.exit_code in (126, 127):
                hint = f" (`{self.python}` cannot be run: set the host's `python:` or `activate:`)"
            elif "annotations" in words:
                hint = " (Python 3.8 or newer is needed: set the host's `python:`)"
            raise HostError(f"{self._transport.name}: the supervisor gave no answer: {words}{hint}") from None
        return reply

    def call(self, command: str, *, timeout_s: float = 30.0, **request: Any) -> dict[str, Any]:
        """The supervisor's answer. A refusal is BusyError when another controller owns the host, else HostError."""
        reply = self.ask(command, request, timeout_s=timeout_s)
        if reply["ok"]:
            return reply
        if reply["kind"] == "superseded":
            study = (reply.get("holder") or {}).get("study")
            raise BusyError(f"{self._transport.name}: {reply['message']}; it belongs to study {study!r} now")
        raise HostError(f"{self._transport.name}: {reply['message']}")

    def gpus(self, query: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[GpuProcess, ...], str | None, list[str]]:
        """GPUs, the compute list with users and names, the driver's version, and ``query`` as it can be run without
        ``activate``; nothing of the former where nvidia-smi is absent."""
        options = [smi.GPU_OPTION, smi.APPS_OPTION]
        filled = self.filled(query)
        reply = self.call("gpus", timeout_s=60, gpu_query=filled, options=options)
        program = [reply["program"], *filled[1:]]
        for answer in reply["answers"]:
            if answer["status"] == 127:
                return (), (), None, program
            if answer["status"] != 0:
                words = answer["err"] or answer["out"].strip()[-500:]
                raise HostError(f"{self._transport.name}: {query[0]} fails with status {answer['status']}: {words}")
        gpus, driver = smi.parse_gpus(reply["answers"][0]["out"])
        return gpus, smi.parse_processes(reply["answers"][1]["out"], reply["who"]), driver, program
