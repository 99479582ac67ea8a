"""``slots: N``: one host of the YAML as N hosts, each with GPUs of its own.

Everything behind the YAML knows hosts alone: each slot has an owner, a lock, launches, a baseline and a row of its own,
so that what its neighbours cost it is an effect of the host.
"""

from __future__ import annotations

from sweep.config.models import StudySpec
from sweep.config.places import Host


def gpus_offered(spec: StudySpec, host: Host) -> tuple[int, ...]:
    """Indices of the GPUs a host of the YAML offers; as many as its slots take where the YAML leaves them out."""
    return tuple(range(spec.gpus_per_arm * host.slots)) if host.gpus is None else host.gpus


def with_slots(spec: StudySpec) -> StudySpec:
    """The study with ``gpu-a`` of two slots as ``gpu-a.0`` and ``gpu-a.1``, each with the next GPUs of its list."""
    if all(host.slots == 1 for host in spec.hosts):
        return spec
    size = spec.gpus_per_arm
    hosts: list[Host] = []
    for host in spec.hosts:
        if host.slots == 1:
            hosts.append(host)
            continue
        gpus = gpus_offered(spec, host)
        for number in range(host.slots):
            mine = gpus[number * size : (number + 1) * size]
            slot = {"name": f"{host.name}.{number}", "slots": 1, "slot_of": host.name, "gpus": mine}
            hosts.append(host.model_copy(update=slot))
    return spec.model_copy(update={"hosts": tuple(hosts)})


def notes(spec: StudySpec) -> list[str]:
    """What is worth knowing of a study with slots, or of one that leaves GPUs idle, before it runs."""
    said: list[str] = []
    for machine in dict.fromkeys(host.machine for host in spec.hosts):
        parts = [host for host in spec.hosts if host.machine == machine]
        gpus, size = sum(len(spec.gpus_of(host)) for host in parts), spec.gpus_per_arm
        if len(parts) > 1:
            said.append(
                f"host {machine}: {len(parts)} slots of {size} GPU{'s' * (size > 1)} are measured beside each other. "
                "Neighbours share power, memory bandwidth, PCIe and CPU; every trial carries the flag `neighbours` and "
                "is compared with the baseline of its own slot alone"
            )
        elif gpus >= 2 * size:
            said.append(
                f"host {machine}: a server takes {size} of {gpus} GPUs, and one at a time is measured, because "
                "neighbours share power, memory bandwidth, PCIe and CPU and would be measured with it; "
                f"`slots: {gpus // size}` runs that many beside each other"
            )
    return said


def without_slots(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """The hosts of the YAML again, with all GPUs of their slots."""
    whole: dict[str, Host] = {}
    for host in hosts:
        before = whole.get(host.machine)
        gpus = (before.gpus or () if before is not None else ()) + (host.gpus or ())
        changes = {"name": host.machine, "slot_of": None, "gpus": gpus}
        whole[host.machine] = host if host.slot_of is None else host.model_copy(update=changes)
    return tuple(whole.values())
