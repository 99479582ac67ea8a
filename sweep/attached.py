"""`sweep start --url`: measure servers that run already. Nothing is launched, nothing is ended.

The server says what it runs; that is the arm. With a baseline's URL beside it the two are measured in turn (A B B A)
and the gain is reported; alone, a server has figures but no gain.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from storage.records import StudyRow, StudyState
from storage.store import Store
from sweep import __version__, diagnoses, planning, session
from sweep.agenda import Job
from sweep.bench.client import run_block
from sweep.bench.http import Target
from sweep.bench.parts import processes_for
from sweep.bench.probe import probe, warm_up
from sweep.books import Books
from sweep.config import StudySpec
from sweep.errors import HostError, UsageError
from sweep.launching import Launcher, LaunchPlan
from sweep.model import (
    ArmConfig,
    BlockResult,
    BlockSpec,
    Diagnosis,
    Drafter,
    Effective,
    Phase,
    Prompt,
    Role,
    Stage,
    StopReport,
)
from sweep.registry import ENGINES, load
from sweep.reports import BlockReport, LaunchReport, LaunchRequest, ProbeReport, Stopped
from sweep.seams import Engine, Listener
from sweep.server_http import ServerHttp

HOST = "url"


@dataclass(frozen=True, slots=True)
class Attached:
    """A server that runs already, and what it says it runs."""

    url: str
    api_key: str | None
    arm: ArmConfig
    effective: Effective
    info: Mapping[str, Any]

    @classmethod
    def ask(cls, engine: Engine, url: str, api_key: str | None) -> Attached:
        """HostError where nothing answers there, or not as the engine does; UsageError for what is no such URL."""
        _check(url)
        http = ServerHttp(url.rstrip("/"), api_key)
        try:
            effective, info = engine.effective(http, ArmConfig(), {}, {})
        except (OSError, RuntimeError) as error:
            raise HostError(
                f"{url}: the server does not say what it runs: {error}. Is it an SGLang server, is it ready, and does "
                "it want a key (SWEEP_API_KEY)?"
            ) from error
        finally:
            http.close()
        return cls(url.rstrip("/"), api_key, effective.config, replace(effective, differences=()), info)


class AttachedOwner:
    """Answers as a ``HostOwner`` would, for servers that are not ours to start or stop."""

    def __init__(self, engine: Engine, servers: Mapping[str, Attached]) -> None:
        self._engine = engine
        self._servers = servers  # by arm key
        self._of_launch: dict[str, Attached] = {}
        self._warm: dict[tuple[str, int], BlockResult] = {}
        self.cancelled = threading.Event()

    def launch(self, request: LaunchRequest) -> LaunchReport:
        server = self._servers[request.arm.key]
        self._of_launch[request.launch_id] = server
        return LaunchReport((), True, time.time(), ready_s=0.0, effective=server.effective, server_info=server.info)

    def probe(self, launch_id: str, prompts: tuple[Prompt, ...]) -> ProbeReport:
        server = self._of_launch[launch_id]
        result = probe(self._target(launch_id), prompts, cancel=self.cancelled)
        drafters: Mapping[str, Drafter] = {}
        diagnosis = (
            diagnoses.infra(Phase.PROBE, result.error)
            if result.error is not None
            else self._engine.probe_diagnosis(result.accept_length, result.verify_steps, server.arm, drafters)
        )
        return ProbeReport(result.accept_length, result.verify_steps, result.histogram, diagnosis)

    def warm_up(self, launch_id: str, spec: BlockSpec) -> Diagnosis | None:
        server = self._of_launch[launch_id]
        http = ServerHttp(server.url, server.api_key)
        try:
            blocks = warm_up(
                self._target(launch_id), spec, cancel=self.cancelled, flush=lambda: self._engine.reset(http)
            )
        except (OSError, RuntimeError) as error:
            return diagnoses.infra(Phase.WARMUP, f"{server.url}: {error}")
        finally:
            http.close()
        for block in blocks:
            self._warm[launch_id, block.concurrency] = block
        return diagnoses.cancelled(Phase.WARMUP) if self.cancelled.is_set() else None

    def measure(self, launch_id: str, spec: BlockSpec) -> BlockReport:
        server = self._of_launch[launch_id]
        http = ServerHttp(server.url, server.api_key)
        try:
            self._engine.reset(http)
        except (OSError, RuntimeError) as error:
            return BlockReport(None, diagnoses.infra(Phase.BENCHMARK, f"{server.url}: {error}"))
        finally:
            http.close()
        processes = processes_for(spec, self._warm.get((launch_id, spec.concurrency)))
        block = run_block(self._target(launch_id), spec, cancel=self.cancelled, processes=processes)
        if self.cancelled.is_set():
            return BlockReport(None, diagnoses.cancelled(Phase.BENCHMARK))
        if not any(request.ok for request in block.requests):
            return BlockReport(block, diagnoses.infra(Phase.BENCHMARK, f"{server.url}: {block.invalid}"))
        return BlockReport(block)

    def stop(self, launch_id: str) -> Stopped:
        return Stopped(StopReport(clean=True, exit_code=None, took_s=0.0, note="not ours: left running"))

    def _target(self, launch_id: str) -> Target:
        server = self._of_launch[launch_id]
        return Target(server.url, server.api_key)


def _check(url: str) -> None:
    """The URL is stored with the study and stands in its report, so nothing secret may be part of it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that cannot be read
        usable = False
    if not usable:
        raise UsageError("--url and --baseline-url take http://HOST:PORT, such as http://127.0.0.1:30000")
    if parts.username is not None or parts.query:
        raise UsageError(
            "the URL of a server is stored with the study: leave login and query out; its key is taken from "
            "SWEEP_API_KEY"
        )


def measure(
    store: Store, spec: StudySpec, url: str, baseline_url: str | None, api_key: str | None, listener: Listener
) -> StudyRow:
    """A study of one server, and of a baseline's beside it where given. Raises HostError, StudyExistsError."""
    engine: Engine = load(ENGINES, "sglang")()
    found = [Attached.ask(engine, address, api_key) for address in (baseline_url, url) if address]
    if baseline_url is not None and found[0].arm.speculative:
        raise HostError(f"{baseline_url}: the baseline speculates ({found[0].arm.label()}); start it without")
    if len({server.arm.key for server in found}) < len(found):
        raise HostError(f"{url} and {baseline_url} run the same configuration: there is nothing to compare")
    study = store.create_study(
        spec.name,
        engine="sglang",
        spec=spec.dump(),
        yaml="",
        space_hash=session.space_hash(spec),
        seed=spec.seed,
        tool_version=__version__,
        objectives=spec.goals,
        constraints=spec.limits,
        notes=[{"attached": server.url, "arm": server.arm.as_dict()} for server in found],
    )
    books = session.make_books(store, study, spec)
    owner = AttachedOwner(engine, {server.arm.key: server for server in found})
    state = StudyState.STOPPED
    try:
        asyncio.run(_measure(store, study, books, owner, found, spec, listener))
        state = StudyState.FINISHED
    finally:
        owner.cancelled.set()
        store.set_state(study.id, state)
    return store.study_by_id(study.id)


async def _measure(
    store: Store,
    study: StudyRow,
    books: Books,
    owner: AttachedOwner,
    found: list[Attached],
    spec: StudySpec,
    listener: Listener,
) -> None:
    async def call(method: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(owner, method), *args)

    def note(kind: str, more: dict[str, Any]) -> None:
        listener.on_event({"kind": kind, "at": time.time(), "host": HOST, **more})

    launcher = Launcher(store, study.id, HOST, call, note, planning.slo(spec))
    plan: LaunchPlan = planning.make_plan(spec, Stage.SEARCH)
    trials: dict[str, int] = {}
    for server in found:
        if server.arm.speculative:
            trial = store.add_trial(study.id, server.arm, origin="known_good", why=f"runs at {server.url}")
            store.start_trial(study.id, trial.number, HOST)
            trials[server.arm.key] = trial.number
    books.reload()
    order = [*found, *reversed(found)] if len(found) > 1 else found
    for place, server in enumerate(order):
        number = trials.get(server.arm.key)
        role = Role.BASELINE if number is None else Role.CANDIDATE
        job = Job(server.arm, role, Stage.SEARCH, number, pair=1 if len(found) > 1 else None)

        def request(launch_id: str, arm: ArmConfig = server.arm) -> LaunchRequest:
            return LaunchRequest(launch_id, arm, {}, {}, {}, {})

        outcome = await launcher.run(job, request, plan)
        books.add_launch(outcome)
        last = server not in order[place + 1 :]
        if number is not None and (last or outcome.diagnosis is not None):
            books.finish_trial(number, HOST, outcome, max_attempts=1)
        kind = {"kind": "finished", "at": time.time(), "host": HOST, "trial": number, "role": role}
        diagnosis = outcome.diagnosis
        said = None if diagnosis is None else {"verdict": diagnosis.verdict.value, "evidence": diagnosis.evidence}
        listener.on_event(kind | {"arm": server.arm.label(), "diagnosis": said and {**said, "advice": ""}})
        if diagnosis is not None:
            raise HostError(f"{server.url}: {diagnosis.verdict}: {diagnosis.evidence} {diagnosis.advice}")
        books.analyse()
