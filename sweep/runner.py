"""The life of a study: propose, launch, store, tell, until the budget or the space is at its end; then confirm.

One task per host takes work from the shared books; every launch is a :func:`sweep.launching.Launcher.run`. A row is
finished in the database before the sampler hears of it, so that a crash between the two is healed by reading the rows.
Over 300 lines on purpose: the whole life of a study can be read in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.records import HostState as HostRowState
from storage.search_state import ENDED, OUTLOOK, SEARCH, WARM_START
from storage.store import Store
from sweep.agenda import Job, confirm_jobs
from sweep.books import Books
from sweep.diagnoses import in_words
from sweep.hostwork import HostState, HostWork
from sweep.launching import PATH_LIMITED, LaunchOutcome, LaunchPlan
from sweep.metrics import Slo
from sweep.model import ArmConfig, Diagnosis, Flag, Role, Stage, Verdict
from sweep.outputs import OutputCheck
from sweep.pool import HostLost, PatientPool, Pool
from sweep.reports import LaunchRequest, OwnerSettings, Prepared
from sweep.seams import Listener

GIVEN_UP = "given_up"  # the event {why} of a host whose owner is waited for no longer
HEARTBEAT_S = 2.0
CLOSE_S = 60.0  # what owners get to end their servers and let go of their hosts
ANSWER_S = 20.0  # what an owner gets to answer that it will stop; it has threads to spare for that
STOP_S = 180.0  # what a stop may take: GRACE_S of an owner, the host's other limits, a connection that is made anew
SILENT_ROUNDS = 30  # heartbeats, of at most two HEARTBEAT_S each, after which an owner that answers none is given up
PLACE_S, PLACE_PAUSE_S, PLACE_PAUSE_MAX_S = 60.0, 2.0, 16.0  # see Runner._prepared
HOST_STRIKES = 3  # infrastructure failures in a row after which a host is set aside


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs besides the books. Times are seconds; ``deadline`` is a Unix time or None."""

    trials: int | None
    deadline: float | None
    max_attempts: int
    confirm_top: int
    confirm_launches: int
    retry_pause_s: float
    screening: bool = True


@dataclass(slots=True)
class Runner:
    """Runs one study over its hosts. ``plans`` gives the launch plan per stage, ``request`` a launch request."""

    store: Store
    books: Books
    pool: Pool
    hosts: dict[str, HostState]
    settings: RunSettings
    plans: Mapping[Stage, LaunchPlan]
    request: Callable[[ArmConfig, tuple[int, ...]], Callable[[str], LaunchRequest]]
    renew_owner: Callable[[OwnerSettings], OwnerSettings]  # the same owner, of a higher epoch
    listener: Listener
    outputs: OutputCheck | None = None  # None: outputs are not comparable (sampling, no token ids)
    slo: Slo | None = None
    _calls: PatientPool = field(init=False)
    _hostwork: HostWork = field(init=False)
    _working: asyncio.Task[None] | None = None
    _stopping: str | None = None
    _stop_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self._calls = PatientPool(self.pool)
        self._hostwork = HostWork(
            self.store,
            self.books,
            self._calls,
            self.plans,
            self.request,
            self._event,
            self.outputs,
            self.slo,
            self.settings.screening,
            self.hosts,
        )

    # ------------------------------------------------------------------ whole

    def open(self) -> None:
        """Start the owners; to be called from the main thread, before :meth:`run`."""
        self._calls.open({name: host.settings for name, host in self.hosts.items()})

    async def run(self) -> str:
        """Until finished, stopped or out of hosts; returns the study's new state (``finished`` or ``stopped``)."""
        work = self._working = asyncio.create_task(self._work())
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            await asyncio.wait((work, heartbeat), return_when=asyncio.FIRST_COMPLETED)
            if heartbeat.done():  # it only ends by an error, and without it every lease runs out
                heartbeat.result()
            await work
        finally:
            heartbeat.cancel()
            work.cancel()
            ended, _ = await asyncio.wait((work, heartbeat), timeout=CLOSE_S)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # the first to fail is raised; the other's, seen here, is not complained about
            await self._close()
        return "stopped" if self._stopping else "finished"

    async def _work(self) -> None:
        await asyncio.gather(*(self._prepare(host) for host in self.hosts.values()))
        if self._stopping is None:
            self._require_hosts()
        if (chosen := self.books.proposing.begin()) is not None:
            self._event(WARM_START, **chosen)
        self._event(SEARCH, **self.books.proposing.facts())
        for part in (self._search, self._confirm):
            await self._all_hosts(part)
            if self._stopping is not None:
                return
            self._require_hosts()
            if part == self._search:
                self._say_why_ended()

    async def _close(self) -> None:
        """End the owners, and with them every server that is still there."""
        closing = [asyncio.ensure_future(self._calls.call(name, "close")) for name in self.hosts]
        await asyncio.wait(closing, timeout=CLOSE_S)  # a host out of reach ends its servers when their lease is over

    async def stop(self, why: str, *, now: bool = False) -> None:
        """End what is running and leave a study that can be resumed: cleanly, or ``now`` without any grace.

        A host is given up when its owner does not answer within ANSWER_S (CLOSE_S for ``now``, whose answer is that
        its servers were killed), or has not ended its work after STOP_S.
        """
        self._stopping = self._stopping or why
        self._event("stopping", why=why)
        self._stop_asked.set()
        async with self._changed:
            self._changed.notify_all()
        asked = {name: asyncio.ensure_future(self._calls.call(name, "cancel", now)) for name in self.hosts}
        limit = CLOSE_S if now else ANSWER_S
        answered, _ = await asyncio.wait(asked.values(), timeout=limit)
        self._give_up([name for name, task in asked.items() if not task.done()], f"has not answered for {limit:g} s")
        if self._working is not None:
            _, late = await asyncio.wait({self._working}, timeout=STOP_S)
            if late:
                self._give_up(self._calls.waiting(), f"has not ended its work {STOP_S:g} s after it was asked to")
        for task in answered:
            task.result()  # an error of ours is raised, now that everything was asked to end

    def _give_up(self, hosts: Sequence[str], what: str) -> None:
        """Wait no longer for these owners: what is under way there ends as on a host that is lost."""
        for name in hosts:
            host, lease_s = self.hosts[name], self.hosts[name].settings.lease_s
            why = (
                f"the owner of host {name} {what} and is given up. A server may still run there: it ends by itself "
                f"within {lease_s:g} s, its lease. `sweep ps {host.machine} --space YAML` shows it; the host's next "
                "owner ends what is left."
            )
            self._calls.give_up(name, why)
            self._event(GIVEN_UP, host=name, why=why)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not on when the study is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), seconds)

    async def _all_hosts(self, part: Any) -> None:
        """One task per host; the first that fails (the database, a bug) ends the others and is raised alone."""
        try:
            async with asyncio.TaskGroup() as group:
                for host in self.hosts.values():
                    if host.aside is None:
                        group.create_task(part(host))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    # ------------------------------------------------------------------ hosts

    async def _prepare(self, host: HostState) -> None:
        self._event("prepare", host=host.name)
        answer = await self._prepared(host)
        if answer.error is not None:
            self.books.host_error(host.name, host.settings.kind, answer)
            self._set_aside(host, answer.error)
            return
        assert answer.facts is not None  # either is there
        self.books.host_ready(host.name, host.settings.kind, answer.facts)
        if answer.left_over:
            self._event("left_over", host=host.name, launches=list(answer.left_over))

    async def _prepared(self, host: HostState) -> Prepared:
        """What the host's owner says of it. For half a minute Ray goes on placing owners on a node that is lost: one
        that is gone before it has answered is placed again, for PLACE_S."""
        began, pause = time.monotonic(), PLACE_PAUSE_S
        while isinstance(answer := await self._calls.call(host.name, "prepare"), HostLost):
            if self._stopping is not None or time.monotonic() + pause > began + PLACE_S:
                return Prepared(error=answer.message)
            self._event("placing", host=host.name, why=answer.message, pause_s=pause)
            await self._pause(pause)
            pause = min(2 * pause, PLACE_PAUSE_MAX_S)
            if self._stopping is None:
                self._open_anew(host)
        assert isinstance(answer, Prepared)
        return answer

    def _set_aside(self, host: HostState, why: str) -> None:
        host.aside = why
        self.store.set_host_state(self.books.study_id, host.name, HostRowState.SET_ASIDE, why)
        self._event("host_aside", host=host.name, why=why)

    def _require_hosts(self) -> None:
        if all(host.aside for host in self.hosts.values()):
            raise self.books.no_host_error({name: host.aside or "" for name, host in self.hosts.items()})

    async def _reopen(self, host: HostState) -> None:
        """A lost actor: a new one, which first ends what the old one left on the host."""
        self._open_anew(host)
        await self._prepare(host)

    def _open_anew(self, host: HostState) -> None:
        """A new owner, of a higher epoch."""
        host.settings = self.renew_owner(host.settings)
        self._calls.open({host.name: host.settings})

    async def _heartbeat(self) -> None:
        asked: dict[str, asyncio.Task[Any]] = {}  # an owner that does not answer must not cost the others their leases
        silent: Counter[str] = Counter()  # rounds, not seconds: a controller that itself stood still blames nobody
        ending: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for name, host in self.hosts.items():
                if host.aside is None and name not in asked:
                    asked[name] = asyncio.ensure_future(self._calls.call(name, "heartbeat"))
            if asked:
                await asyncio.wait(asked.values(), timeout=HEARTBEAT_S)
            for name in [name for name, task in asked.items() if task.done()]:
                progress = asked.pop(name).result()
                silent.pop(name, None)
                if isinstance(progress, dict):
                    self._event("progress", host=name, **progress)
                    self._note_phase(self.hosts[name], progress["phase"])
            silent.update(asked.keys())
            self._give_up([n for n in asked if silent[n] == SILENT_ROUNDS], f"answered no {SILENT_ROUNDS} heartbeats")
            if self._stopping is None and self.store.stop_requested(self.books.study_id):
                ending = asyncio.create_task(self.stop("asked by `sweep stop`"))
            if ending is not None and ending.done():
                ending.result()  # as an error of this task
            self.store.controller_heartbeat(self.books.study_id)

    def _note_phase(self, host: HostState, phase: str | None) -> None:
        """For `sweep status` in another terminal."""
        if host.launch is not None and phase is not None and phase != host.phase:
            self.store.launch_phase(host.launch, phase)
            host.phase = phase

    # ------------------------------------------------------------------ search

    async def _search(self, host: HostState) -> None:
        if not self.books.work_left(self.settings.trials):
            return
        if host.resident and not host.checked and not self._over(host):
            for job, outcome in await self._hostwork.check_neighbour(host):
                await self._book(host, job, outcome)
        while not self._over(host):
            reference = host.agenda.reference(time.time())
            jobs = [reference] if reference is not None else await self._candidate(host)
            if not jobs and (last := host.agenda.last()) is not None:
                jobs = [last]  # which may show that a trial has to be measured again
            if not jobs:
                return
            await self._in_turn(host, jobs)
        last = host.agenda.last()
        if last is not None and self._stopping is None and host.aside is None:
            await self._in_turn(host, [last])

    async def _in_turn(self, host: HostState, jobs: Sequence[Job]) -> None:
        """Launches that belong together: after one that failed, or a stop, the rest is not made."""
        for job in jobs:
            if self._stopping is not None or host.aside is not None:
                if job.trial is not None:
                    self.books.hand_back(job.trial, self._stopping or host.aside or "")
                return
            if host.resident and job.role is Role.CANDIDATE:
                await self._pair(host, job)
                continue
            outcome = await self._hostwork.launch(host, job)
            await self._book(host, job, outcome)
            if outcome.over:
                return

    def _over(self, host: HostState) -> bool:
        late = self.settings.deadline is not None and time.time() > self.settings.deadline
        if late and self._stopping is None:
            self._event("budget", why="the time of the budget is used up")
        return self._stopping is not None or host.aside is not None or late

    def _say_why_ended(self) -> None:
        """The deadline has been said when it came."""
        late = self.settings.deadline is not None and time.time() > self.settings.deadline
        time_is_up = {"reason": "time", "why": "the time of the budget is used up"} if late else None
        why = self.books.why_ended(self.settings.trials) or time_is_up
        if why is not None and self.settings.trials != 0:
            self._event(ENDED, **why)

    async def _candidate(self, host: HostState) -> list[Job]:
        """The launches of the next trial for this host; waits while other hosts may still hand work back."""
        async with self._changed:
            while self._stopping is None:
                trial = self.books.next_trial(host.name, budget=self.settings.trials)
                if trial is not None:
                    self._event("trial", host=host.name, trial=trial.number, arm=trial.config.label(), why=trial.why)
                    return host.agenda.candidate(trial.number, trial.config, self.books.next_pair())
                if not self.books.running():
                    return []
                await self._changed.wait()
        return []

    # ------------------------------------------------------------------ confirm

    async def _confirm(self, host: HostState) -> None:
        launches = self.settings.confirm_launches
        top = self.books.to_confirm(host.name, self.settings.confirm_top, launches)
        if not top or launches == 0 or self._over(host):
            return
        pair = self.books.next_pair()
        for job in confirm_jobs(top, launches, pair):
            if self._over(host):
                return
            outcome = await self._hostwork.launch(host, job)
            self.books.add_launch(outcome)
            if job.trial is not None and (beside := outcome.flags.get(Flag.NEIGHBOURS)) is not None:
                self.books.flag(job.trial, Flag.NEIGHBOURS, beside)
            self._event("launched", host=host.name, stage="confirm", arm=job.arm.label(), diagnosis=outcome.diagnosis)
            await self._judge_host(host, outcome)
        self.books.analyse()

    # ------------------------------------------------------------------ one launch

    async def _pair(self, host: HostState, job: Job) -> None:
        """A candidate beside its baseline; launched alone where the GPUs turn out not to hold both."""
        assert job.trial is not None
        base, out = await self._hostwork.pair(host, job)
        await self._book(host, base, out.baseline)
        if out.candidate is not None:
            await self._book(host, job, out.candidate)
            host.agenda.paired(time.time())
        elif out.refused is not None and self._stopping is None and host.aside is None:
            await self._book(host, job, await self._hostwork.launch(host, job))
        else:
            self.books.hand_back(job.trial, self._stopping or host.aside or "the baseline beside it ended")

    async def _book(self, host: HostState, job: Job, outcome: LaunchOutcome) -> None:
        """Rows first, then the sampler's view, then whoever waits for work."""
        diagnosis = outcome.diagnosis
        self.books.add_launch(outcome)
        host.agenda.done(job, time.time(), measured=diagnosis is None)
        if job.trial is not None and (job.last or outcome.over):
            again = self.books.finish_trial(job.trial, host.name, outcome, max_attempts=self.settings.max_attempts)
            if again:
                self._event("requeued", host=host.name, trial=job.trial, reason=diagnosis.reason if diagnosis else "")
        elif job.role is Role.BASELINE:
            self._count_baseline(host, diagnosis)
        self.books.analyse()
        self._measure_again(host, job)
        self._event(
            "finished", host=host.name, trial=job.trial, role=job.role, arm=job.arm.label(), diagnosis=diagnosis
        )
        if job.trial is not None and (outlook := self.books.outlook()) is not None:
            self._event(OUTLOOK, **outlook)
        await self._judge_host(host, outcome)
        async with self._changed:
            self._changed.notify_all()

    def _count_baseline(self, host: HostState, diagnosis: Diagnosis | None) -> None:
        """Failures in a row that are not the host's: those are judged with the host."""
        if diagnosis is None:
            host.baseline_failures = 0
        elif diagnosis.verdict not in (Verdict.INFRA_ERROR, Verdict.CANCELLED) and diagnosis.reason != PATH_LIMITED:
            host.baseline_failures += 1
            self.books.baseline_failed(diagnosis, host.baseline_failures)

    def _measure_again(self, host: HostState, job: Job) -> None:
        """What the analysis asks for: trials whose brackets disagree are queued again, a baseline that cannot be right
        is due at once, and so is one for a candidate that no earlier baseline can be compared with."""
        for number, why in self.books.requeue_not_comparable(self.settings.max_attempts):
            self._event("requeued", host=host.name, trial=number, reason=f"not_comparable: {why}")
            host.agenda.demanded |= number == job.trial
        if job.trial is not None and self.books.impossible(job.trial):
            host.agenda.demanded = True

    async def _judge_host(self, host: HostState, outcome: LaunchOutcome) -> None:
        """Circuit breaker: a host that fails again and again is set aside and the study goes on elsewhere."""
        diagnosis = outcome.diagnosis
        if outcome.unclean is not None:
            self._event("unclean_stop", host=host.name, launch=outcome.measured.launch_id, why=outcome.unclean)
            why = f"a server could not be ended: {outcome.unclean}"
        elif diagnosis is not None and (
            diagnosis.verdict is Verdict.INFRA_ERROR
            # A baseline is tried until it is measured: a client that cannot do it must not try for ever.
            or (diagnosis.verdict is Verdict.MEASUREMENT_INVALID and outcome.measured.role is Role.BASELINE)
        ):
            why = diagnosis.evidence
        else:
            host.strikes = 0 if diagnosis is None else host.strikes
            return
        if self._stopping is not None:
            return
        if diagnosis is not None and diagnosis.reason == PATH_LIMITED:  # of a baseline, which every path must carry
            self._set_aside(host, why)
            return
        if outcome.host_lost:
            await self._reopen(host)
        host.strikes += 1
        if host.strikes >= HOST_STRIKES:
            self._set_aside(host, f"{host.strikes} infrastructure failures in a row, the last: {why}")
        else:
            await self._pause(self.settings.retry_pause_s * 2 ** (host.strikes - 1))

    def _event(self, kind: str, **more: Any) -> None:
        more = {key: in_words(v) if isinstance(v, Diagnosis) else v for key, v in more.items()}
        self.listener.on_event({"kind": kind, "at": time.time(), **more})
        if kind != "progress":
            self.store.add_event(self.books.study_id, more.get("host"), kind, more)
