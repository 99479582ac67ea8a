"""Checks that need the whole study: each problem is a key and what is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

from search_spaces import rules
from sweep import registry
from sweep.bench.workload import FORMATS
from sweep.config.fields import meant_container
from sweep.config.models import StudySpec
from sweep.config.parts import KnownGood
from sweep.config.slots import gpus_offered
from sweep.config.yamlfile import Location
from sweep.errors import ConfigError, UsageError
from sweep.metrics import METRICS, parse_constraint, parse_objective

Problem = tuple[Location, str]


def nearest(word: str, names: Iterable[str]) -> str:
    """`` (nearest valid name: x)``, or the whole list where nothing is near and the list is short."""
    valid = list(names)
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in valid], n=1, cutoff=0.6)
    if close:
        return f" (nearest valid name: {next(name for name in valid if name.lower() == close[0])})"
    return f" (valid names: {', '.join(valid)})" if valid and len(valid) <= 30 else ""


def problems(spec: StudySpec) -> Iterator[Problem]:
    """All that is wrong with a study whose parts are right one by one."""
    yield from _algorithms(spec)
    yield from _known_good(spec)
    yield from _goals(spec)
    yield from _hosts(spec)
    yield from _pairing(spec)
    for flag in spec.space.args:
        if flag in spec.server.args:
            yield ("space", "args", flag), f"--{flag} is also pinned in server.args; it is a pin or an axis, not both"
    if spec.engine not in registry.ENGINES:
        yield ("engine",), f"{spec.engine!r} is no engine{nearest(spec.engine, registry.ENGINES)}"
    if spec.simulated and spec.simulate is None:
        yield ("engine",), "engine simulated needs a simulate block with a profile"
    if spec.simulated and spec.simulate is not None:
        yield from _profile(spec.simulate.profile)
    if spec.workload.format not in FORMATS:
        words = f"{spec.workload.format!r} is no prompt format{nearest(spec.workload.format, FORMATS)}"
        yield ("workload", "format"), words
    prompts = spec.workload.prompts
    if prompts != "builtin" and not Path(prompts).is_file():
        yield ("workload", "prompts"), f"there is no file {prompts!r} (builtin is our own set)"


def _profile(name: str) -> Iterator[Problem]:
    from launchers.engines.simulated import profile_text  # not needed by those that only read a study

    try:
        profile_text(name)
    except UsageError as error:
        yield ("simulate", "profile"), str(error)


def _algorithms(spec: StudySpec) -> Iterator[Problem]:
    valid = rules.algorithm_names()
    asked: list[Problem] = [(("space", "algorithm", i), name) for i, name in enumerate(spec.space.algorithm)]
    asked += [(("known_good", i, "algorithm"), known.algorithm) for i, known in enumerate(spec.known_good)]
    for location, name in asked:
        if name.upper() == "NONE":
            yield location, "no speculation is the baseline, which is measured anyway"
        elif name.upper() not in valid:
            yield location, f"{name!r} is no speculative algorithm of SGLang{nearest(name, valid)}"


def _known_good(spec: StudySpec) -> Iterator[Problem]:
    space = spec.space
    names = [item.name for item in space.draft_model]
    algorithms = [name.upper() for name in space.algorithm]
    for index, known in enumerate(spec.known_good):
        here: Location = ("known_good", index)
        if known.draft_model is not None and known.draft_model not in names:
            words = f"{known.draft_model!r} is no draft model of space.draft_model{nearest(known.draft_model, names)}"
            yield (*here, "draft_model"), words
        if known.algorithm.upper() not in algorithms:
            yield (*here, "algorithm"), f"{known.algorithm!r} is not on the axis space.algorithm; add it there"
        yield from _off_axis(spec, known, here)


def _off_axis(spec: StudySpec, known: KnownGood, here: Location) -> Iterator[Problem]:
    for key in ("num_steps", "topk", "num_draft_tokens", "cuda_graph"):
        value = getattr(known, key)
        if value is not None and value not in getattr(spec.space, key):
            yield (*here, key), f"{value} is not on the axis space.{key}; add it there"
    for flag, value in known.args.items():
        if flag not in spec.space.args:
            yield (*here, "args", flag), f"--{flag} is no axis of space.args; add it there"
        elif value not in spec.space.args[flag]:
            yield (*here, "args", flag), f"{value!r} is not on the axis space.args.{flag}; add it there"


def _goals(spec: StudySpec) -> Iterator[Problem]:
    levels = spec.workload.concurrency
    seen: set[tuple[str, int]] = set()
    for index, item in enumerate(spec.objectives):
        here: Location = ("objectives", index)
        level = item.concurrency or levels[0]
        if item.metric not in METRICS:
            yield (*here, "metric"), f"{item.metric!r} is no metric{nearest(item.metric, METRICS)}"
            continue
        try:
            parse_objective(item.metric, direction=item.direction)
        except ConfigError as error:
            yield (*here, "direction"), str(error)
        if level not in levels:
            yield (*here, "concurrency"), f"{level} is not among workload.concurrency {list(levels)}"
        if (item.metric, level) in seen:
            yield here, f"{item.metric}@{level} is given twice"
        seen.add((item.metric, level))
    named = [item.metric for item in spec.objectives] + [text.split()[0].split("@")[0] for text in spec.constraints]
    if "goodput" in named and spec.workload.slo is None:
        yield ("workload", "slo"), "goodput counts requests that keep workload.slo, and none is given"
    if spec.workload.request_rate is not None and len(levels) > 1:
        yield (
            ("workload", "concurrency"),
            f"with request_rate requests arrive by the clock, and {list(levels)} would all be one load: give one level",
        )
    for index, text in enumerate(spec.constraints):
        try:
            constraint = parse_constraint(text)
        except ConfigError as error:
            yield ("constraints", index), str(error)
            continue
        if constraint.concurrency is not None and constraint.concurrency not in levels:
            yield (
                ("constraints", index),
                f"concurrency {constraint.concurrency} is not among workload.concurrency {list(levels)}",
            )


def _pairing(spec: StudySpec) -> Iterator[Problem]:
    if spec.measurement.pairing == "resident" and (missing := spec.missing_for_resident) is not None:
        yield (
            ("measurement", "pairing"),
            f"resident needs both servers' memory to be pinned, and {missing}; pin server.args max-total-tokens and "
            "sleep-on-idle, or say auto",
        )


def _hosts(spec: StudySpec) -> Iterator[Problem]:
    names = [host.name for host in spec.hosts]
    needed = spec.gpus_per_arm
    for index, host in enumerate(spec.hosts):
        if host.kind not in registry.HOSTS:
            hint = meant_container(host.kind) or nearest(host.kind, registry.HOSTS)
            yield ("hosts", index, "kind"), f"{host.kind!r} is no kind of host{hint}"
        slots = {f"{other.name}.{number}" for other in spec.hosts for number in range(other.slots) if other.slots > 1}
        if host.name in names[:index] or host.name in slots:
            yield ("hosts", index, "name"), f"two hosts are named {host.name!r}"
        offered = gpus_offered(spec, host)
        if host.slots > 1 and len(offered) < needed * host.slots:
            yield (
                ("hosts", index, "slots"),
                f"{host.slots} slots of {needed} GPUs (tp-size x pp-size) take {needed * host.slots}, and host "
                f"{host.name!r} offers {len(offered)}",
            )
        elif host.gpus is not None and len(host.gpus) < needed:
            yield (
                ("hosts", index, "gpus"),
                f"an arm takes {needed} GPUs (tp-size x pp-size) and host {host.name!r} offers {len(host.gpus)}; "
                "an arm runs on one host, several nodes are not supported",
            )
