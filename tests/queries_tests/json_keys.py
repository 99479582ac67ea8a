"""The key paths of a JSON answer, as docs/json.md writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Objects whose keys are names of the study's own (objectives, flags, categories, ...): written as NAME.*
OPEN = {
    "by_objective", "by_category", "values", "stderr", "constraints", "counts", "flag_evidence", "phases", "env",
    "directions", "rows", "objectives", "stop", "probe", "controller", "log_flags", "client", "facts", "forecast",
}  # fmt: skip
# Objects that have a table of their own in the page.
SHARED = {
    "config", "effective", "gain", "gain_over_engine_default", "search_gain", "change", "gpus", "tie_because",
    "tie_with_engine_default_because", "crossover", "explanations",
    "predicted", "accept_length", "break_even_accept_length",
}  # fmt: skip


def keys(value: Any) -> set[str]:
    """``best[].gain`` style paths of every key in the answer."""
    return set(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict | list):
                yield from _walk(item, f"{path}[]")
        return
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        yield here
        if name in SHARED:
            continue
        if name in OPEN and isinstance(item, dict):
            nested = [child for child in item.values() if isinstance(child, dict) and name in ("objectives",)]
            for child in nested:
                yield from _walk(child, f"{here}.*")
            continue
        yield from _walk(item, here)
