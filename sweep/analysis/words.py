"""Sentences. They say faster, slower or tie, by how much and how sure, and never more than the numbers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sweep.analysis.types import EnvelopeStep, NoiseFloor, Ranked
from sweep.model import ArmGain, Comparison, Gain, Objective, Stage
from sweep.sentences import percent, tie_because

Name = Callable[[int], str]


def interval(gain: Gain) -> str:
    """``+8.4 % (95 % interval +6.1 % to +10.8 %)``."""
    return f"{percent(gain.estimate)} (95 % interval {percent(gain.low)} to {percent(gain.high)})"


def comparison(row: ArmGain, what: str = "the baseline") -> str:
    """One arm against a reference, in words."""
    if row.gain is None or row.comparison is Comparison.NOT_COMPARABLE:
        return f"not comparable with {what}"
    text = interval(row.gain)
    if row.comparison is Comparison.TIE and row.tie is not None:
        return f"a tie with {what}, {tie_because(row.tie.as_dict())}: {text}"
    if row.comparison is Comparison.TIE:
        return f"no difference from {what} is shown: {text}"
    return f"{row.comparison.value} than {what}: {text}"


def winner(rows: Sequence[Ranked], name: Name, objective: Objective) -> str:
    """The first sentence about an objective; says first when nothing beats the baseline."""
    at = f"{objective.metric} at concurrency {objective.concurrency}"
    if not rows:
        return f"{at}: nothing comparable was measured."
    first = rows[0]
    group = [r for r in rows if r.rank == first.rank]
    faster = [r for r in group if r.result.comparison is Comparison.FASTER]
    if not faster:
        any_faster = [r for r in rows if r.result.comparison is Comparison.FASTER]
        if any_faster:
            return (
                f"{at}: {name(any_faster[0].trial)} is {comparison(any_faster[0].result)}, but it is not among the "
                "arms that lead; confirm these."
            )
        most = max(group, key=lambda r: r.result.gain.estimate if r.result.gain else -1.0)
        return (
            f"{at}: nothing is shown to beat the baseline; the highest, {name(most.trial)}: {comparison(most.result)}."
        )
    lead = faster[0]
    text = f"{at}: {name(lead.trial)} is {comparison(lead.result)}"
    if lead.result.gain is not None and lead.result.gain.stage is not Stage.CONFIRM:
        text += ", not confirmed"
    if len(group) > 1:
        text += f"; {len(group) - 1} more cannot be told from it"
    return text + "."


def floor(noise: NoiseFloor) -> str:
    """What can be resolved."""
    return (
        f"{noise.metric} at concurrency {noise.concurrency}: launches vary by {noise.launch_mean_sd * 100:.1f} %; "
        f"gains from {noise.minimum_detectable_gain * 100:.1f} % on are found with one launch, "
        f"{noise.wanted_gain * 100:.0f} % needs {noise.launches_needed} of each arm."
    )


def envelope(steps: Sequence[EnvelopeStep], name: Name) -> str | None:
    """``Use A up to 8 concurrent requests, B up to 24, none above.``; None without a measured load."""
    if not steps:
        return None
    if all(step.trial is None for step in steps):
        return "No speculation is shown to pay at any measured load."
    parts: list[str] = []
    for step in steps:
        label = "none" if step.trial is None else name(step.trial)
        unit = "" if parts else " concurrent requests"
        parts.append(label + (" above" if step.to_concurrency is None else f" up to {step.to_concurrency:.0f}{unit}"))
    if len(parts) == 1:
        return f"Use {parts[0].removesuffix(' above')} at every measured load."
    return "Use " + ", ".join(parts) + "."
