"""What a report says, gathered from the rows as plain values. Nothing here draws or formats."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.space import SearchSpace
from storage import queries, reading
from storage.pareto import pareto
from storage.reading import BlockFigures
from storage.records import LaunchRow, StudyRow, TrialRow
from storage.store import Store
from sweep.errors import SweepError, UsageError
from sweep.exports.serving import read_spec, serving
from sweep.metrics import METRICS
from sweep.model import ArmGain, Flag, Objective, Role, Stage, Verdict
from sweep.sentences import forced, headline

BASELINE = "baseline"
THROUGHPUT = "output_throughput"
DETAIL_ARMS = 6  # arms drawn where every arm would be too many: the best of the ranking


@dataclass(frozen=True)
class Facts:
    """Everything a report says about one study. Gains are fractions, times Unix seconds, figures in metrics' units."""

    study: StudyRow
    made_at: float
    best: Mapping[str, Any]  # `storage.queries.best`, every arm
    headline: Sequence[str]
    status: Mapping[str, Any]
    analysis: Mapping[str, Any]
    objective: Objective
    front: Mapping[str, Any]  # `storage.pareto.pareto` over two objectives or more
    trials: Sequence[TrialRow]
    launches: Sequence[LaunchRow]
    blocks: Sequence[BlockFigures]
    gains: Sequence[ArmGain]
    rejected: Sequence[Mapping[str, Any]]  # {reason, count, examples}: never launched
    outputs: Sequence[Mapping[str, Any]]  # the same-output check of each trial, its newest one
    command: str | None  # that serves the leading arm
    hosts: Sequence[Mapping[str, Any]]

    @property
    def leader(self) -> Mapping[str, Any] | None:
        """The first row of the ranking, None before any trial is complete."""
        return self.best["best"][0] if self.best["best"] else None

    @property
    def ranking(self) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = self.best["best"]
        return rows

    @property
    def banner(self) -> list[str]:
        """What makes every gain hypothetical, in words; it stands above the verdict."""
        return forced(self.best)

    @property
    def verdict(self) -> Sequence[str]:
        """The headline without the banner."""
        return self.headline[len(self.banner) :]

    @property
    def notes(self) -> list[str]:
        """What the analysis says besides the sentence about the leading arm, which the headline says already."""
        keys = [o.key for o in self.study.objectives]
        said = keys.index(self.objective.key) if self.objective.key in keys else -1
        return [line for place, line in enumerate(self.best["sentences"]) if place != said]

    @property
    def unit(self) -> str:
        return METRICS[self.objective.metric].unit

    def throughput_gains(self) -> dict[int, dict[int, ArmGain]]:
        """Trial -> concurrency -> its output-throughput gain over the baseline, all categories together."""
        out: defaultdict[int, dict[int, ArmGain]] = defaultdict(dict)
        for row in self.gains:
            if row.trial is not None and row.metric == THROUGHPUT and row.category is None and _over_baseline(row):
                out[row.trial][row.concurrency] = row
        return dict(out)

    def category_gains(self, metric: str, concurrency: int) -> dict[int, dict[str, ArmGain]]:
        """Trial -> category -> its gain over the baseline."""
        out: defaultdict[int, dict[str, ArmGain]] = defaultdict(dict)
        for row in self.gains:
            wanted = (row.metric, row.concurrency) == (metric, concurrency) and _over_baseline(row)
            if wanted and row.trial is not None and row.category is not None:
                out[row.trial][row.category] = row
        return dict(out)

    def histograms(self) -> dict[int, tuple[int, ...]]:
        """Trial -> verify steps by number of accepted drafts, added over its valid blocks."""
        out: dict[int, list[int]] = {}
        for block in self.blocks:
            if block.trial is None or block.accept_histogram is None or block.invalid is not None:
                continue
            total = out.setdefault(block.trial, [])
            total.extend([0] * (len(block.accept_histogram) - len(total)))
            for depth, count in enumerate(block.accept_histogram):
                total[depth] += count
        return {trial: tuple(counts) for trial, counts in out.items()}

    def detail_trials(self) -> list[int]:
        """The trials that are drawn one by one: the best of the ranking."""
        return [row["trial"] for row in self.ranking[:DETAIL_ARMS]]

    def gpu_hours(self) -> dict[str, float]:
        """GPU-hours held: in all, by candidates of the search, by references, by the confirm stage."""
        spec, now = self.study.spec, self.made_at
        parts: dict[str, list[LaunchRow]] = {"search": [], "references": [], "confirm": []}
        for launch in self.launches:
            if launch.stage is Stage.CONFIRM:
                parts["confirm"].append(launch)
            else:
                parts["search" if launch.role is Role.CANDIDATE else "references"].append(launch)
        hours = {name: reading.gpu_hours(rows, spec, now=now) for name, rows in parts.items()}
        return {"total": sum(hours.values()), **hours}

    def failures(self) -> list[TrialRow]:
        """Trials that ended otherwise than complete."""
        return [t for t in self.trials if t.verdict is not None and t.verdict is not Verdict.COMPLETE]

    def set_aside(self) -> list[tuple[TrialRow, str]]:
        """Complete trials that may not win, each with the reason."""
        out: list[tuple[TrialRow, str]] = []
        not_comparable: Mapping[str, str] = self.analysis.get("not_comparable", {})
        for trial in self.trials:
            if trial.verdict is not Verdict.COMPLETE:
                continue
            broken = [text for text, violation in trial.constraints.items() if violation > 0]
            if trial.config.lossy:
                out.append((trial, "relaxed acceptance may change the answers; ranked by `sweep best --lossy` alone"))
            elif Flag.SCREENED_OUT.value in trial.flags:
                out.append((trial, f"screened out: {trial.flags[Flag.SCREENED_OUT.value]}"))
            elif str(trial.number) in not_comparable:
                out.append((trial, f"not comparable: {not_comparable[str(trial.number)]}"))
            elif broken:
                out.append((trial, f"breaks a constraint: {', '.join(broken)}"))
        return out


def collect(store: Store, study: StudyRow, *, objective: str | None = None) -> Facts:
    """Read everything. Raises UsageError for an objective that was not measured."""
    found = queries.best(store, study.id, objective=objective, limit=None)
    metric, _, level = found["objective"].partition("@")
    chosen = Objective(metric, int(level), METRICS[metric].better == "higher")
    second = [o for o in found["objectives"] if o != chosen.key]
    partner = "ttft_p50" if metric != "ttft_p50" else THROUGHPUT
    axes = [chosen.key, *second] if second else [chosen.key, f"{partner}@{chosen.concurrency}"]
    blocks = reading.block_figures(store, study.id)
    measured = any(block.concurrency == chosen.concurrency for block in blocks)
    return Facts(
        study=study,
        made_at=time.time(),
        best=found,
        headline=headline(found),
        status=queries.status(store, study.id),
        analysis=store.analysis(study.id) or {},
        objective=chosen,
        front=pareto(store, study.id, axes if measured else None),
        trials=store.trials(study.id),
        launches=store.launches(study.id),
        blocks=blocks,
        gains=reading.gains(store, study.id),
        rejected=_rejected(study),
        outputs=_outputs(store, study),
        command=_command(store, study, found),
        hosts=[{"name": host.name, "kind": host.kind, "facts": host.facts or {}} for host in store.hosts(study.id)],
    )


def _over_baseline(row: ArmGain) -> bool:
    return row.reference == BASELINE and row.gain is not None


def _command(store: Store, study: StudyRow, found: Mapping[str, Any]) -> str | None:
    """None before a trial is complete, and for a study whose engine cannot be launched by us."""
    if not found["best"]:
        return None
    try:
        return serving(study, store.trial(study.id, found["best"][0]["trial"])).command()
    except UsageError:
        return None


def _outputs(store: Store, study: StudyRow) -> list[Mapping[str, Any]]:
    newest = {event.detail["trial"]: event.detail for event in store.events(study.id, kind="outputs")}
    return [newest[trial] for trial in sorted(newest)]


def _rejected(study: StudyRow) -> list[dict[str, Any]]:
    """Configurations that the rules sorted out before any launch, by reason; none where the YAML can no longer be
    read by this version."""
    try:
        space = SearchSpace.from_spec(read_spec(study), allow_empty=True)
    except SweepError:
        return []
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for config, why in space.infeasible:
        groups[why.reason].append(config.label())
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"reason": reason, "count": len(names), "examples": names[:3]} for reason, names in ordered]
