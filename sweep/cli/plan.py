"""plan: what a search space would run, launching nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, json_option, print_json
from sweep.cli.space_options import SpaceCommand, read, space_options

if TYPE_CHECKING:
    from search_spaces.space import SearchSpace
    from sweep.agenda import Job
    from sweep.config import StudySpec

SHOWN = 10  # arms and reasons on a terminal
SHOWN_JSON = 10_000
# Only for the plan's minutes: output tokens/s of one user, on the slow side for a large model.
ASSUMED_TOKENS_PER_S = 60.0


@click.command(cls=SpaceCommand)
@space_options
@db_option
@json_option
def plan(space: str, db_url: str, as_json: bool, **options: Any) -> None:
    """What SPACE (a YAML or the bare name of a shipped one) would run. Nothing is launched or connected to.

    Where the database holds a study of the same model, also what its measurements let one expect.
    """
    from search_spaces.space import SearchSpace

    spec = read(space, **options)
    found = SearchSpace.from_spec(spec, allow_empty=True)
    document = {**describe(spec, found), "expected": _expected(spec, found, db_url)}
    if as_json:
        print_json(document)
    else:
        _say(document)


def _expected(spec: StudySpec, space: SearchSpace, db_url: str) -> dict[str, Any] | None:
    """What earlier studies let one expect; None where there is none, or no database yet."""
    from storage.store import Store
    from sweep.whatif import forecast

    path = db_url.removeprefix("sqlite:///")
    if path != db_url and not Path(path).is_file():
        return None
    with Store.open(db_url, create=False) as store:
        return forecast(store, spec, space)


def describe(spec: StudySpec, space: SearchSpace) -> dict[str, Any]:
    """The plan as one JSON document; ``minutes`` is the longest host, ``gpu_hours`` the sum."""
    from sweep import pairing

    trials = min(spec.budget.trials or len(space.candidates), len(space.candidates))
    hosts = _queues(spec, space, trials)
    seconds = _launch_seconds(spec)
    stages: Counter[str] = Counter(_kind(job) for host in hosts for job in host.jobs)
    launches = sum(stages.values())
    paired = pairing.choose(spec)
    document: dict[str, Any] = {
        "study": spec.name,
        "engine": spec.engine,
        "simulated": spec.simulated,
        "rules": space.version,
        "distinct": len(space.candidates),
        "duplicates": space.duplicates,
        "infeasible": [
            {"config": arm.as_dict(), "reason": why_not.reason, "rule": why_not.rule}
            for arm, why_not in space.infeasible[:SHOWN_JSON]
        ],
        "infeasible_count": len(space.infeasible),
        "trials": trials,
        "launches": launches,
        "launches_by_stage": dict(stages),
        "seconds_per_launch": round(seconds, 1),
        "minutes": round(max(len(host.jobs) for host in hosts) * seconds / 60, 1),
        "gpu_hours": round(launches * seconds * spec.gpus_per_arm / 3600, 2),
        "pairing": {"mode": paired.mode.value, "why": paired.why},
        "hosts": [
            {
                "name": host.name,
                "kind": host.kind,
                "gpus": list(host.gpus),
                "launches": len(host.jobs),
                "minutes": round(len(host.jobs) * seconds / 60, 1),
                "runs": [f"{_kind(job)}: {job.arm.label()}" for job in host.jobs],
            }
            for host in hosts
        ],
        "known_good": [arm.as_dict() for arm in space.known_good],
        "arms": [arm.as_dict() for arm in _order(space)[:SHOWN_JSON]],
        "notes": [*_of_the_search(spec, space), *_notes(spec)],
    }
    return document


@dataclass(frozen=True, slots=True)
class _Queue:
    name: str
    kind: str
    gpus: tuple[int, ...]
    jobs: tuple[Job, ...]


def _order(space: SearchSpace) -> list[Any]:
    """Known-good ones first, then in the order of the axes; after the first trials the sampler decides."""
    known = dict.fromkeys(space.known_good)
    return [*known, *(arm for arm in space.candidates if arm not in known)]


def _of_the_search(spec: StudySpec, space: SearchSpace) -> list[str]:
    """That a sampler chooses, where one does: what is planned are as many launches, not these."""
    from sweep.proposing import proposer_of

    proposer = proposer_of(spec, space)
    if proposer.enumerates or spec.references_only:
        return []
    if proposer.sampler != "model":
        return [f"sampler {proposer.sampler} chooses what is searched: the configurations listed stand for its choice"]
    text = "the cost model chooses what is searched: the configurations listed stand for its choice"
    if proposer.tolerance is not None:
        text += (
            f". It ends the search when {100 * proposer.tolerance:g} % or less is left to find, mostly after 5 to 20 "
            "launches; the figures above are for all that it may try"
        )
    return [text]


def _queues(spec: StudySpec, space: SearchSpace, trials: int) -> list[_Queue]:
    """What each host would launch if all took equally long: the run's own agenda, stepped without a clock."""
    from sweep import pairing
    from sweep.agenda import HostAgenda, Job, confirm_jobs, engine_default_arm
    from sweep.model import BASELINE, Basis, Role, Stage

    measurement = spec.measurement
    beside = pairing.choose(spec).mode is Basis.RESIDENT
    arms = _order(space)[:trials]
    default = None
    if measurement.engine_default:
        default = engine_default_arm(spec.space.algorithm, list(spec.drafters), spec.known_good_arms)
    queues: list[_Queue] = []
    for place, host in enumerate(spec.hosts):
        agenda = HostAgenda(
            calibrate_launches=max(2 if beside else 1, measurement.calibrate_launches),
            baseline_every=measurement.baseline_every,
            baseline_minutes=measurement.baseline_minutes,
            engine_default=default if place == 0 else None,
            candidate_launches=pairing.candidate_launches(spec),
        )
        jobs: list[Job] = []
        mine = [(number, arm) for number, arm in enumerate(arms) if number % len(spec.hosts) == place]
        while mine:
            reference = agenda.reference(0.0)
            now = [reference] if reference is not None else agenda.candidate(*mine.pop(0), pair=0)
            for job in now:
                jobs += [
                    *([Job(BASELINE, Role.BASELINE, Stage.SEARCH)] if beside and job.trial is not None else ()),
                    job,
                ]
                agenda.done(job, 0.0, measured=True)
            if beside:
                agenda.paired(0.0)
        last = agenda.last()
        jobs += [last] if last is not None else []
        if place == 0 and measurement.confirm_top and arms:
            jobs += confirm_jobs(list(enumerate(arms))[: measurement.confirm_top], measurement.confirm_launches, 0)
        queues.append(_Queue(host.name, host.kind, spec.gpus_of(host), tuple(jobs)))
    return queues


def _kind(job: Job) -> str:
    from sweep.model import Role, Stage

    if job.stage is Stage.CONFIRM:
        return "confirm"
    return "search" if job.role is Role.CANDIDATE else "reference"


def _launch_seconds(spec: StudySpec) -> float:
    """Expected seconds of one launch with its blocks: the stated launch time, then every level's requests in waves."""
    from sweep.bench.workload import load_prompts
    from sweep.model import Stage

    workload = spec.workload
    prompts = load_prompts(workload.prompts, workload.categories, format=workload.format)
    count = len(prompts.for_stage(Stage.SEARCH, spec.seed, workload.per_category))
    waves = sum(
        max(1.0, (workload.requests_per_level or max(count, 2 * level)) / level) if level > 1 else count
        for level in workload.concurrency
    )
    seconds = spec.measurement.expected_launch_s
    seconds += workload.repeats * waves * workload.max_tokens / ASSUMED_TOKENS_PER_S
    return seconds * spec.simulate.time_scale if spec.simulated and spec.simulate else seconds


def _notes(spec: StudySpec) -> list[str]:
    """What is worth knowing before the night: pins we add, flags we do not know, levels the pins cannot serve."""
    from launchers.engines.flags import table_for
    from sweep.config import slots
    from sweep.model import FORCED_ACCEPT_LENGTH, ArmConfig
    from sweep.pins import added_pins, server_args

    table, unknown_version = table_for(spec.engine_version or "")
    notes = [unknown_version] if unknown_version and spec.engine_version else []
    for flag in [*spec.server.args, *spec.space.args]:
        if not table.knows(flag):
            near = table.nearest(flag)
            notes.append(
                f"--{flag} is no option of SGLang {table.version} that is known here"
                + (f"; did you mean --{near}?" if near else "; it is passed on as it stands")
            )
    for pin in added_pins(spec):
        notes.append(f"--{pin.flag} is pinned to {pin.value} on every arm: {pin.why}")
    running = spec.server.args.get("max-running-requests")
    top = max(spec.workload.concurrency)
    if isinstance(running, int) and running < top:
        notes.append(f"--max-running-requests {running} is below concurrency {top}: requests will queue there")
        top = running
    captured = table.normalise(server_args(spec)).get("cuda-graph-bs-decode")
    if isinstance(captured, tuple) and (largest := max(captured, default=top)) < top:
        notes.append(
            f"CUDA graphs are captured for {largest} requests at most (--cuda-graph-bs-decode): with more of them in "
            f"flight, up to {top} here, steps run without a graph"
        )
    if any(ArmConfig(extra=(pin,)).lossy for pin in spec.server.args.items()):  # type: ignore[arg-type]  # a scalar
        notes.append("accept thresholds below 1 are pinned: every candidate may change the answers")
    if spec.server.env.get(FORCED_ACCEPT_LENGTH):
        notes.append(f"{FORCED_ACCEPT_LENGTH} forces the accept length: gains are not those of the drafter")
    return [*notes, *slots.notes(spec)]


def _say(document: dict[str, Any]) -> None:
    say = click.echo
    marked = " (SIMULATED)" if document["simulated"] else ""
    say(f"{document['study']}{marked}: nothing is launched by this command")
    say(
        f"{document['distinct']} distinct configurations, {document['duplicates']} duplicates, "
        f"{document['infeasible_count']} infeasible (rules of SGLang {document['rules']})"
    )
    for rule, count in Counter(item["rule"] for item in document["infeasible"]).most_common(SHOWN):
        reason = next(item["reason"] for item in document["infeasible"] if item["rule"] == rule)
        say(f"  {count} x {rule}: e.g. {reason}")
    stages = ", ".join(f"{count} {stage}" for stage, count in document["launches_by_stage"].items())
    say(
        f"{document['trials']} trials, {document['launches']} launches ({stages}), about "
        f"{document['seconds_per_launch']} s each: {document['minutes']} minutes, {document['gpu_hours']} GPU-hours "
        f"(taking {ASSUMED_TOKENS_PER_S:.0f} tok/s per user)"
    )
    say(f"pairing: {document['pairing']['mode']}: {document['pairing']['why']}")
    for host in document["hosts"]:
        gpus = ",".join(map(str, host["gpus"]))
        say(
            f"host {host['name']} ({host['kind']}, GPUs {gpus}): {host['launches']} launches, {host['minutes']} minutes"
        )
        for line in host["runs"][:SHOWN]:
            say(f"  {line}")
        if len(host["runs"]) > SHOWN:
            say(f"  ... and {len(host['runs']) - SHOWN} more")
    for note in document["notes"]:
        say(f"note: {note}")
    if document["expected"] is not None:
        _say_expected(document["expected"])


def _say_expected(found: dict[str, Any]) -> None:
    known = ", ".join(f"{item['study']} ({item['launches']} trials)" for item in found["studies"])
    gpus = f"on {', '.join(found['gpus'])}" if found["gpus"] else "(that the GPUs are the same is not known)"
    click.echo(f"expected by earlier studies of this model {gpus}, from {known}:")
    render.table(
        ["configuration", "concurrency", "tok/s (95 %)", "gain (95 %)"],
        [
            [
                row["label"],
                str(row["concurrency"]),
                f"{row['predicted']['estimate']:.1f} ({row['predicted']['low']:.1f} .. {row['predicted']['high']:.1f})",
                render.interval(row["gain"]),
            ]
            for row in found["ranking"]
        ],
    )
    if not found["used"]:
        click.echo("The search would not know of them: `--warm-start true` lets it begin there.")
