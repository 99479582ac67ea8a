"""What a study's hosts and launch requests are made of: from the specification to the settings that travel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from launchers.locks import Holder, known_dead, this_holder
from launchers.servers import Owner
from storage.records import StudyRow
from storage.store import Store
from sweep import pairing
from sweep.agenda import HostAgenda, engine_default_arm
from sweep.bench.workload import PromptSet
from sweep.config import Host, StudySpec, plain_env
from sweep.hostwork import HostState
from sweep.model import ArmConfig, Basis, Role
from sweep.pins import server_args
from sweep.readiness import Deadlines
from sweep.registry import HOST_SETTINGS, load
from sweep.reports import LaunchRequest, OwnerSettings

LEASE_S = 60.0


def next_epoch(before: int = 0) -> int:
    """Greater than every epoch before it, also after a restart."""
    return max(before + 1, int(time.time()))


def host_states(store: Store, study: StudyRow, spec: StudySpec, prompts: PromptSet) -> dict[str, HostState]:
    """Every host of the YAML: how it is reached and owned, and the references it owes."""
    mine = this_holder()
    before_us = None if study.controller is None else Holder.from_dict(study.controller)
    epoch = next_epoch()
    known = [spec.known_arm(entry) for entry in spec.known_good]
    measured = store.measured_launches(study.id, requests=False)
    default = None
    if spec.measurement.engine_default and all(launch.role is not Role.ENGINE_DEFAULT for launch in measured):
        default = engine_default_arm(spec.space.algorithm, list(spec.drafters), known)
    states: dict[str, HostState] = {}
    resident = pairing.choose(spec).mode is Basis.RESIDENT and not spec.references_only
    for place, host in enumerate(spec.hosts):
        before = [launch for launch in measured if launch.host == host.name]
        gpus = spec.gpus_of(host)
        transport = load(HOST_SETTINGS, host.kind)(host)
        settings = OwnerSettings(
            host=host.name,
            kind=host.kind,
            transport=transport,
            python=transport.python,
            activate=host.activate,
            base_dir=host.base_dir,
            machine=host.machine,
            slot=host.slot,
            container=host.container_settings,
            replaces=before_us if before_us is not None and known_dead(before_us) else None,
            gpus=gpus,
            engine=spec.engine,
            engine_args=_engine_args(spec, host, prompts),
            owner=Owner(study=study.name, controller=mine, epoch=epoch),
            lease_s=LEASE_S,
            deadlines=Deadlines(stall_s=spec.measurement.stall_timeout_s, launch_s=spec.measurement.launch_timeout_s),
        )
        # A resumed study begins with one fresh baseline per host; the noise it learnt before is kept.
        calibrate = 1 if before else max(1, spec.measurement.calibrate_launches)
        agenda = HostAgenda(
            calibrate_launches=calibrate,
            baseline_every=spec.measurement.baseline_every,
            baseline_minutes=spec.measurement.baseline_minutes,
            engine_default=default if place == 0 else None,
            candidate_launches=pairing.candidate_launches(spec),
        )
        states[host.name] = HostState(host.name, settings, agenda, gpus[: spec.gpus_per_arm], resident=resident)
    return states


def _engine_args(spec: StudySpec, host: Host, prompts: PromptSet) -> dict[str, Any]:
    if not spec.simulated:
        return {}
    assert spec.simulate is not None
    return {
        "profile": spec.simulate.profile,
        "time_scale": spec.simulate.time_scale,
        "categories": prompts.categories_by_sha1(),
        "seed": spec.seed,
        "host_name": host.name,
    }


def requests_of(spec: StudySpec, secrets: Mapping[str, str]) -> Callable[..., Callable[[str], LaunchRequest]]:
    """(arm, GPUs) -> launch id -> the request: the same pins for every arm."""
    args = server_args(spec)
    env = plain_env(spec)

    def for_arm(arm: ArmConfig, gpus: tuple[int, ...]) -> Callable[[str], LaunchRequest]:
        def request(launch_id: str) -> LaunchRequest:
            return LaunchRequest(
                launch_id=launch_id,
                arm=arm,
                model=spec.model.model_dump(),
                drafters=spec.drafters,
                server_args=args,
                env=env,
                secret_env=secrets,
                gpus=gpus,
            )

        return request

    return for_arm
