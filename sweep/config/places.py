"""Where servers run: hosts, the simulation that stands for them, and Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from launchers.containers import ContainerSettings
from sweep.config import fields
from sweep.config.fields import Name, Part, Positive, Text

Count = Annotated[int, Field(ge=1)]


class Container(Part):
    """Servers run in this image through docker. ``args``: further options of ``docker run``, such as volumes."""

    image: Text
    args: Annotated[tuple[Text, ...], BeforeValidator(fields.one_or_many)] = ()


class Host(Part):
    """Where servers run. ``ssh`` is an alias that ``ssh -G`` resolves; host/user/port/key say it directly."""

    name: Name
    kind: Name = "ssh"
    ssh: Text | None = None
    host: Text | None = None
    user: Text | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Text | None = None  # path of the private key
    python: Text | None = None  # python of the environment that holds the engine
    activate: Text | None = None  # shell command that enters it, instead of python
    base_dir: Text | None = None  # where our files go; None: ~/.specsweep
    gpus: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(fields.gpus)] | None = None
    container: Annotated[Container | None, BeforeValidator(fields.container)] = None

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "name" not in value:
            address = value.get("ssh") or value.get("host") or ("local" if value.get("kind") == "local" else None)
            if isinstance(address, str):
                return {"name": address, **value}
        return value

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        given = [key for key in ("ssh", "host", "user", "port", "key") if getattr(self, key) is not None]
        if self.kind == "local" and given:
            raise ValueError(f"host {self.name!r} is local and takes no {given[0]}")
        if self.kind == "ssh" and (self.ssh is None) == (self.host is None):
            raise ValueError(f"host {self.name!r} needs exactly one of ssh (an alias) and host (an address)")
        if self.container is not None and self.activate is not None:
            raise ValueError(f"host {self.name!r}: container and activate both say where the engine is: give one")
        if self.python is not None and self.activate is not None:
            raise ValueError(f"host {self.name!r}: give python or activate, not both")
        return self

    @property
    def container_settings(self) -> ContainerSettings | None:
        """What a launch needs to know of the container; None for servers that run on the host itself."""
        return None if self.container is None else ContainerSettings(self.container.image, self.container.args)

    @property
    def address(self) -> str | None:
        """What to connect to; None for the machine we are on."""
        return self.ssh or self.host


class Simulate(Part):
    """Taken by ``--simulate``, and by ``engine: simulated``."""

    profile: Name
    time_scale: Positive = 1.0  # real seconds for one simulated second; 0.25 is four times as fast
    trials: Count | None = None


class RayOptions(Part):
    """``address: null`` starts a Ray of our own on this machine."""

    address: Text | None = None
