"""The space that knows SGLang: one rule table per version, one decision function.

A further version is one file with its table and one line in ``TABLES``.
"""

from __future__ import annotations

from search_spaces.rules import sglang_0_5_17, sglang_0_5_23
from search_spaces.rules.common import (
    ALIASES,
    NEEDS_DRAFTER,
    NGRAM_BREADTH,
    TAKES_NO_DRAFTER,
    Ask,
    Infeasible,
    Resolved,
    VersionRules,
    answer,
    gpu_kind,
    max_draft_tokens,
)

__all__ = [
    "ALIASES",
    "NEEDS_DRAFTER",
    "NGRAM_BREADTH",
    "TAKES_NO_DRAFTER",
    "Infeasible",
    "Resolved",
    "VersionRules",
    "algorithm_names",
    "gpu_kind",
    "max_draft_tokens",
    "resolve",
    "table",
    "version_key",
]

TABLES: dict[str, VersionRules] = {
    rules.version: rules for rules in (sglang_0_5_17.RULES, sglang_0_5_23.RULES)
}  # in order of age


def version_key(version: str) -> tuple[int, ...]:
    """``0.5.23.post1`` -> (0, 5, 23): what versions are compared by."""
    numbers: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def table(version: str | None = None) -> VersionRules:
    """The rules of a version: its own, else the newest older one, else the oldest; None: the newest."""
    tables = list(TABLES.values())
    if version is None:
        return tables[-1]
    older = [rules for rules in tables if version_key(rules.version) <= version_key(version)]
    return older[-1] if older else tables[0]


def algorithm_names() -> tuple[str, ...]:
    """Every algorithm name some known version takes, aliases included; upper case."""
    return tuple(sorted({name for rules in TABLES.values() for name in rules.algorithms} | set(ALIASES)))


def resolve(
    algorithm: str | None,
    num_steps: int | None = None,
    topk: int | None = None,
    num_draft_tokens: int | None = None,
    *,
    attention_backend: str | None = None,
    page_size: int | None = None,
    version: str | None = None,
    gpu_kind: str | None = None,
    model_arch: str | None = None,
    max_running_requests: int | None = None,
    ngram_breadth: int = NGRAM_BREADTH,
) -> Resolved | Infeasible:
    """What SGLang makes of these flags, or why it cannot be served.

    ``gpu_kind`` is a compute capability (``sm90``), ``none`` for a machine without a GPU, None where it is not known:
    nothing is refused for the GPU then. ``model_arch`` is the target's architecture name; without it the numbers of an
    automatic choice are None. ``attention_backend`` None is SGLang's own choice, which takes any topk.
    """
    ask = Ask(
        algorithm,
        num_steps,
        topk,
        num_draft_tokens,
        attention_backend,
        page_size,
        gpu_kind,
        model_arch,
        max_running_requests,
        ngram_breadth,
    )
    return answer(table(version), ask)
