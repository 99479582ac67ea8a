"""Do the numbers hold? Studies with a known truth through the real analysis, beside a tuner that picks by mean.

    python benchmarks/truth.py [--fast] [--json] [--studies N] [--seed N] [--specbundle CSV]

Every study runs the runner's plan (A/A, engine default, 30 candidates of one launch each, a baseline every 4, ABBA
confirm of the top 2) over generated request rows. Three kinds of study: ``none`` (no arm differs from the baseline),
``gains`` (arms differ) and ``gap`` (one arm leads by more than twice the minimum detectable gain). Half are measured at
concurrency 1 (the prompt is the unit), half at 8 (the round is); launches vary by 0.5, 1 or 2 %; noise is heavy-tailed
with half-speed blocks; a third each has a step, a thermal sawtooth or neither; one or two hosts. All of it is repeated
with a ramp of 5 % per hour.

Printed: ``aa_false_positive`` (share of ``none`` studies in which any arm is called faster or slower), ``coverage``
(share of 95 % intervals of gains over the baseline at the objective that contain the true gain: every ranked arm's
reported gain, and beside a confirmed one its search gain, so about 30 of the search and 2 of the confirm stage a
study), ``winner_bias`` (mean of reported minus true gain of the arm named first), ``wrong_winner`` (the arm named first
is worse than the truly best by more than the tie band, and that one is not in the declared tie), ``tie_rate`` (``gap``
studies whose first rank is shared or not faster than the baseline). ``--json`` prints one object alone; without it a
table comes first, with what the object leaves out (naive under the ramp, coverage by stage). ``--seed`` draws other
worlds: 0, the default, are those on which the priors were looked at.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from replay import SPECBUNDLE, Group, groups, replay
from worlds import Bench, World, again, confirm, search

from sweep.analysis import AnalysisSettings, StudyAnalysis, analyse_figures, extract
from sweep.model import Comparison, Objective, Role, Stage

ARMS = 30
SETTINGS = AnalysisSettings(metrics=("output_throughput",))
KINDS = ("none", "gains", "gap")
FAST_STUDIES = 170  # of each kind, without and with the ramp: 1,020 in all


@dataclass(frozen=True)
class Outcome:
    """What one study came to."""

    kind: str
    drifting: bool
    false_positive: bool
    covered: int
    intervals: int
    confirm_covered: int  # of these, the intervals from the confirm stage
    confirm_intervals: int
    winner_bias: float
    wrong: bool
    regret: float
    tie: bool | None  # None: the true gap is under twice the stated minimum detectable gain
    naive_wrong: bool
    naive_bias: float


def world(kind: str, seed: int, drifting: bool, base: int = 0) -> World:
    """The ``seed``-th world of a kind; ``base`` gives another, independent series of them."""
    rng = np.random.default_rng([seed, KINDS.index(kind), drifting, base])
    launch_sd = (0.005, 0.01, 0.02)[seed % 3]
    disturbance = (seed // 3) % 3
    if kind == "none":
        gains = np.zeros(ARMS)
    else:
        gains = rng.normal(0.03, 0.06, ARMS)
        if kind == "gap":
            # Beyond twice what a study of this noise states as detectable (about 4.5 launch standard deviations).
            best = int(gains.argmax())
            gains[best] = np.sort(gains)[-2] + rng.uniform(1.0, 1.6) * (0.03 + 9 * launch_sd)
    return World(
        seed=int(rng.integers(2**31)),
        log_gain=tuple(float(g) for g in gains),
        concurrency=(1, 8)[seed % 2],
        launch_sd=launch_sd,
        ramp_per_hour=0.05 if drifting else (0.0, 0.01)[(seed // 9) % 2],
        step=0.03 if disturbance == 1 else 0.0,
        sawtooth=0.015 if disturbance == 2 else 0.0,
        hosts=1 + (seed // 2) % 2,
    )


def run(kind: str, seed: int, drifting: bool, base: int = 0) -> Outcome:
    """One study: search, measure again what was not comparable, confirm, read the ranking."""
    bench = Bench(world(kind, seed, drifting, base))
    objective = Objective("output_throughput", bench.world.concurrency, True)
    kept: dict[int, Any] = {}

    def look() -> StudyAnalysis:
        for launch in bench.launches:
            if launch.launch_id not in kept:
                kept[launch.launch_id] = extract(launch, ("output_throughput",))
        return analyse_figures(list(kept.values()), bench.configs(), [objective], SETTINGS)

    search(bench)
    naive_arm, naive_gain = naive(bench)
    found = look()
    if found.not_comparable:
        again(bench, list(found.not_comparable))
        found = look()
    confirm(bench, found.to_confirm(objective, 2))
    found = look()
    return judge(kind, drifting, bench.world, found, objective, naive_arm, naive_gain)


def judge(
    kind: str,
    drifting: bool,
    truth: World,
    found: StudyAnalysis,
    objective: Objective,
    naive_arm: int,
    naive_gain: float,
) -> Outcome:
    true = np.expm1(np.array(truth.log_gain))
    ranking = found.ranking[objective.key]
    rows = [r.result for r in ranking]
    first = [r.trial for r in ranking if r.rank == 1]
    best = int(true.argmax())
    regret = float(true[best] - true[first[0]])
    gap = float(np.sort(true)[-1] - np.sort(true)[-2])
    detectable = next(n.minimum_detectable_gain for n in found.noise if n.concurrency == objective.concurrency)
    lead = ranking[0].result
    # Every interval that is printed, the search gain beside a confirmed one included: without it the extremes of the
    # search would be missing and the rest look too well covered.
    gains = [(g, true[r.trial]) for r in rows if r.trial is not None for g in (r.gain, r.search_gain) if g is not None]
    confirmed = [(g, t) for g, t in gains if g.stage is Stage.CONFIRM]
    return Outcome(
        kind=kind,
        drifting=drifting,
        false_positive=any(r.comparison in (Comparison.FASTER, Comparison.SLOWER) for r in rows),
        covered=sum(g.low <= t <= g.high for g, t in gains),
        intervals=len(gains),
        confirm_covered=sum(g.low <= t <= g.high for g, t in confirmed),
        confirm_intervals=len(confirmed),
        winner_bias=(lead.gain.estimate if lead.gain else math.nan) - float(true[first[0]]),
        wrong=regret > SETTINGS.tie_band and best not in first,
        regret=regret,
        tie=(len(first) > 1 or lead.comparison is Comparison.TIE) if gap >= 2 * detectable else None,
        naive_wrong=bool(true[best] - true[naive_arm] > SETTINGS.tie_band),
        naive_bias=float(naive_gain - true[naive_arm]),
    )


def naive(bench: Bench) -> tuple[int, float]:
    """A tuner that measures the baseline once and each arm once and takes the highest mean throughput."""

    def mean(launch: Any) -> float:
        return float(np.mean([block.output_tokens / block.elapsed_s for block in launch.blocks]))

    base: dict[str, float] = {}
    best, best_gain = -1, -math.inf
    for launch in bench.launches:
        if launch.role is Role.BASELINE:
            base.setdefault(launch.host, mean(launch))
        elif launch.role is Role.CANDIDATE and launch.stage is Stage.SEARCH:
            gain = mean(launch) / base[launch.host] - 1
            if gain > best_gain:
                best, best_gain = int(launch.trial or 0), gain
    return best, best_gain


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The five figures over all kinds of study that they concern."""
    none = [o for o in outcomes if o.kind == "none"]
    gains = [o for o in outcomes if o.kind == "gains"]
    ties = [o.tie for o in outcomes if o.kind == "gap" and o.tie is not None]
    return {
        "aa_false_positive": float(np.mean([o.false_positive for o in none])),
        "coverage": sum(o.covered for o in outcomes) / sum(o.intervals for o in outcomes),
        "winner_bias": float(np.mean([o.winner_bias for o in gains])),
        "wrong_winner": float(np.mean([o.wrong for o in gains])),
        "tie_rate": float(np.mean(ties)) if ties else math.nan,
    }


def naive_summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    gains = [o for o in outcomes if o.kind == "gains"]
    return {
        "wrong_winner": float(np.mean([o.naive_wrong for o in gains])),
        "winner_bias": float(np.mean([o.naive_bias for o in gains])),
    }


# ---------------------------------------------------------------------------------------------- command line


def _run(job: tuple[str, int, bool, int]) -> Outcome:
    return run(*job)


def _replay(job: tuple[Group, int]) -> tuple[bool, bool, bool]:
    return replay(*job)


@dataclass(frozen=True)
class Measured:
    """All outcomes of one call: studies without and with the ramp, and (ours wrong, ours tie, naive wrong) replays."""

    calm: Sequence[Outcome]
    ramp: Sequence[Outcome]
    replayed: Sequence[tuple[bool, bool, bool]]
    groups: int

    def figures(self) -> dict[str, Any]:
        """The object that is printed last."""
        shares = [float(np.mean(column)) for column in zip(*self.replayed, strict=True)]
        return {
            **summary(self.calm),
            "with_drift": summary(self.ramp),
            "naive": naive_summary(self.calm),
            "specbundle": dict(zip(("ours_wrong", "ours_tie", "naive_wrong"), shares, strict=True)),
        }


def measure(studies: int, repeats: int, specbundle: Path, workers: int, base: int = 0) -> Measured:
    """``studies`` of each kind without and with the ramp; ``repeats`` of every recorded group."""
    jobs = [(kind, seed, drifting, base) for drifting in (False, True) for seed in range(studies) for kind in KINDS]
    recorded = groups(specbundle)
    replays = [(g, 1_000_000 * base + 1000 * k + r) for k, g in enumerate(recorded) for r in range(repeats)]
    with ProcessPoolExecutor(workers) as pool:
        outcomes = list(pool.map(_run, jobs, chunksize=8))
        replayed = list(pool.map(_replay, replays, chunksize=8))
    calm = [o for o in outcomes if not o.drifting]
    return Measured(calm, [o for o in outcomes if o.drifting], replayed, len(recorded))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Known truth through the real analysis.")
    parser.add_argument("--fast", action="store_true", help="fewer studies; ends within five minutes on two cores")
    parser.add_argument("--json", action="store_true", help="one JSON object alone, without the table before it")
    parser.add_argument("--studies", type=int, help="studies of each kind, with and without drift")
    parser.add_argument("--replays", type=int, help="replays of each recorded group")
    parser.add_argument("--seed", type=int, default=0, help="another series of worlds")
    parser.add_argument("--specbundle", type=Path, default=SPECBUNDLE, help="CSV of recorded groups")
    options = parser.parse_args(argv)
    started = time.perf_counter()
    studies = options.studies or (FAST_STUDIES if options.fast else 400)
    repeats = options.replays or (2 if options.fast else 10)
    found = measure(studies, repeats, options.specbundle, min(os.cpu_count() or 1, 8), options.seed)
    if not options.json:
        table(found, time.perf_counter() - started)
    sys.stdout.write(json.dumps(found.figures()) + "\n")


def table(found: Measured, seconds: float) -> None:
    """Everything in words, also what the object leaves out."""
    rows = [
        ("false positives, no effect", "aa_false_positive"),
        ("coverage of 95 % intervals", "coverage"),
        ("bias of the winner's gain", "winner_bias"),
        ("wrong winner", "wrong_winner"),
        ("tie at >= 2 x detectable gain", "tie_rate"),
    ]
    sides = (found.calm, found.ramp)
    columns = [*map(summary, sides), *map(naive_summary, sides)]
    sys.stdout.write(f"{'':32}{'calm':>10}{'5 %/hour':>10}{'naive':>10}{'naive 5 %/h':>12}\n")
    for title, key in rows:
        cells = [f"{column[key] * 100:.2f} %" if key in column else "" for column in columns]
        sys.stdout.write(f"{title:32}{cells[0]:>10}{cells[1]:>10}{cells[2]:>10}{cells[3]:>12}\n")
    for name, outcomes in zip(("calm", "5 %/hour"), sides, strict=True):
        covered, every = sum(o.confirm_covered for o in outcomes), sum(o.confirm_intervals for o in outcomes)
        resolvable = sum(o.tie is not None for o in outcomes if o.kind == "gap")
        regret = float(np.mean([o.regret for o in outcomes if o.kind == "gains"]))
        biases = [o.winner_bias for o in outcomes if o.kind == "gains"]
        error = float(np.std(biases)) / math.sqrt(len(biases))
        sys.stdout.write(
            f"{name}: confirm stage alone covers {covered / every:.1%} of {every} intervals; "
            f"{resolvable} gaps of at least twice the detectable gain; mean regret {regret:.2%}; "
            f"the bias has a standard error of {error:.2%}\n"
        )
    recorded = found.figures()["specbundle"]
    sys.stdout.write(
        f"recorded groups: wrong {recorded['ours_wrong']:.1%}, tie {recorded['ours_tie']:.1%}, naive wrong "
        f"{recorded['naive_wrong']:.1%} ({found.groups} groups x {len(found.replayed) // found.groups})\n"
        f"{len(found.calm) + len(found.ramp)} studies in {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
