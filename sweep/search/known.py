"""What may still be proposed: nothing known, nothing running, nothing that a failure has ruled out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweep.model import ArmConfig, Verdict
from sweep.search.view import Told, fields

# A configuration of which this many trials ended in trouble of their surroundings is set aside: each of them had
# attempts of its own, and by then the trouble may be the configuration's.
MAX_ATTEMPTS = 2
# A configuration is launched so many times at most: what one launch at 2-3 % noise leaves open, four leave half of.
MAX_LAUNCHES = 4
# Causes that lie in the draft model itself (its files, its shapes) rule out everything else with it.
_WHOLE = frozenset({"algorithm", "draft_model"})


class Known:
    """What a history says about configurations. Pure: built from rows, changed by nothing."""

    def __init__(self, history: Sequence[Told]) -> None:
        self._settled: set[ArmConfig] = set()
        self._ineffective: set[tuple[str | None, str | None]] = set()
        self._dominating: list[tuple[ArmConfig, Mapping[str, Any], tuple[str, ...]]] = []
        attempts: Counter[ArmConfig] = Counter()
        # What ran once may fail the next time, again and again: failures count as launches.
        self._launches = Counter(told.ran for told in history if told.verdict is not None)
        self._ran = list(dict.fromkeys(told.ran for told in history if told.complete))
        self._running = {told.ran for told in history if told.verdict is None}
        for told in history:
            if told.verdict is not None and told.verdict.requeue:
                attempts[told.config] += 1
                continue
            self._settled.update((told.config, told.ran))
            if told.verdict is Verdict.DRAFTER_INEFFECTIVE:
                self._ineffective.add((told.config.algorithm, told.config.draft_model))
            elif told.verdict is not None and told.verdict.infeasible and told.dominates:
                self._dominating.append((told.ran, fields(told.ran), told.dominates))
        self._settled.update(config for config, count in attempts.items() if count >= MAX_ATTEMPTS)

    def again(self) -> list[ArmConfig]:
        """Configurations that ran and may be launched once more, in their order."""
        return [c for c in self._ran if self._launches[c] < MAX_LAUNCHES and c not in self._running]

    def settled(self, config: ArmConfig) -> bool:
        """Finished, running, or set aside after repeated trouble of its surroundings."""
        return config in self._settled

    def excluded(self, config: ArmConfig) -> str | None:
        """Why a failure elsewhere rules this configuration out, or None."""
        if (config.algorithm, config.draft_model) in self._ineffective:
            return f"{config.algorithm} {config.draft_model or ''}".rstrip() + " never accepted a draft"
        ours = fields(config) if self._dominating else {}
        for failed, theirs, names in self._dominating:
            if _WHOLE.issuperset(names):
                if all(getattr(config, name) == getattr(failed, name) for name in names):
                    return f"{failed.label()} failed for its {' and '.join(names).replace('_', ' ')}, which this shares"
            elif _dominated(ours, theirs, names):
                return f"{failed.label()} failed, and this is no smaller in {', '.join(names)}"
        return None

    def open(self, candidates: Iterable[ArmConfig]) -> list[ArmConfig]:
        """The candidates that may still be proposed, in their order, each once."""
        return [c for c in dict.fromkeys(candidates) if not self.settled(c) and self.excluded(c) is None]


def _dominated(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Sequence[str]) -> bool:
    """True where ``ours`` equals what failed but for ``names``, in each of which it is equal or larger."""
    if ours.keys() != theirs.keys():
        return False
    for name, value in ours.items():
        other = theirs[name]
        if value == other:
            continue
        comparable = isinstance(value, int | float) and isinstance(other, int | float)
        if name not in names or not comparable or value < other:
            return False
    return True
