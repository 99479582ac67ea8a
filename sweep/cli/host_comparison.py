"""What differs between the hosts of a study, as far as a quick look can say.

A candidate is compared with the baseline of its own host, so that unequal hosts are no error. But its verdict is one
for all hosts, and with another model under the same path, or another version of the engine, it is one of two things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from launchers.host_values import ModelFiles
from sweep.cli.check import Check
from sweep.config import Host, StudySpec
from sweep.model import HostFacts

GPU_ADVICE = "A verdict stands for all hosts: `sweep best --per host` shows whether they agree. Or take equal ones."
ENGINE_ADVICE = "Install one version everywhere: flags, defaults and speed change between versions."
MODEL_ADVICE = "The hosts would serve different models under one name: copy the right one to the others."


@dataclass(frozen=True, slots=True)
class Looked:
    """What doctor saw of one host; ``facts`` None where it was not reached."""

    host: Host
    checks: Sequence[Check]
    facts: HostFacts | None = None
    models: Mapping[str, ModelFiles] | None = None


def compared(looked: Sequence[Looked], spec: StudySpec | None) -> list[Check]:
    """One check for each thing that should be the same on all machines; none with fewer than two that were reached."""
    machines: dict[str, tuple[Looked, HostFacts]] = {}
    for entry in looked:
        if entry.facts is not None:
            machines.setdefault(entry.host.machine, (entry, entry.facts))  # slots of one machine are alike
    if len(machines) < 2:
        return []

    def of_facts(look: Callable[[Looked, HostFacts], str | None]) -> dict[str, str | None]:
        return {name: look(*pair) for name, pair in machines.items()}

    checks = [
        _same("engine", of_facts(lambda _, facts: facts.engine_version), ENGINE_ADVICE),
        _same("GPU", of_facts(lambda entry, facts: _gpu_names(entry, facts, spec)), GPU_ADVICE),
        _same("driver", of_facts(lambda _, facts: facts.driver_version), GPU_ADVICE),
    ]
    for title, path in named_models(spec):
        files = {name: (entry.models or {}).get(path) for name, (entry, _) in machines.items()}
        there = {name: file for name, file in files.items() if file is not None and file.folder is not None}
        if len(there) > 1:  # that one is missing is said beside its host
            checks.append(_same(f"{title}: config", {n: file.config_hash for n, file in there.items()}, MODEL_ADVICE))
            if any(file.weights for file in there.values()):
                checks.append(_weights(f"{title}: weights", {n: dict(file.weights) for n, file in there.items()}))
    return checks


def _gpu_names(entry: Looked, facts: HostFacts, spec: StudySpec | None) -> str | None:
    wanted = spec.gpus_of(entry.host) if spec else (entry.host.gpus or ())
    return ", ".join(sorted({gpu.name for gpu in facts.gpus if gpu.index in wanted or not wanted})) or None


def named_models(spec: StudySpec | None) -> list[tuple[str, str]]:
    """(What it is called, its path) of every model of the search space."""
    if spec is None:
        return []
    return [("target model", spec.model.path), *((f"draft model {d.name}", d.path) for d in spec.drafters.values())]


def _same(name: str, values: Mapping[str, str | None], advice: str) -> Check:
    """``values``: what each machine has."""
    said = _by_value({machine: value or "none" for machine, value in values.items()})
    if len(set(values.values())) == 1:
        return Check(name, "ok", f"{next(iter(values.values())) or 'none'} on all")
    return Check(name, "warn", said, advice)


def _weights(name: str, sizes: Mapping[str, Mapping[str, int]]) -> Check:
    """``sizes``: bytes of each file by name, for each machine."""
    files = sorted(set().union(*sizes.values()))
    different = [file for file in files if len({found.get(file) for found in sizes.values()}) > 1]
    if not different:
        total = sum(next(iter(sizes.values())).values())
        return Check(name, "ok", f"{len(files)} files, {total / 1e9:.1f} GB on all")
    first = different[0]
    said = _by_value({m: f"{found[first]} bytes" if first in found else "missing" for m, found in sizes.items()})
    more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
    return Check(name, "warn", f"{first}{more}: {said}", MODEL_ADVICE)


def _by_value(values: Mapping[str, str]) -> str:
    """``A on gpu-a, gpu-b; B on gpu-c``."""
    groups: dict[str, list[str]] = {}
    for machine, value in values.items():
        groups.setdefault(value, []).append(machine)
    return "; ".join(f"{value} on {', '.join(machines)}" for value, machines in groups.items())
