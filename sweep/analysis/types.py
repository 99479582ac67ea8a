"""What the analysis is asked and what it answers. All gains are fractions and positive is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sweep.metrics import Slo
from sweep.model import ArmGain, Flag, Objective

BASELINE_REFERENCE = "baseline"
ENGINE_DEFAULT_REFERENCE = "engine_default"


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """Choices of method; docs/measurement.md gives the reason for each default.

    ``prior_sd`` (fraction) and ``prior_df``: what is believed of launch-to-launch variation before any was measured.
    ``launch_effects=False`` says that every arm has one launch and none will be added: the rounds are the unit and
    the intervals speak of these launches alone.
    """

    alpha: float = 0.05
    tie_band: float = 0.01
    bracket_tolerance: float = 0.05
    prior_sd: float = 0.008
    prior_df: float = 2.0
    power: float = 0.8
    wanted_gain: float = 0.03
    launch_effects: bool = True
    metrics: tuple[str, ...] = ("output_throughput", "ttft_p50", "tpot_p50")
    ignore_eos: bool = False
    slo: Slo | None = None  # what goodput is reckoned by
    shared_prefix_tokens: int | None = None  # None: learnt from the baseline on the same prompts
    clock_tolerance: float = 0.03
    temperature_tolerance_c: float = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A validity gate that fired on a trial: the flag and the numbers or log line that made it fire."""

    flag: Flag
    evidence: str
    launch_id: int

    def as_dict(self) -> dict[str, Any]:
        return {"flag": self.flag.value, "evidence": self.evidence, "launch": self.launch_id}


@dataclass(frozen=True, slots=True)
class Ranked:
    """A line of the ranking. Equal ``rank`` is a tie; the confirmed, then the cheaper arm stands first in it."""

    rank: int
    trial: int
    result: ArmGain
    confirmed: bool
    tie_size: int = 1  # arms of this rank, this one included

    def as_dict(self) -> dict[str, Any]:
        """Without the gain, which is a row of its own."""
        return {"rank": self.rank, "trial": self.trial, "confirmed": self.confirmed, "tie_size": self.tie_size}


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What one cell can resolve. Standard deviations are of log figures, that is fractions.

    ``between_launch_sd``: launch to launch, drift removed. ``within_launch_sd``: unit (round or request) to unit.
    ``launch_mean_sd``: of a launch's mean, both together. ``minimum_detectable_gain``: found with probability
    ``power`` at two-sided ``alpha`` by one search launch per candidate. ``launches_needed`` of candidate and baseline
    each resolve ``wanted_gain``.
    """

    metric: str
    concurrency: int
    between_launch_sd: float
    within_launch_sd: float
    launch_mean_sd: float
    df: float
    minimum_detectable_gain: float
    wanted_gain: float
    launches_needed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BaselinePoint:
    """One baseline launch: Unix time and level (metric's unit)."""

    launch_id: int
    at: float
    level: float


@dataclass(frozen=True, slots=True)
class Drift:
    """The baseline over time on one host. ``per_hour`` is a fraction with its standard error."""

    host: str
    metric: str
    concurrency: int
    points: tuple[BaselinePoint, ...]
    per_hour: float
    per_hour_se: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Crossover:
    """The concurrency at which an arm's gain falls through 0.

    ``estimate`` None: no crossing among the measured levels, ``why`` says on which side it stays. ``low`` / ``high``
    None: the interval is open towards the lowest / highest measured level.
    """

    trial: int
    estimate: float | None
    low: float | None
    high: float | None
    why: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EnvelopeStep:
    """Use ``trial`` (None: no speculation) from ``from_concurrency`` up to ``to_concurrency`` (None: and above)."""

    trial: int | None
    from_concurrency: float
    to_concurrency: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an arm gains or loses at one concurrency: 1 + gain = accept_length / step_cost.

    ``step_ms`` is one verify step, ``baseline_step_ms`` one plain decode step, prefill included in both;
    ``step_cost`` their ratio. ``from_acceptance`` and ``from_step_cost`` are the two logs that add up to
    log(1 + gain). ``categories`` are the gains per prompt category.
    """

    trial: int
    concurrency: int
    accept_length: float
    break_even: float
    step_ms: float
    baseline_step_ms: float
    step_cost: float
    from_acceptance: float
    from_step_cost: float
    categories: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StudyAnalysis:
    """Everything that may be said about a study. ``gains`` holds every cell; the rest is read off it."""

    objectives: tuple[Objective, ...]
    gains: tuple[ArmGain, ...]
    ranking: Mapping[str, tuple[Ranked, ...]]  # objective key -> best first
    noise: tuple[NoiseFloor, ...]
    drift: tuple[Drift, ...]
    crossovers: tuple[Crossover, ...]
    envelope: tuple[EnvelopeStep, ...]
    explanations: tuple[Explanation, ...]
    findings: Mapping[int, tuple[Finding, ...]]  # trial -> gates that fired
    not_comparable: Mapping[int, str]  # trial -> why; to be measured again
    unconfirmed: Mapping[str, tuple[int, ...]]  # objective key -> trials tied for first that have no confirm launch
    baseline_values: Mapping[str, float]  # objective key -> the baseline's level in the metric's unit
    sentences: tuple[str, ...]
    _index: Mapping[tuple[int | None, str, int, str | None, str], ArmGain] = field(default_factory=dict, repr=False)

    def find(
        self,
        trial: int | None,
        metric: str,
        concurrency: int,
        category: str | None = None,
        reference: str = BASELINE_REFERENCE,
    ) -> ArmGain | None:
        """One cell; ``trial`` None is the engine default. None where it was not measured."""
        return self._index.get((trial, metric, concurrency, category, reference))

    def to_confirm(self, objective: Objective, count: int) -> tuple[int, ...]:
        """The ``count`` trials to launch in the confirm stage: the highest search gains, confirmed or not.

        By the search's gain, not by rank: in a tie the cheaper arm stands first in the ranking, but what is confirmed
        should be what most likely leads, and a confirm stage cut short must choose the same arms again.
        """
        found = [(r.result.search_gain or r.result.gain, r.trial) for r in self.ranking.get(objective.key, ())]
        ordered = sorted((-gain.estimate, trial) for gain, trial in found if gain is not None)
        return tuple(trial for _, trial in ordered[:count])

    def value(self, trial: int, objective: Objective) -> tuple[float, float] | None:
        """(drift-corrected value, standard error) in the metric's unit, for a sampler; None where not comparable."""
        found = self.find(trial, objective.metric, objective.concurrency)
        if found is None or found.value is None or found.value_se is None:
            return None
        return found.value, found.value_se

    def flags(self, trial: int) -> tuple[Flag, ...]:
        """The trial's flags from gates and brackets, without repeats."""
        flags = [f.flag for f in self.findings.get(trial, ())]
        if trial in self.not_comparable:
            flags.append(Flag.NOT_COMPARABLE)
        return tuple(dict.fromkeys(flags))

    def as_dict(self) -> dict[str, Any]:
        """JSON form without the cells of ``gains``, which are rows of their own; ``ties`` are what these leave out."""
        return {
            "objectives": [o.key for o in self.objectives],
            "ranking": {key: [r.as_dict() for r in rows] for key, rows in self.ranking.items()},
            "noise": [n.as_dict() for n in self.noise],
            "drift": [d.as_dict() for d in self.drift],
            "crossover": [c.as_dict() for c in self.crossovers],
            "envelope": [e.as_dict() for e in self.envelope],
            "explanations": [e.as_dict() for e in self.explanations],
            "findings": {str(trial): [f.as_dict() for f in found] for trial, found in self.findings.items()},
            "not_comparable": {str(trial): why for trial, why in self.not_comparable.items()},
            "unconfirmed": {key: list(trials) for key, trials in self.unconfirmed.items()},
            "baseline": {"by_objective": dict(self.baseline_values)},
            "ties": [
                {
                    "trial": row.trial,
                    "metric": row.metric,
                    "concurrency": row.concurrency,
                    "category": row.category,
                    "reference": row.reference,
                    **row.tie.as_dict(),
                }
                for row in self.gains
                if row.tie is not None
            ],
            "sentences": list(self.sentences),
        }
