"""The pins of a study: what the user pinned, and what we add so that arms differ in speculation alone."""

from __future__ import annotations

from launchers.engines.pins import Pin, recommended_pins
from sweep.config import StudySpec
from sweep.model import FlagValue


def added_pins(spec: StudySpec) -> tuple[Pin, ...]:
    """The pins we add, each with its reason. A flag that is an axis counts as pinned."""
    axes = {flag: values[0] for flag, values in spec.space.args.items()}
    given: dict[str, FlagValue] = {**spec.server.args, **axes}
    return recommended_pins(given, spec.workload.concurrency, spec.engine_version or "")


def server_args(spec: StudySpec) -> dict[str, FlagValue]:
    """Server arguments of every arm, the references included."""
    return {**{pin.flag: pin.value for pin in added_pins(spec)}, **spec.server.args}
