"""What a rule of diagnosis is; the table of them is ``launchers.diagnosis_rules``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweep.model import ArmConfig, Phase, Retry, Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule's advice may draw on: the match, the arm, and the messages before it (oldest first)."""

    match: re.Match[str]
    arm: ArmConfig
    before: Sequence[str]


Advice = str | Callable[[Found], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of end. ``pattern`` is matched at the start of a message.

    ``context`` must be found in the traceback above it, ``ready`` (None: either) says whether the server had been
    ready, ``running`` (None: either) whether it still runs. ``phase`` None: the phase the server was in.
    ``evidence`` None: the matched message; else the last earlier message that matches it, where there is one.
    """

    reason: str
    verdict: Verdict
    pattern: re.Pattern[str]
    advice: Advice
    retry: Retry = Retry.NEVER
    phase: Phase | None = None
    context: re.Pattern[str] | None = None
    ready: bool | None = None
    running: bool | None = None
    dominates: tuple[str, ...] = ()
    evidence: re.Pattern[str] | None = None
    when: Callable[[Found], bool] | None = None
