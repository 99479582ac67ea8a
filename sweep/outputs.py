"""Same output: where a candidate's greedy text parts from the baseline's, does the target hold both tokens likely?

Equal texts are no test. Greedy decoding with and without speculation runs different kernels and batch shapes, and
where the two best logits are closer than bf16 resolves, either token may win; from there on the texts differ. So the
first differing token is found for each prompt, and the next baseline server is asked for its own log-probabilities
there: a near-tie, or a difference. Pure; one instance per run. The texts are kept in memory alone; questions that wait
for a baseline are stored as events (``outputs_open``) until one has answered (``outputs``), so that a run cut short
asks them when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep.model import BlockResult
from sweep.reports import TokenAnswer, TokenQuestion

# Largest gap (nat) between two tokens that is called a tie. On an H200 in bf16 five launches without speculation
# agreed in 20 of 20 greedy answers and every speculative arm in 0 to 4 of 20, at places where the two best logits were
# 0.03 to 0.3 apart; a wrong token of an unlucky but sound run is not seen beyond half a nat.
NEAR_TIE_NAT = 0.5
# Share of prompts with a real difference above which an arm is flagged, whatever the baseline shows against itself.
DIFFER_SHARE = 0.05

Texts = Mapping[str, tuple[int, ...]]  # prompt id -> output tokens


def texts(blocks: Sequence[BlockResult]) -> tuple[str, Texts]:
    """(prompts hash, texts) of a launch's first valid block at concurrency 1; no texts where there is none."""
    for block in blocks:
        if block.concurrency == 1 and block.invalid is None:
            found = {r.prompt_id: r.output_ids for r in block.requests if r.ok and r.output_ids}
            return block.prompts_hash, found
    return "", {}


def parting(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Index of the first differing token; None for equal texts. Where one text ends first, its length."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


@dataclass(slots=True)
class Comparison:
    """One launch's texts beside the baseline's; ``trial`` None: a baseline beside the one before it."""

    trial: int | None
    prompts_hash: str
    prompts: int
    same: int = 0
    near_ties: int = 0
    differences: int = 0
    unclear: int = 0  # one text ended where the other went on, or the server did not say
    largest_tie: float = 0.0  # nat
    example: str | None = None
    open: list[TokenQuestion] = field(default_factory=list)

    @classmethod
    def of(cls, trial: int | None, prompts_hash: str, baseline: Texts, other: Texts) -> Comparison:
        shared = [prompt for prompt in baseline if prompt in other]
        out = cls(trial, prompts_hash, len(shared))
        for prompt in shared:
            ours, theirs = baseline[prompt], other[prompt]
            at = parting(ours, theirs)
            if at is None:
                out.same += 1
            elif at >= min(len(ours), len(theirs)):
                out.unclear += 1
            else:
                out.open.append(TokenQuestion(prompt, tuple(ours[:at]), (ours[at], theirs[at])))
        return out

    def settle(self, answers: Mapping[TokenQuestion, Mapping[int, float]]) -> None:
        """Judge every open question that has an answer; the others are unclear."""
        for question in self.open:
            logprobs = answers.get(question) or {}
            ours, theirs = (logprobs.get(token) for token in question.candidates)
            if not logprobs:
                self.unclear += 1
            elif ours is not None and theirs is not None and abs(ours - theirs) <= NEAR_TIE_NAT:
                self.near_ties += 1
                self.largest_tie = max(self.largest_tie, abs(ours - theirs))
            else:
                self.differences += 1
                self.example = self.example or _words(question, ours, theirs, len(logprobs))
        self.open = []

    def as_event(self) -> dict[str, Any]:
        """Detail of the event ``outputs_open``: per question the prompt, the tokens before the parting, and the two
        tokens (the baseline's first)."""
        return {
            "trial": self.trial,
            "prompts_hash": self.prompts_hash,
            "prompts": self.prompts,
            "same": self.same,
            "unclear": self.unclear,
            "questions": [[q.prompt_id, list(q.prefix), list(q.candidates)] for q in self.open],
        }

    @classmethod
    def from_event(cls, detail: Mapping[str, Any]) -> Comparison:
        """Inverse of :meth:`as_event`."""
        out = cls(detail["trial"], detail["prompts_hash"], detail["prompts"], detail["same"], unclear=detail["unclear"])
        out.open = [TokenQuestion(prompt, tuple(p), (c[0], c[1])) for prompt, p, c in detail["questions"]]
        return out

    @property
    def share(self) -> float:
        return self.differences / self.prompts if self.prompts else 0.0


def _words(question: TokenQuestion, ours: float | None, theirs: float | None, count: int) -> str:
    def said(value: float | None) -> str:
        return f"not among the {count} likeliest" if value is None else f"log-probability {value:.2f}"

    mine, other = question.candidates
    return (
        f"prompt {question.prompt_id}, token {len(question.prefix)}: the baseline went on with {mine} ({said(ours)}), "
        f"this arm with {other} ({said(theirs)})"
    )


@dataclass(frozen=True, slots=True)
class OutputFinding:
    """What was found of a trial; ``differs`` carries the flag ``output_differs``. ``detail`` is the stored evidence."""

    trial: int
    differs: bool
    evidence: str
    detail: Mapping[str, Any]


class OutputCheck:
    """Texts and open questions of a run, per host."""

    def __init__(self) -> None:
        self._baseline: dict[tuple[str, str], Texts] = {}
        self._open: dict[str, list[Comparison]] = {}
        self._own_prompts = self._own_differences = 0  # baseline beside baseline

    @classmethod
    def resumed(cls, events: Iterable[tuple[str, str | None, Mapping[str, Any]]]) -> OutputCheck:
        """From (kind, host, detail) of a study's events, in order: what waits to be asked, and what the baseline showed
        of itself."""
        out = cls()
        for kind, host, detail in events:
            waiting = out._open.setdefault(host or "", [])
            if kind == "outputs_open":
                waiting.append(Comparison.from_event(detail))
            elif kind == "outputs":
                for comparison in waiting:
                    if comparison.trial == detail["trial"]:
                        waiting.remove(comparison)
                        break
                out._own_prompts = detail.get("baseline_prompts", 0)  # absent: written by an older version
                out._own_differences = round(detail["baseline_share"] * out._own_prompts)
        return out

    def candidate(self, host: str, trial: int, blocks: Sequence[BlockResult]) -> Mapping[str, Any] | None:
        """Take in a candidate's launch: compared with the newest baseline of the host on the same prompts. What is to
        be stored until a baseline has answered, None where there is nothing to compare."""
        key, found = texts(blocks)
        baseline = self._baseline.get((host, key))
        if not found or not baseline:
            return None
        comparison = Comparison.of(trial, key, baseline, found)
        self._open.setdefault(host, []).append(comparison)
        return comparison.as_event()

    def questions(self, host: str, blocks: Sequence[BlockResult]) -> list[TokenQuestion]:
        """What a baseline server is to be asked after these blocks: about candidates before it and about itself."""
        key, found = texts(blocks)
        before = self._baseline.get((host, key))
        if found and before:
            self._open.setdefault(host, []).append(Comparison.of(None, key, before, found))
        mine = [c for c in self._open.get(host, ()) if c.prompts_hash == key]
        return list(dict.fromkeys(question for comparison in mine for question in comparison.open))

    def answered(self, host: str, blocks: Sequence[BlockResult], answers: Sequence[TokenAnswer]) -> list[OutputFinding]:
        """Settle what the baseline launch of these blocks was asked, and remember its texts. What was not asked to its
        end (a stop) stays open."""
        key, found = texts(blocks)
        if not found:
            return []
        self._baseline[host, key] = found
        said = {answer.question: answer.logprobs for answer in answers}
        mine: list[Comparison] = []
        left: list[Comparison] = []
        for comparison in self._open.get(host, ()):
            asked = comparison.prompts_hash == key and all(question in said for question in comparison.open)
            (mine if asked else left).append(comparison)
        self._open[host] = left
        for comparison in mine:
            comparison.settle(said)
            if comparison.trial is None:
                self._own_prompts += comparison.prompts
                self._own_differences += comparison.differences
        return [self._finding(c, c.trial) for c in mine if c.trial is not None]

    def _finding(self, found: Comparison, trial: int) -> OutputFinding:
        own = self._own_differences / self._own_prompts if self._own_prompts else 0.0
        differs = found.share > max(DIFFER_SHARE, own)
        evidence = (
            f"{found.differences} of {found.prompts} greedy answers leave the baseline's at a token the target does "
            f"not hold nearly as likely (more than {NEAR_TIE_NAT} nat apart); the baseline does so against itself in "
            f"{own:.2f} of answers, {DIFFER_SHARE} are allowed. {found.example or ''}".strip()
        )
        detail = {
            "trial": trial,
            "prompts": found.prompts,
            "same": found.same,
            "near_ties": found.near_ties,
            "largest_near_tie_nat": found.largest_tie,
            "differences": found.differences,
            "unclear": found.unclear,
            "share": found.share,
            "baseline_share": own,
            "baseline_prompts": self._own_prompts,
            "differs": differs,
            "example": found.example,
        }
        return OutputFinding(trial, differs, evidence, detail)


__all__ = ["DIFFER_SHARE", "NEAR_TIE_NAT", "Comparison", "OutputCheck", "OutputFinding", "parting", "texts"]
