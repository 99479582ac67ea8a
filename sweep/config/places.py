"""Where servers run: hosts, the simulation that stands for them, and Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from launchers.containers import ContainerSettings
from sweep.config import fields
from sweep.config.fields import Name, Part, Positive, Text, doc

Count = Annotated[int, Field(ge=1)]


class Container(Part):
    """Servers run in this image through docker. The image alone is short for ``{image: ...}``."""

    image: Text = Field(description="The image, with its tag.")
    args: Annotated[tuple[Text, ...], BeforeValidator(fields.one_or_many)] = doc(
        "Further options of `docker run`, such as volumes.", (), example=["--volume", "/models:/models"]
    )


class Host(Part):
    """Where servers run. ``ssh`` is an alias that ``ssh -G`` resolves; host/user/port/key say it directly."""

    name: Name = Field(description="Name in tables; default: its address.")
    kind: Name = doc("ssh, or local for this machine.", "ssh")
    ssh: Text | None = doc("An alias as in ~/.ssh/config, jump hosts included.", None)
    host: Text | None = doc("Instead of an alias: the address.", None, example="10.0.0.7")
    user: Text | None = doc("With host: the login.", None, example="ml")
    port: Annotated[int, Field(ge=1, le=65535)] | None = doc("With host: the port of its sshd.", None, example=22)
    key: Text | None = doc("With host: the path of the private key.", None, example="~/.ssh/id_ed25519")
    python: Text | None = doc("Python of the environment that holds the engine; null: python3.", None)
    activate: Text | None = doc(
        "Instead of python: a shell command that enters the environment.", None, example="source ~/venv/bin/activate"
    )
    base_dir: Text | None = doc("Where our files go; null: ~/.specsweep.", None, example="/scratch/me/specsweep")
    gpus: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(fields.gpus)] | None = doc(
        "How many, or a list of indices; null: as many as one server takes.", None
    )
    slots: Annotated[int, Field(ge=1, le=64)] = doc(
        "How many servers are measured beside each other here, each on GPUs of its own (tp-size x pp-size of them); "
        "with 1 each is measured alone, without neighbours that share power, memory bandwidth and CPU.",
        1,
        example=2,
    )
    slot_of: Text | None = None  # the host of which this is a slot; made from `slots`, never in a YAML
    container: Annotated[Container | None, BeforeValidator(fields.container)] = doc(
        "Run servers through docker, in this image; there is no other key for it (no `runtime: docker`).", None
    )

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
    def machine(self) -> str:
        """The host's name in the YAML, for a slot too."""
        return self.slot_of or self.name

    @property
    def slot(self) -> tuple[int, ...] | None:
        """The GPUs of a slot, which is owned beside the other slots of its host; None for a whole host."""
        return None if self.slot_of is None else self.gpus

    @property
    def address(self) -> str | None:
        """What to connect to; None for the machine we are on."""
        return self.ssh or self.host


Profile = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}|/.*\.json)$")]


class Simulate(Part):
    """Taken by ``--simulate``, and by ``engine: simulated``."""

    profile: Profile = Field(
        description="Which model on which GPU the simulated server behaves like: a shipped one, or the absolute path "
        "of a JSON file."
    )
    time_scale: Positive = doc("Real seconds for one simulated second; 0.25 is four times as fast.", 1.0)
    trials: Count | None = doc("Instead of budget.trials.", None, unit="trials")


class RayOptions(Part):
    """The Ray that the owners of the hosts run in."""

    address: Text | None = doc("HOST:PORT of a cluster; null: a Ray of our own on this machine.", None)
