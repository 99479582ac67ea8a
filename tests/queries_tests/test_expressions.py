"""--where: what may be said, what is refused and how, and that nothing is ever evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from sweep.errors import UsageError
from sweep.expressions import parse

FIELDS = ("num_draft_tokens", "topk", "draft_model", "cuda_graph", "gain", "flags", "value")
ALIASES = {"draft_tokens": "num_draft_tokens"}
ROW: dict[str, Any] = {
    "num_draft_tokens": 8,
    "topk": 4,
    "draft_model": "k25-custom",
    "cuda_graph": True,
    "gain": 0.084,
    "flags": frozenset({"coerced"}),
    "value": None,
}


def holds(text: str) -> bool:
    return parse(text, FIELDS, ALIASES)(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "draft_tokens<=8 and topk==4",
        "draft_tokens < 8 or topk > 1",
        "not topk == 1",
        "not (topk == 1 or draft_tokens > 16) and cuda_graph",
        "draft_model == 'k25-custom'",
        'draft_model != "other"',
        "gain > 8%",
        "gain >= -3.5%",
        "gain > -1 and gain < 8.5e-2",
        "topk in [1, 4]",
        "topk not in [1, 2]",
        "'coerced' in flags",
        "cuda_graph == true",
        "value == none",
        "value != 3",
        "8 == draft_tokens",
        "topk == 1 and topk == 2 or topk == 4",
    ],
)
def test_holds(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "draft_tokens>8",
        "topk == 4 and draft_tokens == 4",
        "not cuda_graph",
        "value < 1000",
        "value > 0",
        "draft_model == k25",
        "draft_model < 3",
        "topk in []",
        "'other' in flags",
        "gain > 9%",
        "topk == 4 and (topk == 1 or topk == 2)",
    ],
)
def test_does_not_hold(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the condition is empty"),
        ("   ", "the condition is empty"),
        ("topk ==", "a value is missing at character 8"),
        ("topk = 4", "cannot read '='"),
        ("(topk == 4", r"'\)' is missing"),
        ("topk == 4)", "something is left over"),
        ("topk == 4 draft_tokens == 8", "something is left over at character 11"),
        ("draft_token <= 8", "unknown field 'draft_token'; did you mean 'draft_tokens'"),
        ("nonsense == 8", "unknown field 'nonsense'; there are: cuda_graph"),
        ("topk == -'a'", "a value is missing"),
        ("topk == [1, 2", r"'\]' is missing"),
        ("topk == 4; import os", "cannot read ';'"),
        ("__import__('os')", "unknown field '__import__'"),
        ("topk.__class__ == 1", "cannot read '.'"),
        ("(" * 60 + "topk", "more than 50 levels"),
        ("topk == 1 or " * 400, "more than 2000"),
    ],
)
def test_refuses(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text, FIELDS, ALIASES)


def test_names_what_it_reads() -> None:
    assert parse("draft_tokens < 8 and gain > 0", FIELDS, ALIASES).names == {"num_draft_tokens", "gain"}
