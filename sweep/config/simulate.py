"""``--simulate``: the same study on simulated servers. Never implicit, and marked in the spec that is stored."""

from __future__ import annotations

from pathlib import Path

from sweep.config.models import StudySpec
from sweep.config.places import Host, Simulate
from sweep.errors import ConfigError


def simulated(spec: StudySpec, profile: str | None = None, *, trials: int | None = None) -> StudySpec:
    """The study with a simulated engine on local hosts of the same names and GPU counts.

    Profile, time scale and number of trials come from the ``simulate`` block; ``profile`` and ``trials``
    (from the command line) replace the block's own. Raises ConfigError where there is neither, UsageError for a profile
    that is not there.
    """
    from launchers.engines.simulated import profile_text  # not needed by those that only read a study

    block = spec.simulate
    if profile is not None:
        if profile.endswith(".json"):
            profile = str(Path(profile).expanduser().resolve())
        block = Simulate(profile=profile) if block is None else block.model_copy(update={"profile": profile})
    if block is None:
        raise ConfigError(
            f"study {spec.name!r} has no simulate block; add one with a profile, or say --simulate=PROFILE"
        )
    profile_text(block.profile)
    # A folder for each: they share this machine, but each has its own lock, servers and simulated GPUs.
    hosts = tuple(
        Host(
            name=host.name,
            kind="local",
            gpus=spec.gpus_of(host),
            base_dir=f"~/.specsweep/simulated/{host.machine}",
            slot_of=host.slot_of,
        )
        for host in spec.hosts
    )
    trials = trials or block.trials
    budget = spec.budget if trials is None else spec.budget.model_copy(update={"trials": trials})
    return spec.model_copy(
        update={"engine": "simulated", "hosts": hosts, "simulate": block, "budget": budget, "simulated_by_flag": True}
    )
