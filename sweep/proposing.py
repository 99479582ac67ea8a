"""The sampler's side of a running study: what comes next and why, how much is left to find, why the search ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from search_spaces.space import SearchSpace
from sweep.config import StudySpec
from sweep.model import ArmConfig
from sweep.search.proposer import Proposer
from sweep.search.view import Proposal, SpaceView, Told
from sweep.warmstart import WarmStart


def proposer_of(spec: StudySpec, space: SearchSpace) -> Proposer:
    """The sampler of a study as its specification asks for it."""

    def canonical(params: Mapping[str, Any]) -> ArmConfig | None:
        found = space.canonical(params)
        return found if isinstance(found, ArmConfig) else None

    return Proposer(
        SpaceView(candidates=space.candidates, axes=space.axes, canonical=canonical),
        spec.goals,
        sampler=None if spec.sampler == "auto" else spec.sampler,
        seed=spec.seed,
        known_good=space.known_good,
        budget=spec.budget.trials,
        tolerance=spec.budget.regret,
    )


class Proposing:
    """The proposer of one study with its warm start, if there is one."""

    def __init__(self, proposer: Proposer, warm: WarmStart | None = None) -> None:
        self.proposer = proposer
        self._warm = warm

    def facts(self) -> dict[str, Any]:
        """Who proposes, and out of how many; ``enumerates``: all of them are measured, in order."""
        proposer = self.proposer
        return {"sampler": proposer.sampler, "candidates": self.whole, "enumerates": proposer.enumerates}

    @property
    def whole(self) -> int:
        """How many configurations there are to try."""
        return len({*self.proposer.space.candidates, *self.proposer.known_good})

    def begin(self) -> dict[str, Any] | None:
        """Once the hosts are known; what to keep of the warm start as an event."""
        return None if self._warm is None else self._warm.begin()

    def propose(self, history: Sequence[Told]) -> Proposal | None:
        """The next configuration; None where nothing is left or the stop rule is met."""
        self._teach()
        found = self.proposer.propose(history)
        if found is None or self._warm is None or not self._warm.words or self.proposer.enumerates:
            return found
        return replace(found, why=f"{found.why}; {self._warm.words}")

    def recommend(self, history: Sequence[Told]) -> list[ArmConfig]:
        """Per objective, the measured configuration that most likely leads."""
        self._teach()
        return self.proposer.recommend(history)

    def outlook(self, history: Sequence[Told]) -> dict[str, Any] | None:
        """{regret, launches, tolerance}: what the best configuration is expected to gain over the best measured one
        (fraction), and how many launches it may take to decide; None where no model says so."""
        if self.proposer.sampler != "model" or self.proposer.enumerates:
            return None
        self._teach()
        found = self.proposer.regret(history)
        if found is None:
            return None
        return {"regret": found.expected, "launches": found.launches, "tolerance": self.proposer.tolerance}

    def why_ended(self, history: Sequence[Told], budget: int | None) -> dict[str, Any] | None:
        """{reason, why} where the search has nothing more to propose; None where it has. Where the stop rule is met, of
        what it is true as well; see :meth:`was_decided`."""
        if not self.proposer.known(history).open([*self.proposer.known_good, *self.proposer.space.candidates]):
            return {"reason": "space", "why": "every configuration that can run was tried"}
        self._teach()
        if self.proposer.decided(history):
            regret = self.proposer.remaining_regret(history) or 0.0
            tolerance = self.proposer.tolerance or 0.0
            why = (
                f"decided: what is left is expected to gain {100 * regret:.1f} % at most over the best measured one "
                f"(tolerance {100 * tolerance:.1f} %)"
            )
            return {"reason": "decided", "why": why, **self._decided_of(history)}
        if budget is not None and len(history) >= budget:
            return {"reason": "budget", "why": f"the budget of {budget} trials is used up"}
        return None

    def was_decided(self, ended: Mapping[str, Any], history: Sequence[Told]) -> bool:
        """Whether the stop rule was met (``ended`` is what :meth:`why_ended` said) of this very search.

        What the confirm stage measures changes what the model believes; a search that was over does not begin anew for
        that when its study is resumed.
        """
        same = {"reason": "decided", **self._decided_of(history)}
        return same.items() <= ended.items() and not self.proposer.known(history).open(self.proposer.known_good)

    def _decided_of(self, history: Sequence[Told]) -> dict[str, Any]:
        proposer = self.proposer
        return {
            "trials": len(history),
            "candidates": self.whole,
            "sampler": proposer.sampler,
            "tolerance": proposer.tolerance,
        }

    def _teach(self) -> None:
        """The prior is complete once the first baseline was measured, which is before the first proposal."""
        if self._warm is not None and not self.proposer.prior:
            self.proposer.prior = tuple(self._warm.prior())
