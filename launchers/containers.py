"""Servers in Docker containers: the command line that starts one. Ending it, by label, is the supervisor's business.

The container shares the host's network, so that ports and loopback mean the same inside and outside; it sees the
launch's own folder under the same path, the GPUs of the launch, and nothing else that is not given in ``args`` (model
folders, shared memory). Values of variables never stand on the command line: docker takes them from its environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launchers import supervisor

PYTHON = "python3"  # inside the image


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """``image`` holds the engine; ``args`` are further options of ``docker run``; ``docker`` is the program."""

    image: str
    args: tuple[str, ...] = ()
    docker: str = "docker"

    def run(self, argv: Sequence[str], variables: Iterable[str], gpus: Sequence[int]) -> list[str]:
        """argv of a server: ``docker run`` in the foreground, which hands on its output, TERM and exit status."""
        names = sorted(
            {*variables, supervisor.MARKER, supervisor.BASE_VARIABLE, "SPT_NOENV"} - {"CUDA_VISIBLE_DEVICES"}
        )
        # Inside, the GPUs handed over are numbered from 0; docker wants the inner quotes around a list.
        devices = ["--gpus", f'"device={",".join(map(str, gpus))}"'] if gpus else []
        return [
            self.docker, "run", "--rm", "--init", "--network", "host",
            "--label", f"{supervisor.LABEL}=@MARKER@", "--label", f"{supervisor.LABEL}.base=@BASE@",
            *devices, "--volume", "@DIR@:@DIR@", *(word for name in names for word in ("--env", name)),
            *self.args, self.image, *(word.replace("@PYTHON@", PYTHON) for word in argv),
        ]  # fmt: skip

    def once(self, argv: Sequence[str], python: str) -> list[str]:
        """argv of a short command inside the image; ``python`` is what it calls the host's python."""
        words = [PYTHON if word == python else word for word in argv]
        return [self.docker, "run", "--rm", "--init", *self.args, self.image, *words]
