"""A served arm as a docker compose file and as Kubernetes manifests. Secrets stay references; nothing is downloaded.

The port is published on the machine's loopback (compose) or inside the cluster (Kubernetes): the server has no key of
its own. Model paths that are absolute are mounted read-only; hub names use the hub's cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from storage.records import StudyRow, TrialRow
from sweep.exports.serving import PORT, Serving, read_spec, serving

IMAGE = "lmsysorg/sglang"
START_S = 1800  # a large model loads for minutes and captures graphs for more
HUB = "/hub"  # where the hub's cache is inside the container, unless the study's HF_HOME says otherwise


def compose(study: StudyRow, trial: TrialRow) -> str:
    """A docker compose file with one service."""
    served = serving(study, trial, host="0.0.0.0")
    secrets = {key: f"${{{name}:?set {name}}}" for key, name in served.secrets.items()}
    plain = {key: _dollars(value) for key, value in {"HF_HOME": HUB, **served.env}.items()}
    service: dict[str, Any] = {
        "image": image(study, served),
        "command": [_dollars(word) for word in served.argv],
        "environment": {**plain, **secrets},
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "ipc": "host",
        "ulimits": {"memlock": -1, "stack": 67108864},
        "volumes": [f"${{HF_HOME:-~/.cache/huggingface}}:{plain['HF_HOME']}"]
        + [f"{_dollars(path)}:{_dollars(path)}:ro" for path in local_paths(study, trial)],
        "healthcheck": {
            "test": ["CMD", "curl", "--fail", "--silent", f"http://127.0.0.1:{PORT}/health"],
            "interval": "30s",
            "timeout": "25s",
            "retries": 3,
            "start_period": f"{START_S}s",
        },
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": served.gpus, "capabilities": ["gpu"]}]}
            }
        },
        "restart": "unless-stopped",
    }
    return _header(study, trial) + _dump({"name": dns_name(study.name), "services": {"sglang": service}})


def kubernetes(study: StudyRow, trial: TrialRow) -> str:
    """A Deployment with one replica and its Service."""
    served = serving(study, trial, host="0.0.0.0")
    name = dns_name(study.name)
    labels = {"app": name}
    paths = local_paths(study, trial)
    plain = {"HF_HOME": HUB, **served.env}
    env: list[dict[str, Any]] = [{"name": key, "value": _cluster(value)} for key, value in plain.items()]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": source}}}
        for key, source in served.secrets.items()
    ]
    health = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 30, "timeoutSeconds": 25}
    container: dict[str, Any] = {
        "name": "sglang",
        "image": image(study, served),
        "command": [_cluster(word) for word in served.argv],
        "env": env,
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": served.gpus}},
        "startupProbe": {**health, "failureThreshold": START_S // 30},
        "readinessProbe": health,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "hub", "mountPath": plain["HF_HOME"]}]
        + [{"name": f"model-{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(paths)],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "hub", "emptyDir": {}},
        *({"name": f"model-{n}", "hostPath": {"path": path}} for n, path in enumerate(paths)),
    ]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }
    return _header(study, trial) + _dump(deployment) + "---\n" + _dump(service)


def image(study: StudyRow, served: Serving) -> str:
    """The container image of the study's hosts where one is named, else the engine's public one of that version."""
    named = next((host.container.image for host in read_spec(study).hosts if host.container), None)
    return named or f"{IMAGE}:v{served.engine_version}"


def local_paths(study: StudyRow, trial: TrialRow) -> list[str]:
    """Absolute paths of the target model and of the trial's drafter."""
    spec = read_spec(study)
    drafter = spec.drafters.get(trial.config.draft_model or "")
    paths = [spec.model.path, *([drafter.path] if drafter else [])]
    return sorted({path for path in paths if path.startswith("/")})


def dns_name(name: str) -> str:
    """A name as DNS labels allow it (RFC 1123): lower case, digits and dashes, at most 50 characters."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "study"


def _header(study: StudyRow, trial: TrialRow) -> str:
    label = " ".join(trial.config.label().split())  # what YAML takes for the end of a comment is white space here
    name = " ".join(study.name.split())
    simulated = "# SIMULATED: chosen on simulated servers; no GPU was measured.\n" if study.simulated else ""
    return f"# Trial {trial.number} of study {name}: {label}. Made by specsweep.\n{simulated}"


def _dollars(text: str) -> str:
    """Compose reads $NAME; $$ is a dollar."""
    return text.replace("$", "$$")


def _cluster(text: str) -> str:
    """Kubernetes reads $(NAME); $$( is a plain one."""
    return text.replace("$(", "$$(")


class _Plain(yaml.SafeDumper):
    """Writes a value that stands in two places twice: anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(document: Mapping[str, Any]) -> str:
    return str(yaml.dump(dict(document), Dumper=_Plain, sort_keys=False, width=1000, allow_unicode=True))
