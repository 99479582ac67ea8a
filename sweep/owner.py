"""The owner of one GPU host: its connection, its launches and its benchmark worker, behind calls that return values.

Lives in a Ray actor (``sweep.pool``) or, in tests, in a thread. One call launches, measures or stops; other calls
(progress, cancel, heartbeat) may arrive meanwhile. Nothing here raises for what happens to a host or a server:
failures are :class:`~sweep.model.Diagnosis` values, so that they cross Ray unharmed.
Over 300 lines on purpose: every call the controller can make is in one class.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from launchers.diagnosis import with_foreign_processes
from launchers.path_watch import why_disturbed
from launchers.servers import HostServers
from sweep import diagnoses, liveness
from sweep.bench.clock import in_engine_time, in_real_time
from sweep.errors import BusyError, HostError, SweepError
from sweep.live_server import LiveServer, report_of
from sweep.model import (
    BlockSpec,
    Diagnosis,
    HostFacts,
    Phase,
    Prompt,
    StopReport,
    Verdict,
)
from sweep.readiness import LogFollower, wait_ready
from sweep.registry import ENGINES, HOSTS, load
from sweep.reports import (
    BlockReport,
    GpuRoom,
    LaunchReport,
    LaunchRequest,
    OwnerSettings,
    Prepared,
    ProbeReport,
    Stopped,
    TokenAnswer,
    TokenQuestion,
)
from sweep.server_http import ServerHttp

TOP_TOKENS = 5  # asked for where two texts part; a tie is between the first two
GRACE_S = 15.0  # what a server gets between TERM and KILL
HEARTBEAT_LIMIT_S = 20.0  # the lease is renewed only while the controller was heard from within this time


class HostOwner:
    """See the module's docstring. Every public method is one call of the controller."""

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._engine = load(ENGINES, settings.engine)(**settings.engine_args)
        transport = load(HOSTS, settings.kind)(settings.transport)
        self._servers = HostServers(
            transport,
            tools=self._engine.tools(max(settings.gpus, default=-1) + 1),
            python=settings.python,
            base_dir=settings.base_dir,
            owner=settings.owner,
            lease_s=settings.lease_s,
            activate=settings.activate,
            container=settings.container,
            slot=settings.slot,
            replaces=settings.replaces,
        )
        self._facts: HostFacts | None = None
        self._path_capacity: float | None = None
        self._running: dict[str, LiveServer] = {}
        self._ending: dict[str, LiveServer] = {}
        self._unsure = False  # a server may run that is none of these: its start or its end was not seen
        self._grace_s = GRACE_S
        self._cancel = threading.Event()
        self._closed = threading.Event()
        self._progress: dict[str, Any] = {"phase": None, "since": time.time()}
        self._heard = time.monotonic()
        self._renewer = threading.Thread(target=self._renew_forever, name="lease", daemon=True)

    # ------------------------------------------------------------------ host

    def prepare(self) -> Prepared:
        """Connect, take the host lock, end what earlier runs of this study left, and say what is there."""
        try:
            self._facts = self._servers.prepare(self._engine.version_command(self._settings.python))
            left_over = tuple(str(found.launch) for found in self._servers.reconcile())
            if self._settings.kind != "local":  # on this machine there is no path between client and server
                self._path_capacity = self._servers.path_capacity()
        except SweepError as error:
            return Prepared(error=str(error), exit_code=error.exit_code)
        wanted = set(self._settings.gpus)
        if missing := wanted - {gpu.index for gpu in self._facts.gpus}:
            return Prepared(
                error=f"host {self._settings.host}: GPU {sorted(missing)} asked for, but nvidia-smi shows "
                f"{len(self._facts.gpus)} GPU(s). Mend `gpus:` of this host in the YAML, or the driver."
            )
        if not self._renewer.is_alive():
            self._renewer.start()
        return Prepared(facts=self._facts, left_over=left_over)

    def heartbeat(self) -> dict[str, Any]:
        """The controller is alive: the lease may be renewed. Returns the progress of the call in flight."""
        self._heard = time.monotonic()
        return dict(self._progress)

    def cancel(self, now: bool = False) -> None:
        """Make the call in flight end soon, with verdict ``cancelled``; later ones end at once.

        ``now`` kills every server without grace, also one whose stop is under way.
        """
        self._cancel.set()
        if now:
            self._grace_s = 0.0
            for server in [*self._running.values(), *self._ending.values()]:
                with contextlib.suppress(SweepError):  # the stop in flight, or the one to come, reports it
                    self._servers.stop(server.running, grace_s=0.0)

    def close(self) -> list[Stopped]:
        """End every server still running, give the lock back, disconnect."""
        reports = [self.stop(launch_id) for launch_id in list(self._running)]
        self._closed.set()
        self._servers.close()
        return reports

    def _renew_forever(self) -> None:
        # An actor can outlive its controller by seconds; it must not keep a dead controller's servers alive.
        while not self._closed.wait(self._settings.lease_s / 6):
            if time.monotonic() - self._heard < max(HEARTBEAT_LIMIT_S, self._settings.lease_s / 3):
                try:
                    self._servers.renew()
                except HostError:
                    continue  # the connection is down: the next call, or the lease, deals with it
                except BusyError:
                    return  # another controller has the host now

    # ------------------------------------------------------------------ launch

    def launch(self, request: LaunchRequest) -> LaunchReport:
        """Start a server and return when it is ready, or when it is certain that it will not be."""
        started_at = time.time()
        self._note(Phase.START)
        server: LiveServer | None = None
        argv: tuple[str, ...] = ()
        if self._cancel.is_set():
            return LaunchReport(argv, False, started_at, diagnosis=diagnoses.cancelled(Phase.START))
        try:
            facts = self._require_facts()
            spec = self._engine.launch_spec(
                request.arm,
                model=request.model,
                drafters=request.drafters,
                server_args=request.server_args,
                env=self._own_caches() | dict(request.env),
                secret_env=request.secret_env,
                version=facts.engine_version or "",
                gpus=request.gpus,
            )
            argv = spec.argv
            if self._unsure and not self._running:  # beside what is left, a good arm would run out of memory
                self._servers.reconcile()
                self._unsure = False
            if dirty := self._servers.dirty_gpus(request.gpus):
                return LaunchReport(argv, False, started_at, diagnosis=diagnoses.dirty(self._settings.host, dirty))
            running = self._servers.start(spec, request.launch_id)
            argv = running.argv
            server = LiveServer(running, request, LogFollower(self._servers, running, self._engine))
            self._running[request.launch_id] = server
            phases, diagnosis = wait_ready(
                server.log, self._servers, running, self._engine, request.arm, self._settings.deadlines,
                cancelled=self._cancel.is_set, note=self._note,
            )  # fmt: skip
            if diagnosis is not None and diagnosis.verdict is Verdict.LAUNCH_OOM:
                diagnosis = with_foreign_processes(diagnosis, self._servers.dirty_gpus(request.gpus))
            if diagnosis is None:
                server.http = ServerHttp(self._servers.forward(running), running.api_key)
                return self._ready(server, started_at, phases)
        except (HostError, BusyError) as error:
            self._unsure = True
            phases, diagnosis = {}, diagnoses.infra(Phase.START, str(error))
        stop = self.stop(request.launch_id) if server is not None else None
        return report_of(server, argv, started_at, phases, diagnosis=diagnosis, stop=stop)

    def _ready(self, server: LiveServer, started_at: float, phases: Mapping[str, float]) -> LaunchReport:
        http = server.require_http()
        deadline = time.monotonic() + self._settings.deadlines.warmup_s
        while not self._engine.ready(http):
            if time.monotonic() > deadline or self._cancel.is_set() or not self._servers.state(server.running).alive:
                diagnosis = self._diagnose(server, Phase.WARMUP, timed_out=True)
                stop = self.stop(server.request.launch_id)
                return report_of(server, server.running.argv, started_at, phases, diagnosis=diagnosis, stop=stop)
            time.sleep(0.1)  # the server prints its ready line a moment before it answers as ready
        try:
            asked = server.request
            effective, info = self._engine.effective(http, asked.arm, asked.drafters, asked.server_args)
        except (RuntimeError, OSError) as error:
            diagnosis = diagnoses.infra(Phase.READY, f"what runs could not be read back: {error}")
            stop = self.stop(server.request.launch_id)
            return report_of(server, server.running.argv, started_at, phases, diagnosis=diagnosis, stop=stop)
        report = report_of(server, server.running.argv, started_at, phases, effective=effective, info=info, ready=True)
        if effective.status == "mismatch":
            stop = self.stop(server.request.launch_id)
            return replace(
                report, ready=False, diagnosis=diagnoses.mismatch(effective, server.running.log_path), stop=stop
            )
        self._note(Phase.READY)
        return report

    # ------------------------------------------------------------------ measure

    def probe(self, launch_id: str, prompts: tuple[Prompt, ...]) -> ProbeReport:
        """Accept length from a few requests, before anything is paid for."""
        from sweep.bench.probe import probe

        server = self._running[launch_id]
        self._note(Phase.PROBE)
        limit_s, losses = self._settings.deadlines.stall_s, self._servers.path_losses
        # Any progress will do: what compiles kernels first may take its time.
        result = probe(server.target(), prompts, timeout_s=10 * limit_s, stall_s=limit_s, cancel=self._cancel)
        diagnosis = None
        if result.error is not None:
            diagnosis = self._failed(server, Phase.PROBE, result.error, result.stalled, losses)
        elif server.request.arm.speculative:
            asked = server.request
            judge = partial(
                self._engine.probe_diagnosis,
                result.accept_length, result.verify_steps, asked.arm, asked.drafters, log_lines=list(server.log.lines),
            )  # fmt: skip
            diagnosis = judge()
            if diagnosis is not None:
                diagnosis = judge(**self._configs(asked)) or diagnosis
        return ProbeReport(result.accept_length, result.verify_steps, result.histogram, diagnosis)

    def _configs(self, asked: LaunchRequest) -> dict[str, Mapping[str, Any] | None]:
        """The config.json of target and drafter on the host; empty where they cannot be had."""
        target = str(asked.model.get("path"))
        drafter = asked.drafters.get(asked.arm.draft_model or "")
        try:
            found = self._servers.models([target, *([drafter.path] if drafter is not None else [])])
        except HostError:
            return {}  # the cause is then named from the log alone
        of_drafter = found[drafter.path].config if drafter is not None else None
        return {"target_config": found[target].config, "drafter_config": of_drafter}

    def warm_up(self, launch_id: str, spec: BlockSpec) -> Diagnosis | None:
        """Requests that are thrown away, with one pass at the block's full concurrency."""
        from sweep.bench.probe import warm_up

        server = self._running[launch_id]
        self._note(Phase.WARMUP, concurrency=spec.concurrency)
        losses = self._servers.path_losses
        try:
            blocks = warm_up(
                server.target(), spec, cancel=self._cancel, flush=lambda: self._engine.reset(server.require_http())
            )
        except (RuntimeError, OSError) as error:
            return self._failed(server, Phase.WARMUP, f"the prefix cache was not flushed: {error}", False, losses)
        for block in blocks:
            server.warm[block.concurrency] = block
            if block.stalled or not any(request.ok for request in block.requests):
                return self._failed(server, Phase.WARMUP, liveness.first_error(block), block.stalled, losses)
        return None

    def measure(self, launch_id: str, spec: BlockSpec) -> BlockReport:
        """One block: cache flushed, requests, log flags and GPU telemetry of exactly this window."""
        from sweep.bench.client import run_block
        from sweep.bench.parts import processes_for

        server = self._running[launch_id]
        self._note(Phase.BENCHMARK, concurrency=spec.concurrency, round=spec.round)
        losses = self._servers.path_losses
        try:
            server.log.drain()
            prepared = server.prepared_for(spec)
            if not server.settled:
                self._engine.settle(server.require_http())
                server.settled = True
            self._engine.reset(server.require_http())
        except (HostError, RuntimeError, OSError) as error:
            words = f"the server could not be made ready for a block: {error}"
            return BlockReport(None, self._failed(server, Phase.BENCHMARK, words, False, losses))
        telemetry = self._servers.telemetry(server.request.gpus)
        telemetry.start()
        path = None if self._settings.kind == "local" else self._servers.watch_path()
        if path is not None:
            path.start()
        try:
            block = run_block(
                server.target(),
                in_real_time(spec, self._engine.time_scale),
                prepared=prepared,
                path_capacity=self._path_capacity,
                cancel=self._cancel,
                processes=processes_for(spec, server.warm.get(spec.concurrency)),
            )
        finally:
            still_s = 0.0 if path is None else path.stop()
            gpus = telemetry.stop()
        with contextlib.suppress(HostError):  # a host out of reach is found below
            server.log.drain()
        disturbed = why_disturbed(still_s, block.elapsed_s)
        block = replace(block, gpus=gpus, log_flags=dict(server.log.state.flags), invalid=block.invalid or disturbed)
        block = in_engine_time(block, self._engine.time_scale)
        if self._cancel.is_set():
            return BlockReport(None, diagnoses.cancelled(Phase.BENCHMARK))
        if block.stalled or not all(request.ok for request in block.requests):
            found = self._failed(server, Phase.BENCHMARK, liveness.first_error(block), block.stalled, losses)
            # Answers that are merely wrong are the block's own affair: it is invalid where they are too many.
            return BlockReport(block, None if found.reason == "requests_failed" else found)
        return BlockReport(block)

    def room(self, launch_id: str) -> GpuRoom:
        """Memory on this server's GPUs: what our processes hold of it, and what is left for a second server."""
        try:
            return GpuRoom(*self._servers.room(self._running[launch_id].request.gpus))
        except HostError as error:
            return GpuRoom(0, 0, str(error))

    def next_tokens(
        self, launch_id: str, spec: BlockSpec, questions: tuple[TokenQuestion, ...]
    ) -> tuple[TokenAnswer, ...]:
        """What the server holds likely after each question's prompt and prefix, its prefix cache flushed before each.

        Questions that could not be asked (prompts without token ids, no answer) come back without log-probabilities;
        those that a cancelled run had no time for do not come back: they wait for the next baseline.
        """
        server = self._running[launch_id]
        out: list[TokenAnswer] = []
        for question in questions:
            if self._cancel.is_set():
                break
            found: dict[int, float] = {}
            try:
                ids = server.prepared_for(spec).sources.get(question.prompt_id)
                if isinstance(ids, tuple):
                    self._engine.reset(server.require_http())
                    found = self._engine.next_tokens(server.require_http(), (*ids, *question.prefix), TOP_TOKENS)
            except (HostError, RuntimeError, OSError):
                found = {}  # it stays open whether the texts part at a tie; no reason to lose the launch
            out.append(TokenAnswer(question, found))
        return tuple(out)

    def stop(self, launch_id: str) -> Stopped:
        """End a server and verify that nothing of it is left."""
        server = self._running.pop(launch_id, None)
        if server is None:
            return Stopped(StopReport(clean=True, exit_code=None, took_s=0.0, note="not running"))
        self._note(Phase.STOP)
        self._ending[launch_id] = server
        with contextlib.suppress(HostError):
            server.log.drain()
        if server.http is not None:
            if self._grace_s > 0:
                self._engine.abort_all(server.http)
            server.http.close()
        try:
            report = self._servers.stop(server.running, grace_s=self._grace_s)
        except SweepError as error:
            report = StopReport(clean=False, exit_code=None, took_s=0.0, note=f"the stop was not verified: {error}")
        self._unsure = self._unsure or not report.clean
        del self._ending[launch_id]
        self._note(None)
        return Stopped(report, server.tail())

    # ------------------------------------------------------------------ helpers

    def _note(self, phase: Phase | None, **more: Any) -> None:
        self._progress = {"phase": phase, "since": time.time(), **more}

    def _own_caches(self) -> dict[str, str]:
        """Where a slot's servers keep compiled kernels: two that compile the same at once spoil each other's files."""
        if self._settings.slot is None:
            return {}
        return {variable: f"@BASE@/cache/{folder}" for variable, folder in self._engine.caches.items()}

    def _require_facts(self) -> HostFacts:
        if self._facts is None:
            raise HostError(f"host {self._settings.host} was not prepared")
        return self._facts

    def _diagnose(self, server: LiveServer, phase: Phase, *, timed_out: bool) -> Diagnosis:
        if self._cancel.is_set():
            return diagnoses.cancelled(phase)
        return liveness.why_ended(
            self._servers, server.running, server.log, self._engine, server.request.arm, phase, timed_out=timed_out
        )

    def _failed(self, server: LiveServer, phase: Phase, error: str, stalled: bool, losses: int) -> Diagnosis:
        if self._cancel.is_set():
            return diagnoses.cancelled(phase)
        return liveness.why_failed(
            self._servers, server.running, server.log, self._engine, server.request.arm, phase,
            error=error, stalled=stalled, losses=losses,
        )  # fmt: skip
