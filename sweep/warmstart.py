"""What earlier studies of the same model and GPU teach a new one, before it has launched anything.

Their rows enter the cost model as a power prior (Ibrahim & Chen 2000, Statistical Science 15): what another workload on
another day showed counts for ``WEIGHT`` of what this study measures itself. Step times are first brought to this
study's host by the ratio of the two baselines, where both have measured one. Such a row is never a value of this study:
it is not settled, not ranked, not the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage.reading import BlockFigures, block_figures
from storage.records import StudyRow, forced_accept_length
from storage.search_state import WARM_START
from storage.store import Store
from sweep.config import StudySpec
from sweep.errors import UsageError
from sweep.model import ArmConfig, Role, Verdict
from sweep.search.view import Observation, Told
from sweep.told import THROUGHPUT, of_blocks, told

WEIGHT = 0.25
ERROR = 0.025  # relative, of one launch's throughput, where its row carries none

Levels = Mapping[int, float]  # concurrency -> output tokens/s of the baseline


@dataclass(frozen=True, slots=True)
class Source:
    """An earlier study: its rows as the sampler may see them, and the level of its baseline."""

    study: str
    rows: tuple[Told, ...]
    baseline: Levels

    def prior(self, baseline: Levels) -> list[Told]:
        """The rows, weighted down and brought to a host on which the baseline has this level."""
        common = [math.log(baseline[b] / self.baseline[b]) for b in baseline.keys() & self.baseline.keys()]
        scale = math.exp(sum(common) / len(common)) if common else 1.0
        return [_weighted(row, scale) for row in self.rows]


def _weighted(row: Told, scale: float) -> Told:
    seen = {level: _share(one, scale) for level, one in row.observations.items()}
    stderr = {}
    for level, one in seen.items():
        if one.throughput is not None:
            key = f"{THROUGHPUT}@{level}"
            before = row.observations[level].throughput or one.throughput
            error = max(row.stderr.get(key, 0.0) / before, ERROR) / math.sqrt(WEIGHT)
            stderr[key] = error * one.throughput
    return replace(row, values={}, constraints={}, stderr=stderr, observations=seen)


def _share(seen: Observation, scale: float) -> Observation:
    return Observation(
        throughput=None if seen.throughput is None else seen.throughput * scale,
        accept_length=seen.accept_length,
        accept_histogram=tuple(round(n * WEIGHT) for n in seen.accept_histogram) if seen.accept_histogram else None,
    )


def gpus(store: Store, study_id: int) -> frozenset[str]:
    """Names of the GPUs of the study's hosts; empty before one was reached."""
    found = (host.facts.get("gpus", ()) for host in store.hosts(study_id) if host.facts)
    return frozenset(gpu["name"] for several in found for gpu in several)


def expected_gpus(store: Store, spec: StudySpec) -> frozenset[str]:
    """What hosts of these names had in earlier studies, the newest word of each; empty where none is known."""
    found: dict[str, frozenset[str]] = {}
    wanted = {host.name for host in spec.hosts}
    for study in store.studies():
        for host in store.hosts(study.id):
            if host.name in wanted and host.facts and study.simulated == spec.simulated:
                found.setdefault(host.name, frozenset(gpu["name"] for gpu in host.facts.get("gpus", ())))
    return frozenset().union(*found.values())


def unlike(store: Store, study: StudyRow, spec: StudySpec, mine: frozenset[str]) -> str | None:
    """Why the study's rows say nothing about ``spec`` on GPUs named ``mine`` (empty: not known); None where they do."""
    theirs = study.spec
    if theirs.get("engine") != spec.engine:
        return f"its engine is {theirs.get('engine')}, here it is {spec.engine}"
    model = {key: (theirs.get("model") or {}).get(key) for key in ("path", "revision")}
    if model != {"path": spec.model.path, "revision": spec.model.revision}:
        return f"its target model is {model['path']}, here it is {spec.model.path}"
    forced = forced_accept_length(spec.server.env)
    if study.forced_accept_length != forced:
        return f"its accept length was {_decided_by(study.forced_accept_length)}, here it is {_decided_by(forced)}"
    if spec.simulated and (theirs.get("simulate") or {}).get("profile") != (spec.simulate and spec.simulate.profile):
        return "it was simulated with another profile"
    on = gpus(store, study.id)
    if mine and on != mine:
        return f"its GPUs are {', '.join(sorted(on)) or 'not known'}, here they are {', '.join(sorted(mine))}"
    return None


def _decided_by(forced: float | None) -> str:
    return "left to the drafter" if forced is None else f"forced to {forced:g}"


def sources(store: Store, spec: StudySpec, mine: frozenset[str], *, before: float | None = None) -> list[Source]:
    """The studies that ``spec.warm_start`` asks for, the newest first: all alike where it is true. ``before``: only
    what was created before this time. Raises UsageError for a study asked for by name that is not alike."""
    if isinstance(spec.warm_start, str):
        study = store.study(spec.warm_start)
        if (why := unlike(store, study, spec, mine)) is not None:
            raise UsageError(f"warm_start: study {study.name!r} teaches nothing here: {why}")
        return [source(store, study, spec)]
    return alike(store, spec, mine, before=before)


def alike(store: Store, spec: StudySpec, mine: frozenset[str], *, before: float | None = None) -> list[Source]:
    """Every study of the same engine, model and GPUs that measured a candidate, the newest first."""
    found = [
        source(store, study, spec)
        for study in store.studies()
        if (before is None or study.created_at < before) and unlike(store, study, spec, mine) is None
    ]
    return [one for one in found if one.rows]


def source(store: Store, study: StudyRow, spec: StudySpec) -> Source:
    """What one study says to ``spec``. Failures stay in it: what did not fit there may not fit here."""
    blocks = block_figures(store, study.id)
    rows = told(store.trials(study.id), of_blocks(blocks))
    kept = [row for row in rows if row.verdict is not None and not row.verdict.requeue]
    theirs = {item["name"]: item["path"] for item in study.spec["space"]["draft_model"]}
    names = {drafter.path: name for name, drafter in spec.drafters.items()}
    useful = [row for row in kept if row.observations or row.verdict is not Verdict.COMPLETE]
    return Source(study.name, tuple(_renamed(row, theirs, names) for row in useful), baseline(blocks))


def _renamed(row: Told, theirs: Mapping[str, str], names: Mapping[str, str]) -> Told:
    """Drafters are the same where their paths are: ``theirs`` maps names to paths, ``names`` paths to our names."""

    def ours(config: ArmConfig) -> ArmConfig:
        path = theirs.get(config.draft_model or "")
        return config if path is None else replace(config, draft_model=names.get(path, path))

    return replace(row, config=ours(row.config), effective=None if row.effective is None else ours(row.effective))


def baseline(blocks: Sequence[BlockFigures]) -> dict[int, float]:
    """Mean output tokens/s of the first baseline launch at each concurrency: fixed from then on, so that a resumed
    study sees the same prior."""
    mine = [b for b in blocks if b.role == Role.BASELINE and b.invalid is None]
    first = min((b.launch_id for b in mine), default=None)
    levels: dict[int, list[float]] = {}
    for block in mine:
        if block.launch_id == first and block.figures[THROUGHPUT]:
            levels.setdefault(block.concurrency, []).append(block.figures[THROUGHPUT] or 0.0)
    return {level: sum(values) / len(values) for level, values in levels.items()}


class WarmStart:
    """The prior of one study. Which studies it is made of is chosen once, at the start, and kept as an event."""

    def __init__(self, store: Store, study: StudyRow, spec: StudySpec) -> None:
        self._store, self._study, self._spec = store, study, spec
        self._sources: list[Source] = []
        self.baseline: Levels = {}
        kept = store.events(study.id, kind=WARM_START)
        self._chosen = [item["study"] for item in kept[0].detail["studies"]] if kept else None
        if self._chosen:
            there = {row.name: row for row in store.studies()}
            self._sources = [source(store, there[name], spec) for name in self._chosen if name in there]

    def begin(self) -> dict[str, Any] | None:
        """Once the hosts are known: choose. What to keep as an event, None where it was chosen before."""
        if self._chosen is not None:
            return None
        mine = gpus(self._store, self._study.id)
        self._sources = sources(self._store, self._spec, mine, before=self._study.created_at)
        self._chosen = [one.study for one in self._sources]
        return {"studies": [{"study": one.study, "launches": len(one.rows)} for one in self._sources]}

    def prior(self) -> list[Told]:
        """The rows of all chosen studies, at this study's baseline where it has one."""
        if self._sources and not self.baseline:
            self.baseline = baseline(block_figures(self._store, self._study.id))
        return [row for one in self._sources for row in one.prior(self.baseline)]

    @property
    def words(self) -> str:
        """``warm start from night``; empty without a source."""
        return f"warm start from {', '.join(self._chosen)}" if self._chosen else ""
