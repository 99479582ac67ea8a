"""What `sweep doctor` looks at on every host, through the host's own supervisor."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from launchers.hosts.ssh_config import resolve
from launchers.locks import Owner, this_holder
from launchers.servers import HostServers, ModelFiles
from sweep.cli.byte_code import byte_code
from sweep.cli.check import Check
from sweep.cli.host_comparison import Looked, named_models
from sweep.config import plain_env
from sweep.errors import HostError, SweepError
from sweep.model import HostFacts
from sweep.registry import ENGINES, HOST_SETTINGS, HOSTS, load

if TYPE_CHECKING:
    from sweep.config import Host, StudySpec

LOW_DISK_MIB = 10 * 1024  # kernel caches, logs and a drafter fit; below that a long study may not
CLOCK_S = 2.0  # nothing we measure compares two clocks; people who read logs do


def servers_of(host: Host, engine: str, engine_args: dict[str, Any], gpus: int, study: str) -> tuple[HostServers, Any]:
    """The host's servers and the engine whose tools are used there."""
    made = load(ENGINES, engine)(**engine_args)
    transport = load(HOSTS, host.kind)(load(HOST_SETTINGS, host.kind)(host))
    servers = HostServers(
        transport,
        tools=made.tools(gpus),
        python=host.python,
        base_dir=host.base_dir,
        owner=Owner(study, this_holder()),
        activate=host.activate,
        container=host.container_settings,
        slot=host.slot,
    )
    return servers, made


def engine_args(spec: StudySpec | None) -> dict[str, Any]:
    if spec is None or not spec.simulated or spec.simulate is None:
        return {}
    return {"profile": spec.simulate.profile, "time_scale": spec.simulate.time_scale}


def check_hosts(hosts: Sequence[Host], spec: StudySpec | None) -> list[Looked]:
    """Every host, all at once."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(lambda host: check_host(host, spec), hosts))


def check_host(host: Host, spec: StudySpec | None) -> Looked:
    """Everything a study needs of a host. What follows from a failed step is left out."""
    wanted = spec.gpus_of(host) if spec else (host.gpus or ())
    engine = spec.engine if spec else "sglang"
    key = [ssh_key(host)] if host.kind == "ssh" else []
    try:
        servers, made = servers_of(host, engine, engine_args(spec), max(wanted, default=-1) + 1, "doctor")
        try:
            python = host.python or "python3"
            facts = servers.inspect(made.version_command(python))
            env = plain_env(spec) if spec else {}
            # Simulated models have no files.
            models = {} if spec is None or spec.simulated else servers.models([path for _, path in named_models(spec)])
            checks = [
                *key,
                *_reached(facts),
                *_gpus(facts, wanted, spec),
                *_software(facts, engine),
                *byte_code(servers, python, made.packages, env, container=host.container is not None),
                *_rest(servers, facts),
                *(_model(name, models[path]) for name, path in named_models(spec) if path in models),
            ]
            return Looked(host, checks, facts, models)
        finally:
            servers.close()
    except HostError as error:
        return Looked(host, [*key, Check("connection", "fail", str(error))])
    except SweepError as error:
        return Looked(host, [*key, Check("settings", "fail", str(error))])


def _reached(facts: HostFacts) -> list[Check]:
    clock = f"{facts.clock_offset_s:+.2f} s against ours"
    slow = abs(facts.clock_offset_s) > CLOCK_S
    return [
        Check(
            "connection", "ok", f"{facts.user}@{facts.hostname} ({facts.kind}), round trip {facts.rtt_s * 1000:.1f} ms"
        ),
        Check("python", "ok", f"{facts.python_version} ({facts.python})"),
        Check("clock", "warn" if slow else "ok", clock, "Let the host keep time (chrony, ntpd)." if slow else ""),
    ]


def _gpus(facts: HostFacts, wanted: Sequence[int], spec: StudySpec | None) -> list[Check]:
    present = {gpu.index: gpu for gpu in facts.gpus}
    missing = [index for index in wanted if index not in present]
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in facts.gpus) or "none"
    driver = f", driver {facts.driver_version}" if facts.driver_version else ""
    if missing:
        advice = f"GPU {missing} asked for; mend `gpus:` of the host, or look at nvidia-smi there."
        checks = [Check("gpus", "fail", names + driver, advice)]
    elif not facts.gpus:
        checks = [Check("gpus", "warn", names, "nvidia-smi was not found there.")]
    else:
        checks = [Check("gpus", "ok", names + driver)]
    if spec and len(wanted) < spec.gpus_per_arm:
        advice = f"One server takes {spec.gpus_per_arm} GPUs (tp-size x pp-size)."
        checks.append(Check("gpus for one server", "fail", str(len(wanted)), advice))
    mine = [gpu for index, gpu in present.items() if index in wanted or not wanted]
    if mine:
        free = ", ".join(
            f"{gpu.index}: {gpu.memory_total_mib - gpu.memory_used_mib} of {gpu.memory_total_mib}" for gpu in mine
        )
        checks.append(Check("free GPU memory (MiB)", "ok", free))
    uuids = {gpu.uuid for gpu in mine}
    foreign = [p for p in facts.gpu_processes if p.gpu_uuid in uuids and not p.ours]
    if foreign:
        words = ", ".join(f"pid {p.pid} of {p.user or '?'} ({p.command or '?'}, {p.memory_mib} MiB)" for p in foreign)
        advice = "A study does not start beside other processes on its GPUs, and does not end them."
        checks.append(Check("other GPU processes", "fail", words, advice))
    elif mine:
        checks.append(Check("other GPU processes", "ok", "none"))
    return checks


def _software(facts: HostFacts, engine: str) -> list[Check]:
    if facts.engine_version is None:
        advice = f"{engine} cannot be imported there: set the host's `python:` or `activate:` to its environment."
        return [Check("engine", "fail", f"no {engine}", advice)]
    return [Check("engine", "ok", f"{engine} {facts.engine_version}")]


def _rest(servers: HostServers, facts: HostFacts) -> list[Check]:
    low = facts.disk_free_mib < LOW_DISK_MIB
    checks = [
        Check("disk", "warn" if low else "ok", f"{facts.disk_free_mib} MiB free", "Make room." if low else ""),
        Check("port", "ok", f"{servers.free_port()} is free"),
    ]
    holder = servers.holder()
    if holder is None:
        checks.append(Check("lock", "ok", "nobody holds the host"))
    else:
        checks.append(Check("lock", "warn", f"held by {holder}", f"`sweep stop {holder.study}` ends that study."))
    return checks


def _model(name: str, files: ModelFiles) -> Check:
    if files.folder is None:
        if files.path.startswith(("/", "~", ".")):
            return Check(name, "fail", f"{files.path} is not there", "Mend the path in the YAML, or copy the model.")
        advice = "The first server will download it, if the host can reach the hub."
        return Check(name, "warn", f"{files.path} is not in the host's cache", advice)
    if files.config is None:
        return Check(name, "fail", f"{files.folder} has no config.json", "Is it a model's folder?")
    return Check(
        name, "ok", f"{files.architecture or 'unknown architecture'}, config {files.config_hash} in {files.folder}"
    )


def ssh_key(host: Host) -> Check:
    """What lets us in there: key files as `ssh` would choose them, or the agent."""
    name = "ssh key"
    try:
        found = resolve(host.ssh or host.host or host.name, user=host.user, port=host.port, key=host.key)
    except HostError as error:
        return Check(name, "fail", str(error), "Mend `key:` of the host, or ~/.ssh/config.")
    open_ones = [path for path in found.keys if stat.S_IMODE(path.stat().st_mode) & 0o077]
    said = ", ".join([*map(str, found.keys), *(["the agent"] if found.agent else [])])
    if open_ones:
        advice = f"Others can read it: chmod 600 {open_ones[0]}"
        return Check(name, "warn", said, advice)
    if not said:
        advice = "Make one (ssh-keygen), put its .pub into the host's authorized_keys, or start an ssh-agent."
        return Check(name, "fail", "no key file and no agent", advice)
    return Check(name, "ok", said)
