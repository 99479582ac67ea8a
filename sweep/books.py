"""The books of a running study: trials, the sampler's view of them, and what the analysis makes of the launches.

Kept in memory beside the rows so that nothing is read back per trial; every change is written before it is used.
Over 300 lines on purpose: what changes a trial's state stands in one class, where its order can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from storage.records import TrialRow, TrialState
from storage.search_state import ENDED
from storage.store import Store
from sweep import screening
from sweep.analysis import (
    AnalysisSettings,
    LaunchFigures,
    StudyAnalysis,
    analyse_figures,
    extract,
    metrics_for,
)
from sweep.errors import BusyError, HostError, SweepError
from sweep.launching import LaunchOutcome
from sweep.model import (
    ArmConfig,
    BlockResult,
    Constraint,
    Diagnosis,
    Flag,
    HostFacts,
    MeasuredLaunch,
    Objective,
    Phase,
    Retry,
    Role,
    Stage,
    Verdict,
)
from sweep.proposing import Proposing
from sweep.reports import Prepared
from sweep.search.view import Told
from sweep.sentences import interval
from sweep.told import of_launches, told, violated

# Flags that no analysis makes: they stay when it is made anew, the others follow it.
_NOT_ANALYSED = {Flag.COERCED, Flag.OUTPUT_DIFFERS, Flag.SCREENED_OUT, Flag.FORCED_ACCEPT_LENGTH, Flag.NEIGHBOURS}

CHOSEN = "confirm"  # the event that says which trials are confirmed
BASELINE_ATTEMPTS = 3  # a crash may be chance, as on any arm; three in a row are not


class Books:
    """One study's trials and figures. ``arms`` maps an arm's key to its configuration."""

    def __init__(
        self,
        store: Store,
        study_id: int,
        study_uid: str,
        *,
        proposing: Proposing,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        analysis: AnalysisSettings,
    ) -> None:
        self.store = store
        self.study_id = study_id
        self.study_uid = study_uid
        self.proposing = proposing
        self._objectives = tuple(objectives)
        self._constraints = tuple(constraints)
        self._settings = analysis
        self._trials = {trial.number: trial for trial in store.trials(study_id)}
        self._measured = store.measured_launches(study_id)
        self._arms = {arm.key: arm.config for arm in store.arms(study_id)}
        self._host_errors: dict[str, Prepared] = {}
        self._figures: dict[int, LaunchFigures] = {}
        self.analysis: StudyAnalysis | None = None
        self.analyse()

    # ------------------------------------------------------------------ hosts

    def host_ready(self, name: str, kind: str, facts: HostFacts) -> None:
        self.store.add_host(self.study_id, name, kind, facts)

    def host_error(self, name: str, kind: str, answer: Prepared) -> None:
        self.store.add_host(self.study_id, name, kind)
        self._host_errors[name] = answer

    def no_host_error(self, why: Mapping[str, str]) -> SweepError:
        """Why the study cannot go on: what is the matter with each host."""
        text = "\n".join(f"  {name}: {reason}" for name, reason in sorted(why.items()))
        busy = all(
            name in self._host_errors and self._host_errors[name].exit_code == BusyError.exit_code for name in why
        )
        return (BusyError if busy else HostError)(f"no host can be used:\n{text}")

    # ------------------------------------------------------------------ trials

    def running(self) -> bool:
        """True while some trial may still hand work back."""
        return any(trial.state is TrialState.RUNNING for trial in self._trials.values())

    def next_trial(self, host: str, *, budget: int | None) -> TrialRow | None:
        """A queued trial, else a new proposal within the budget; its row is ``running`` on this host on return."""
        queued = [trial for trial in self._trials.values() if trial.state is TrialState.QUEUED]
        if queued:
            trial = queued[0]
        else:
            if budget is not None and len(self._trials) >= budget:
                return None
            proposal = self.proposing.propose(self.history())
            if proposal is None:
                return None
            trial = self.store.add_trial(self.study_id, proposal.config, origin=proposal.origin.value, why=proposal.why)
        self.store.start_trial(self.study_id, trial.number, host)
        self._arms[trial.config.key] = trial.config
        return self._reload(trial.number)

    def finish_trial(self, number: int, host: str, outcome: LaunchOutcome, *, max_attempts: int) -> bool:
        """Write how the trial ended; True where it was queued for another attempt instead.

        Surroundings at fault: tried again, up to ``max_attempts``. A crash that may be chance: launched once more.
        """
        trial = self._trials[number]
        diagnosis = outcome.diagnosis
        again = diagnosis is not None and (
            diagnosis.verdict is Verdict.CANCELLED
            or (trial.attempt < max_attempts and (diagnosis.verdict.requeue or diagnosis.retry is Retry.ONCE))
        )
        if again and diagnosis is not None:
            self.store.requeue_trial(self.study_id, number, f"{diagnosis.verdict}: {diagnosis.evidence}"[:500])
        else:
            self.store.finish_trial(
                self.study_id,
                number,
                diagnosis,
                flags={flag.value: evidence for flag, evidence in outcome.flags.items()},
                effective=outcome.effective,
            )
        self._reload(number)
        return again

    def hand_back(self, number: int, why: str) -> None:
        """A trial whose launches were not all made goes back into the queue."""
        self.store.requeue_trial(self.study_id, number, why[:500])
        self._reload(number)

    def requeue_not_comparable(self, max_attempts: int) -> list[tuple[int, str]]:
        """Queue again what the last analysis could not compare (its brackets disagree); numbers and reasons.

        A trial that stays so at its last attempt keeps its flag. Launches that can be compared later are used alone.
        """
        refused = self.analysis.not_comparable if self.analysis is not None else {}
        again = [
            (number, why)
            for number, why in refused.items()
            if self._trials[number].state is TrialState.FINISHED and self._trials[number].attempt < max_attempts
        ]
        for number, why in again:
            self.hand_back(number, f"not comparable: {why}")
        return again

    def flag(self, number: int, flag: Flag, evidence: str) -> None:
        """Mark a complete trial; one that is being measured again is judged anew."""
        trial = self._trials[number]
        if trial.verdict is Verdict.COMPLETE:
            self.store.update_trial_values(
                self.study_id,
                number,
                values=trial.values,
                stderr=trial.stderr,
                constraints=trial.constraints,
                flags={**_without_simulated(trial.flags), flag.value: evidence},
            )
            self._reload(number)

    def impossible(self, number: int) -> bool:
        """True where the trial gained more than its accept length allows: the baseline was measured too slow."""
        return self.analysis is not None and Flag.ABOVE_ACCEPT_LENGTH in self.analysis.flags(number)

    def recover(self, why: str) -> list[int]:
        """After a crash: trials left running are queued again, launches left open are closed. Their numbers."""
        lost = [trial.number for trial in self._trials.values() if trial.state is TrialState.RUNNING]
        for number in lost:
            self.store.requeue_trial(self.study_id, number, why)
            self._reload(number)
        for launch in self.store.launches(self.study_id, open_only=True):
            self.store.finish_launch(
                launch.id, Diagnosis(Verdict.CANCELLED, launch.phase or Phase.START, "abandoned", why, "", Retry.LATER)
            )
        return lost

    def reload(self) -> None:
        """Trials that were added beside the proposer."""
        self._trials = {trial.number: trial for trial in self.store.trials(self.study_id)}

    def _reload(self, number: int) -> TrialRow:
        self._trials[number] = self.store.trial(self.study_id, number)
        return self._trials[number]

    # ------------------------------------------------------------------ the sampler's view

    def history(self) -> list[Told]:
        """Every trial in number order, as the sampler may see it: a failure has a verdict and no value."""
        return told(self._trials.values(), of_launches(self._measured))

    def work_left(self, budget: int | None) -> bool:
        """False where a resumed study has measured all it was asked to, and every host's last search launch is the
        baseline that closes its bracket."""
        if not self._measured or any(trial.state is not TrialState.FINISHED for trial in self._trials.values()):
            return True
        searched = sorted((m for m in self._measured if m.stage is not Stage.CONFIRM), key=lambda m: m.sequence)
        if any(role is not Role.BASELINE for role in {m.host: m.role for m in searched}.values()):
            return True
        if budget is not None and len(self._trials) >= budget:
            return False
        ended, history = self.store.events(self.study_id, kind=ENDED), self.history()
        if ended and self.proposing.was_decided(ended[-1].detail, history):
            return False
        return self.proposing.propose(history) is not None

    def outlook(self) -> dict[str, Any] | None:
        """How much is left to find; see :meth:`sweep.proposing.Proposing.outlook`."""
        return self.proposing.outlook(self.history())

    def why_ended(self, budget: int | None) -> dict[str, Any] | None:
        """Why nothing more is proposed; see :meth:`sweep.proposing.Proposing.why_ended`."""
        return self.proposing.why_ended(self.history(), budget)

    # ------------------------------------------------------------------ launches and what they say

    def add_launch(self, outcome: LaunchOutcome) -> None:
        """Take a finished launch into the analysis; one that failed stays out of it."""
        if outcome.diagnosis is None and outcome.measured.blocks:
            self._measured.append(outcome.measured)

    def baseline_failed(self, diagnosis: Diagnosis, times: int) -> None:
        """A baseline that cannot run, or failed too many ``times`` in a row on a host, is the end: SweepError."""
        if diagnosis.retry is Retry.NEVER or times >= BASELINE_ATTEMPTS:
            raise SweepError(
                f"the baseline cannot be measured: {diagnosis.verdict}: {diagnosis.evidence}. {diagnosis.advice} "
                f"Log: {diagnosis.log_path or 'none'}. Nothing can be compared without it."
            )

    def hopeless(self, host: str, arm: ArmConfig, blocks: Sequence[BlockResult]) -> str | None:
        """Why a candidate with these finished blocks on this host cannot matter any more, None where it may; see
        :mod:`sweep.screening`. An arm that answers as the target does is not raced against one that may not."""
        last = max((m for m in self._measured if m.host == host and m.role is Role.BASELINE), key=_order, default=None)
        if last is None or self.analysis is None:
            return None
        metrics = metrics_for(self._objectives, self._settings)
        found = screening.hopeless(
            # figures of a block as of a launch that has no other; whose launch it is does not matter to them
            [extract(replace(last, blocks=(block,)), metrics, self._settings.slo) for block in blocks],
            self._figures_of(last),
            self.analysis,
            self._objectives,
            [
                t.number
                for t in self._trials.values()
                if t.verdict is Verdict.COMPLETE and self._may_win(t) and (arm.lossy or not t.config.lossy)
            ],
            hours=(blocks[-1].started_at - last.blocks[-1].started_at) / 3600.0,
            margin=self._settings.tie_band,
        )
        if found is None:
            return None
        rival, losses = found
        return screening.in_words(losses, f"#{rival} {self._trials[rival].config.label()}")

    def _may_win(self, trial: TrialRow) -> bool:
        """Keeps its constraints and was not screened out."""
        return Flag.SCREENED_OUT not in trial.flags and all(v <= 0 for v in trial.constraints.values())

    def next_pair(self) -> int:
        return 1 + max((launch.pair or 0 for launch in self._measured), default=0)

    def analyse(self) -> None:
        """Everything that may be said now, into memory and into the rows the queries read."""
        if not self._measured:
            return
        complete = [n for n, t in self._trials.items() if t.verdict is Verdict.COMPLETE]
        wanted = [m for m in self._measured if m.trial is None or m.trial in complete]
        self._arms |= {arm.key: arm.config for arm in self.store.arms(self.study_id)}
        figures = [self._figures_of(launch) for launch in wanted]
        self.analysis = analyse_figures(figures, self._arms, self._objectives, self._settings)
        self.store.replace_analysis(self.study_id, self.analysis.gains, self.analysis.as_dict())
        # A trial is measured again where its first launch was spoiled: the newest tells whether it keeps constraints.
        newest = {m.trial: m for m in wanted if m.trial is not None and m.stage is Stage.SEARCH}
        for number in complete:
            if number in newest:
                self._update_values(number, self.analysis, newest[number])

    def _update_values(self, number: int, analysis: StudyAnalysis, launch: MeasuredLaunch) -> None:
        trial = self._trials[number]
        values: dict[str, float] = {}
        stderr: dict[str, float] = {}
        for objective in self._objectives:
            if (found := analysis.value(number, objective)) is not None:
                values[objective.key], stderr[objective.key] = found
        found_flags = {f.flag.value: f.evidence for f in analysis.findings.get(number, ())}
        if number in analysis.not_comparable:
            found_flags["not_comparable"] = analysis.not_comparable[number]
        before = _without_simulated(trial.flags)
        flags = {**{k: v for k, v in before.items() if k in _NOT_ANALYSED}, **found_flags}
        constraints = {
            c.text: violation
            for c in self._constraints
            if (violation := violated(c, launch, self._settings.slo)) is not None
        }
        if (values, stderr, constraints, flags) == (trial.values, trial.stderr, trial.constraints, before):
            return
        self.store.update_trial_values(
            self.study_id, number, values=values, stderr=stderr, constraints=constraints, flags=flags
        )
        self._reload(number)

    def _figures_of(self, launch: MeasuredLaunch) -> LaunchFigures:
        """A launch reduced to what the analysis reads, once."""
        if launch.launch_id not in self._figures:
            self._figures[launch.launch_id] = extract(
                launch, metrics_for(self._objectives, self._settings), self._settings.slo
            )
        return self._figures[launch.launch_id]

    def to_confirm(self, host: str, top: int, launches: int) -> list[tuple[int, ArmConfig]]:
        """The candidates this host confirms: of the best ``top``, those measured here that have fewer than ``launches``
        confirming launches (a confirm stage may have been cut short). The best are what most likely leads by all that
        was measured, for each objective, then the highest figures of each in turn."""
        if self.analysis is None:
            return []
        chosen = self._chosen(self.analysis, top)
        done = Counter(m.trial for m in self._measured if m.stage is Stage.CONFIRM)
        return [(n, self._trials[n].config) for n in chosen if self._trials[n].host == host and done[n] < launches]

    def _chosen(self, analysis: StudyAnalysis, top: int) -> list[int]:
        """Kept as an event: what the confirm stage measures changes what most likely leads, and one that was cut short
        must go on with the same arms."""
        asked = {"top": top, "of": len(self._trials)}
        kept = [event.detail for event in self.store.events(self.study_id, kind=CHOSEN)]
        if kept and asked.items() <= kept[-1].items():
            return list(kept[-1]["trials"])
        lists = [analysis.to_confirm(objective, len(self._trials)) for objective in self._objectives]
        likely = [n for arm in self.proposing.recommend(self.history()) if (n := self._number_of(arm)) is not None]
        order = dict.fromkeys([*likely, *(n for row in zip_longest(*lists) for n in row if n is not None)])
        able = [n for n in order if self._may_win(self._trials[n])]
        # What may change the answers is confirmed only where there is nothing else, as it is ranked apart.
        able = [n for n in able if not self._trials[n].config.lossy] or able
        # One trial of each configuration: the search may have measured one again.
        first: dict[ArmConfig, int] = {}
        for n in able:
            first.setdefault(self._ran(n), n)
        chosen = list(first.values())[:top]
        self.store.add_event(self.study_id, None, CHOSEN, {"trials": chosen, **asked})
        return chosen

    def _number_of(self, arm: ArmConfig) -> int | None:
        """The complete trial that ran this configuration."""
        complete = (t for t in self._trials.values() if t.verdict is Verdict.COMPLETE)
        return next((t.number for t in complete if arm == self._ran(t.number)), None)

    def _ran(self, number: int) -> ArmConfig:
        """What the server of a trial ran where that is known, else what was asked."""
        trial = self._trials[number]
        return trial.effective.config if trial.effective else trial.config

    def trials_wanted(self, budget: int | None) -> int:
        """How many trials the study may come to: its budget, or all that the space holds."""
        whole = self.proposing.whole
        return max(len(self._trials), whole if budget is None else min(budget, whole))

    def trials_finished(self) -> int:
        return sum(trial.state is TrialState.FINISHED for trial in self._trials.values())

    def best_line(self) -> str | None:
        """The best candidate so far in words, None before there is one."""
        if self.analysis is None:
            return None
        ranking = self.analysis.ranking.get(self._objectives[0].key, ())
        if not ranking:
            return None
        first = ranking[0]
        gain = first.result.gain
        said = interval(gain.as_dict()) if gain else "not comparable"
        return f"#{first.trial} {self._trials[first.trial].config.label()}: {said} over no speculation"


def _order(launch: MeasuredLaunch) -> int:
    return launch.sequence


def _without_simulated(flags: Mapping[str, str]) -> dict[str, str]:
    """The store adds that flag by itself."""
    return {flag: evidence for flag, evidence in flags.items() if flag != Flag.SIMULATED.value}
