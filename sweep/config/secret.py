"""``${NAME}`` in ``server.env``: read from the environment when a study starts or resumes, never stored."""

from __future__ import annotations

from collections.abc import Mapping

from sweep.config.fields import SECRET_REFERENCE
from sweep.config.models import StudySpec
from sweep.errors import ConfigError


def plain_env(spec: StudySpec) -> dict[str, str]:
    """The variables of ``server.env`` whose value stands in the YAML."""
    return {key: value for key, value in spec.server.env.items() if not SECRET_REFERENCE.fullmatch(value)}


def secret_env(spec: StudySpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``server.env`` written as ``${NAME}``, with their values; ConfigError names a missing one."""
    out: dict[str, str] = {}
    for key, value in spec.server.env.items():
        match = SECRET_REFERENCE.fullmatch(value)
        if match is None:
            continue
        if match[1] not in environ:
            raise ConfigError(
                f"server.env.{key}: the environment variable {match[1]} is not set; export it and start again"
            )
        out[key] = environ[match[1]]
    return out
