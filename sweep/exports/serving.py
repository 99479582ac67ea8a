"""How an arm is served after the study: the engine's own command line, without anything of ours in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from search_spaces.space import SearchSpace
from storage.records import StudyRow, TrialRow
from sweep.config import StudySpec, plain_env
from sweep.config.fields import SECRET_REFERENCE
from sweep.errors import UsageError
from sweep.model import ArmConfig
from sweep.pins import server_args
from sweep.registry import ENGINES, load
from sweep.seams import Engine

PORT = 30000
_OURS = ("--host", "--port", "--config")


@dataclass(frozen=True, slots=True)
class Serving:
    """``argv`` starts with ``python3``; ``env`` are plain values, ``secrets`` maps a variable to the name of the one
    in the reader's own environment that holds it; ``gpus`` is how many one server takes."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    gpus: int
    engine_version: str

    def command(self) -> str:
        """One line for a shell; secrets stay references that the shell resolves."""
        words = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        words += [f'{key}="${{{name}}}"' for key, name in self.secrets.items()]
        return " ".join([*words, shlex.join(self.argv)])


def read_spec(study: StudyRow) -> StudySpec:
    """The study's specification. UsageError where an older version wrote one that this one cannot read."""
    try:
        return StudySpec.parse(study.spec)
    except ValidationError as error:
        raise UsageError(
            f"the specification of study {study.name!r} (written by version {study.tool_version}) cannot be read: "
            f"{error.errors()[0]['msg']}"
        ) from error


def serving(study: StudyRow, trial: TrialRow | None, *, host: str = "127.0.0.1") -> Serving:
    """The command of a trial as it effectively ran (None: no speculation), for the engine version it was measured on.

    A simulated study gives the command of the engine that it stood for. Raises UsageError for a study of servers that
    were running already: their pins were never ours to know.
    """
    if any(isinstance(note, dict) and "attached" in note for note in study.notes):
        raise UsageError(f"study {study.name!r} measured servers that were running already; it has no launch command")
    spec = read_spec(study)
    arm = ArmConfig()
    version = spec.engine_version or SearchSpace.from_spec(spec, allow_empty=True).version
    if trial is not None:
        arm = trial.effective.config if trial.effective is not None else trial.config
        if trial.effective is not None and trial.effective.version:
            version = trial.effective.version
    engine: Engine = load(ENGINES, "sglang" if spec.simulated else spec.engine)()
    made = engine.launch_spec(
        arm,
        model=spec.model.model_dump(),
        drafters=spec.drafters,
        server_args=server_args(spec),
        env={},
        secret_env={},
        version=version,
        gpus=(),
    )
    words = list(made.argv)
    for flag in _OURS:  # where it listens and its key file are the reader's choice
        at = words.index(flag)
        del words[at : at + 2]
    words += ["--host", host, "--port", str(PORT)]
    secrets = {key: found[1] for key, value in spec.server.env.items() if (found := SECRET_REFERENCE.fullmatch(value))}
    return Serving(
        argv=tuple("python3" if word == "@PYTHON@" else word for word in words),
        env=plain_env(spec),
        secrets=secrets,
        gpus=spec.gpus_per_arm,
        engine_version=version,
    )
