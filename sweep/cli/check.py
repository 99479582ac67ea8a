"""One line of what `sweep doctor` says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """``warn`` is worth knowing, ``fail`` keeps a study from running."""

    name: str
    status: Literal["ok", "warn", "fail"]
    value: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)
