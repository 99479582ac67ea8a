"""The simulated engine: SGLang's flags, log and HTTP from a small stdlib-only server that is sent to the host."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from launchers.engines.sglang import SglangEngine
from sweep.errors import UsageError
from sweep.model import ArmConfig, Drafter, FlagValue, LaunchSpec
from sweep.seams import HostTools

_HOME = "launchers.simulated"
# Where the simulated GPUs' state lies on a host, below our base directory: shared by all servers of the host.
_GPU_STATE = "@BASE@/sim-gpus"


class SimulatedEngine(SglangEngine):
    """SGLang as a profile describes it. ``profile``: the name of a shipped one, or the path of a JSON file.

    ``time_scale``: real seconds for one second of its clock (0.25: four times as fast). ``categories``: sha1 (hex) of
    a prompt's user text -> its category, which decides what is accepted. ``host_name`` chooses the profile's host
    effect. UsageError for a profile that does not exist or cannot be read, naming the nearest.
    """

    name = "simulated"
    packages = ()  # its server is one file

    def __init__(
        self,
        profile: str,
        time_scale: float = 1.0,
        categories: Mapping[str, str] | None = None,
        seed: int = 0,
        host_name: str = "",
    ) -> None:
        if time_scale <= 0:
            raise UsageError(f"simulate.time_scale is {time_scale}; it must be above 0")
        self._profile = profile_text(profile)
        self.time_scale = time_scale
        self._categories = dict(categories or {})
        self._seed = seed
        self._host_name = host_name

    @property
    def version(self) -> str:
        """The SGLang version that the profile speaks as."""
        return str(json.loads(self._profile)["speaks_as"])

    def tools(self, gpus: int) -> HostTools:
        """A stand-in nvidia-smi that shows the simulated servers' memory, so that GPU checks are real checks."""
        return HostTools(
            files={
                "simulated/nvidia_smi.py": _source("nvidia_smi.py"),
                "simulated/profile.json": self._profile.encode(),
            },
            gpu_query=(
                "@PYTHON@", "@BASE@/simulated/nvidia_smi.py", "--state", _GPU_STATE,
                "--profile", "@BASE@/simulated/profile.json", "--gpus", str(gpus),
            ),
        )  # fmt: skip

    def version_command(self, python: str) -> tuple[str, ...]:
        return (python, "-c", f"print({self.version!r})")

    def command(self) -> tuple[str, ...]:
        host = ("--host-name", self._host_name) if self._host_name else ()
        return (
            "@PYTHON@", "@DIR@/server.py", "--profile", "@DIR@/profile.json", "--time-scale", repr(self.time_scale),
            "--gpu-state", _GPU_STATE, "--categories", "@DIR@/categories.json", "--seed", str(self._seed), *host,
        )  # fmt: skip

    def launch_spec(
        self,
        arm: ArmConfig,
        *,
        model: Mapping[str, Any],
        drafters: Mapping[str, Drafter],
        server_args: Mapping[str, FlagValue],
        env: Mapping[str, str],
        secret_env: Mapping[str, str],
        version: str,
        gpus: tuple[int, ...],
    ) -> LaunchSpec:
        """As SGLang's, with the server, its profile and the prompts' categories sent along."""
        spec = super().launch_spec(
            arm,
            model=model,
            drafters=drafters,
            server_args=server_args,
            env=env,
            secret_env=secret_env,
            version=version or self.version,
            gpus=gpus,
        )
        files = {
            **spec.files,
            "server.py": _source("server.py"),
            "profile.json": self._profile.encode(),
            "categories.json": json.dumps(self._categories, sort_keys=True).encode(),
        }
        return replace(spec, files=files)


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    folder = resources.files(_HOME).joinpath("profiles")
    return tuple(sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")))


def profile_text(profile: str) -> str:
    """The JSON text of a shipped profile (by name) or of a file (by path). UsageError where there is none."""
    names = profile_names()
    if profile in names:
        text = resources.files(_HOME).joinpath("profiles", f"{profile}.json").read_text(encoding="utf-8")
    elif Path(profile).is_file():
        text = Path(profile).read_text(encoding="utf-8")
    else:
        near = difflib.get_close_matches(profile, names, n=1, cutoff=0.4)
        hint = f"nearest: {near[0]!r}; " if near else ""
        raise UsageError(f"no simulation profile {profile!r} ({hint}shipped: {', '.join(names) or 'none'})")
    try:
        known = json.loads(text)
    except ValueError as error:
        raise UsageError(f"simulation profile {profile!r} is not JSON: {error}") from error
    if not isinstance(known, dict) or not isinstance(known.get("speaks_as"), str):
        raise UsageError(f"simulation profile {profile!r} does not say which SGLang version it speaks_as")
    return text


def _source(name: str) -> bytes:
    return resources.files(_HOME).joinpath(name).read_bytes()
