"""``${NAME}`` in ``server.env``: read from the environment when a study starts or resumes, never stored.

A value that is too short to be masked in logs would be stored with the first line that holds it, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from launchers.supervisor import MIN_SECRET
from sweep.config.fields import SECRET_REFERENCE
from sweep.config.models import StudySpec
from sweep.errors import ConfigError


def plain_env(spec: StudySpec) -> dict[str, str]:
    """The variables of ``server.env`` whose value stands in the YAML."""
    return {key: value for key, value in spec.server.env.items() if not SECRET_REFERENCE.fullmatch(value)}


def secret_env(spec: StudySpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``server.env`` written as ``${NAME}``, with their values.

    ConfigError names one that is missing, or of fewer than MIN_SECRET characters; an empty one tells nobody anything.
    """
    out: dict[str, str] = {}
    for key, value in spec.server.env.items():
        match = SECRET_REFERENCE.fullmatch(value)
        if match is None:
            continue
        if match[1] not in environ:
            raise ConfigError(
                f"server.env.{key}: the environment variable {match[1]} is not set; export it and start again"
            )
        value = environ[match[1]]
        if 0 < len(value.strip()) < MIN_SECRET:
            raise ConfigError(
                f"server.env.{key}: the value of {match[1]} has {len(value.strip())} characters, and a secret of fewer "
                f"than {MIN_SECRET} cannot be kept out of logs. Take a longer one; if it is no secret, write the value "
                f"itself instead of ${{{match[1]}}}"
            )
        out[key] = value
    return out
