"""What a host launches next: references first, then candidates between baselines, then the last bracket. Pure.

The order is the drift control: every candidate lies between two baselines of its own host, and the confirm stage runs
its arms forwards and backwards so that a linear drift cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweep.model import BASELINE, ArmConfig, Basis, Role, Stage


@dataclass(frozen=True, slots=True)
class Job:
    """One launch to make. ``trial`` is the trial's number, None for a reference; ``last``: the trial ends with it."""

    arm: ArmConfig
    role: Role
    stage: Stage
    trial: int | None = None
    pair: int | None = None
    last: bool = True


@dataclass(slots=True)
class HostAgenda:
    """The references one host still owes.

    ``calibrate_launches`` baselines at the start teach the noise (A/A); afterwards a baseline is due when
    ``baseline_every`` candidate launches or ``baseline_minutes`` have passed since the last one, or when it is
    demanded. Each trial is launched ``candidate_launches`` times in a row; where that is more than once, a baseline
    follows each trial (two launches: ABBA).
    """

    calibrate_launches: int
    baseline_every: int
    baseline_minutes: float
    engine_default: ArmConfig | None
    candidate_launches: int = 1
    baselines: int = 0
    since_baseline: int = 0
    baseline_at: float | None = None
    pair: int | None = None  # of the candidate launched last: the baseline after it belongs to the same pair
    demanded: bool = False

    def reference(self, now: float) -> Job | None:
        """The reference that is due at ``now`` (Unix seconds), before another candidate may start."""
        if self.baselines < max(1, self.calibrate_launches):
            stage = Stage.CALIBRATE if self.calibrate_launches > 1 else Stage.SEARCH
            return Job(BASELINE, Role.BASELINE, stage)
        if self.engine_default is not None:
            return Job(self.engine_default, Role.ENGINE_DEFAULT, Stage.SEARCH)
        if self.since_baseline == 0:
            return None
        late = self.baseline_at is not None and now - self.baseline_at > self.baseline_minutes * 60
        every = self.baseline_every if self.candidate_launches == 1 else 1
        return self.last() if late or self.demanded or self.since_baseline >= every else None

    def candidate(self, trial: int, arm: ArmConfig, pair: int) -> list[Job]:
        """The launches of one trial. ``pair`` is used where they are alternated with the baseline."""
        launches = self.candidate_launches
        alternated = pair if launches > 1 else None
        return [
            Job(arm, Role.CANDIDATE, Stage.SEARCH, trial, alternated, last=turn + 1 == launches)
            for turn in range(launches)
        ]

    def last(self) -> Job | None:
        """The closing bracket: due when something was measured after the last baseline."""
        return Job(BASELINE, Role.BASELINE, Stage.SEARCH, pair=self.pair) if self.since_baseline else None

    def paired(self, now: float) -> None:
        """The candidate just measured ran beside a baseline: there is nothing to close."""
        self.since_baseline = 0
        self.baseline_at = now

    def done(self, job: Job, now: float, *, measured: bool) -> None:
        """Book a finished launch. A baseline that could not be measured stays due."""
        if job.role is Role.BASELINE and measured:
            self.baselines += 1
            self.since_baseline = 0
            self.baseline_at = now
            self.demanded = False
        elif job.role is Role.ENGINE_DEFAULT:
            self.engine_default = None
            self.since_baseline += measured
        elif measured:
            self.since_baseline += 1
            self.pair = job.pair


def confirm_jobs(top: Sequence[tuple[int, ArmConfig]], launches: int, pair: int) -> list[Job]:
    """Baseline and top candidates, forwards then backwards (A B C | C B A | A B C ...), ``launches`` of each.

    ``top`` holds (trial number, arm); ``pair`` joins these launches for the analysis.
    """
    forwards = [Job(BASELINE, Role.BASELINE, Stage.CONFIRM, pair=pair)]
    forwards += [Job(arm, Role.CANDIDATE, Stage.CONFIRM, trial, pair) for trial, arm in top]
    order: list[Job] = []
    for turn in range(launches):
        order += forwards if turn % 2 == 0 else forwards[::-1]
    return order


def launches_left(
    trials: int, mode: Basis, baseline_every: int, confirm_top: int, confirm_launches: int, confirmed: int
) -> int:
    """A guess for the reader of a progress line: ``trials`` still to come with the baselines they need, and the confirm
    stage of one host less the ``confirmed`` launches it has made.

    Alternated, a trial is two launches and the baseline that follows; beside each other, it and a baseline of its own;
    bracketed, there are baselines between and after them.
    """
    search = {
        Basis.ALTERNATE: 3 * trials,
        Basis.RESIDENT: 2 * trials,
        Basis.BRACKETED: trials + math.ceil(trials / baseline_every),
    }
    confirm = (confirm_top + 1) * confirm_launches if confirm_top else 0
    return search[mode] + max(0, confirm - confirmed)


def engine_default_arm(
    algorithms: Sequence[str], drafters: Sequence[str], known_good: Sequence[ArmConfig]
) -> ArmConfig | None:
    """The engine's automatic choice for the algorithm and drafter the user trusts most: the pair that occurs most
    often under ``known_good``, else the first of each axis. None where the space has no speculation."""
    pairs = [(arm.algorithm, arm.draft_model) for arm in known_good if arm.algorithm]
    if pairs:
        algorithm, drafter = max(pairs, key=pairs.count)
        return ArmConfig(algorithm=algorithm, draft_model=drafter)
    if not algorithms:
        return None
    return ArmConfig(algorithm=algorithms[0], draft_model=drafters[0] if drafters else None)
