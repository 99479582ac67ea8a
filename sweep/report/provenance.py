"""Where the numbers come from: versions, hosts, seeds, prompts, and what was asked for against what ran."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from storage.records import LaunchRow
from sweep.model import Role
from sweep.report.facts import Facts


def provenance(facts: Facts) -> dict[str, str]:
    """Name -> text, in the order of the page."""
    study, spec = facts.study, facts.study.spec
    model: Mapping[str, Any] = spec.get("model") or {}
    workload: Mapping[str, Any] = spec.get("workload") or {}
    out = {
        "study": study.name,
        "specsweep": study.tool_version,
        "engine": f"simulated, profile {study.profile}" if study.simulated else study.engine,
        "engine version": _join(_versions(facts)),
        "target model": _model(model),
        "draft models": _join(_model(m) for m in (spec.get("space") or {}).get("draft_model") or []),
        "hosts": _join(_host(host) for host in facts.hosts),
        "GPU clocks and power": _gpus(facts),
        "pairing": _join(sorted({row.gain.basis.value for row in facts.gains if row.gain})),
        "sampler": str(spec.get("sampler") or ""),
        "seed": str(study.seed),
        "space hash": study.space_hash,
        "prompts": f"{workload.get('prompts', 'builtin')}; categories {_join(workload.get('categories') or ['all'])}",
        "prompts hash": _join(_prompt_hashes(facts)),
        "prompt format": _join(sorted({str(b.client.get("prompt_format")) for b in facts.blocks})),
        "client": _client(facts),
        "workload": json.dumps({k: v for k, v in workload.items() if v is not None and k != "prompts"}),
        "constraints": _join(c.text for c in study.constraints) or "none",
        "notes": _join(_note(note) for note in study.notes) or "none",
    }
    return {key: value for key, value in out.items() if value}


def asked_and_effective(facts: Facts) -> list[dict[str, Any]]:
    """For the baseline and the leading arm: {name, argv, pins, differences, status} of its newest read-back launch;
    then every further arm whose server ran something else than asked."""
    leader = facts.leader["trial"] if facts.leader else None
    newest: dict[int | None, LaunchRow] = {}
    for launch in facts.launches:
        if launch.effective is not None and launch.role is not Role.ENGINE_DEFAULT:
            newest[launch.trial] = launch
    wanted = [None, leader] if leader is not None else [None]
    wanted += [t for t, x in newest.items() if t not in wanted and x.effective and x.effective.differences]
    out: list[dict[str, Any]] = []
    for trial in wanted:
        if trial not in newest:
            continue
        launch = newest[trial]
        effective = launch.effective
        assert effective is not None
        out.append(
            {
                "name": "no speculation" if trial is None else f"trial {trial}: {launch.config.label()}",
                "argv": " ".join(launch.argv),
                "pins": {key: value for key, value in effective.pins.items() if value is not None},
                "config": effective.config.as_dict(),
                "differences": effective.differences,
                "status": effective.status,
            }
        )
    return out


def _join(parts: Any) -> str:
    return ", ".join(str(part) for part in parts)


def _model(model: Mapping[str, Any]) -> str:
    revision = model.get("revision")
    name = f"{model['name']} = " if model.get("name") else ""
    return f"{name}{model.get('path', '?')}" + (f" @ {revision}" if revision else "")


def _versions(facts: Facts) -> list[str]:
    return sorted({x.effective.version for x in facts.launches if x.effective and x.effective.version})


def _host(host: Mapping[str, Any]) -> str:
    found = host["facts"]
    gpus: defaultdict[str, int] = defaultdict(int)
    for gpu in found.get("gpus", []):
        gpus[f"{gpu['name']} {gpu['memory_total_mib'] / 1024:.0f} GiB"] += 1
    what = ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "not reached"
    driver = f", driver {found['driver_version']}" if found.get("driver_version") else ""
    python = f", Python {found['python_version']}" if found.get("python_version") else ""
    return f"{host['name']} ({host['kind']}): {what}{driver}{python}"


def _gpus(facts: Facts) -> str:
    """Ranges of the block medians."""
    seen = [gpu for block in facts.blocks for gpu in block.gpus]
    parts = []
    for key, unit in (("sm_clock_mhz", "MHz"), ("temperature_c", "°C"), ("power_w", "W")):
        values = [gpu[key] for gpu in seen if gpu.get(key) is not None]
        if values:
            parts.append(f"{min(values):.0f}–{max(values):.0f} {unit}")
    return ", ".join(parts)


def _prompt_hashes(facts: Facts) -> list[str]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for block in facts.blocks:
        found[block.prompts_hash].add(f"{block.stage}@{block.concurrency}")
    return [f"{key} ({', '.join(sorted(where))})" for key, where in found.items()]


def _client(facts: Facts) -> str:
    lags = [block.client["lag_p99_s"] for block in facts.blocks if block.client.get("lag_p99_s") is not None]
    trips = [block.client["rtt_s"] for block in facts.blocks if block.client.get("rtt_s") is not None]
    parts = [f"event loop at most {1000 * max(lags):.1f} ms late (p99 of a block)"] if lags else []
    parts += [f"round trip at most {1000 * max(trips):.2f} ms"] if trips else []
    most = max((block.client.get("processes", 1) for block in facts.blocks), default=1)
    parts += [f"up to {most} client processes"] if most > 1 else []
    return ", ".join(parts)


def _note(note: Any) -> str:
    if isinstance(note, Mapping) and "pin" in note:
        return f"pinned {note['pin']} = {note['value']} ({note['why']})"
    if isinstance(note, Mapping) and "attached" in note:
        return f"measured at {note['attached']}, a server that was running already"
    return str(note)
