"""May a study be carried on with a changed YAML? Only where its old rows stay comparable with the new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sweep.config.models import StudySpec
from sweep.config.parts import Space

_REFUSED = {
    "name": "a study keeps its name; `sweep start --name` makes another one",
    "engine": "rows of two engines cannot be compared",
    "engine_version": "rows of two engine versions cannot be compared",
    "model": "rows of two target models cannot be compared",
    "server": "the pins are the same on every arm; rows measured under other pins cannot be compared",
    "workload": "rows measured under another workload cannot be compared",
    "objectives": "earlier trials were judged by the old objectives (`sweep best --objective` ranks by another one)",
    "constraints": "earlier trials were judged by the old constraints",
    "warm_start": "what a study knew before its first launch is chosen when it starts",
    "seed": "the seed chooses the prompts and their order; rows with another one cannot be paired",
    "simulated_by_flag": "a simulated study stays simulated, a real one real",
}
_ALLOWED = ("budget", "hosts", "sampler", "measurement", "ray", "known_good")
_AXES = ("algorithm", "num_steps", "topk", "num_draft_tokens", "cuda_graph")


@dataclass(frozen=True, slots=True)
class SpecDiff:
    """``allowed``: one sentence per change that is carried on with; ``refused``: (key, reason)."""

    allowed: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def same(self) -> bool:
        return not self.allowed and not self.refused


def diff(old: StudySpec, new: StudySpec) -> SpecDiff:
    """What changed from ``old`` (as stored) to ``new`` (as read now, ``simulated`` applied where ``old`` has it)."""
    allowed: list[str] = []
    refused: list[tuple[str, str]] = []
    before, after = old.dump(), new.dump()
    for key, reason in _REFUSED.items():
        for changed, was, now in _leaves(key, before[key], after[key]):
            refused.append((changed, f"was {was!r}, is now {now!r}: {reason}"))
    for key in _ALLOWED:
        allowed += [f"{changed}: {was!r} -> {now!r}" for changed, was, now in _leaves(key, before[key], after[key])]
    for changed, was, now in _leaves("simulate", before["simulate"], after["simulate"]):
        if old.simulated and changed != "simulate.trials":
            refused.append((changed, f"was {was!r}, is now {now!r}: rows of two simulations cannot be compared"))
        else:
            allowed.append(f"{changed}: {was!r} -> {now!r}")
    _space(old.space, new.space, allowed, refused)
    return SpecDiff(tuple(allowed), tuple(refused))


def _leaves(key: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for part in [*was, *(part for part in now if part not in was)]:
            yield from _leaves(f"{key}.{part}", was.get(part), now.get(part))
    else:
        yield key, was, now


def _space(old: Space, new: Space, allowed: list[str], refused: list[tuple[str, str]]) -> None:
    for key in _AXES:
        _axis(f"space.{key}", getattr(old, key), getattr(new, key), allowed, refused)
    for flag in [*old.args, *(flag for flag in new.args if flag not in old.args)]:
        key = f"space.args.{flag}"
        if flag not in old.args or flag not in new.args:
            refused.append((key, "earlier trials ran without (or with) this axis; it cannot be added or removed later"))
        else:
            _axis(key, old.args[flag], new.args[flag], allowed, refused)
    paths = {item.name: item for item in old.draft_model}
    for item in new.draft_model:
        was = paths.get(item.name, item)
        if was != item:
            refused.append(
                (
                    "space.draft_model",
                    f"{item.name} was {was.path} and is now {item.path}; give the other drafter another name",
                )
            )
    names = tuple(item.name for item in new.draft_model)
    _axis("space.draft_model", tuple(paths), names, allowed, refused)


def _axis(
    key: str, old: tuple[Any, ...], new: tuple[Any, ...], allowed: list[str], refused: list[tuple[str, str]]
) -> None:
    gone = [value for value in old if value not in new]
    added = [value for value in new if value not in old]
    if gone:
        refused.append((key, f"{gone} left the axis; an axis may only grow, its rows stay in the study"))
    elif added:
        allowed.append(f"{key}: {added} added")
