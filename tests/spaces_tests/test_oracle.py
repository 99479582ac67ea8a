"""Our rules against what the real SGLang 0.5.23 answered for 630 sets of flags, on a machine without a GPU.

The rows' target has a Llama architecture.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from search_spaces import rules

DATA = Path(__file__).parents[1] / "data" / "sglang-args-oracle.csv"
ROWS = list(csv.DictReader(DATA.read_text(encoding="utf-8").splitlines()))


def number(text: str) -> int | None:
    return int(text) if text else None


def ours(row: dict[str, str], gpu_kind: str | None = "none") -> rules.Resolved | rules.Infeasible:
    return rules.resolve(
        row["algorithm"],
        number(row["num_steps"]),
        number(row["topk"]),
        number(row["num_draft_tokens"]),
        attention_backend=row["attention_backend"],
        page_size=number(row["page_size"]),
        version="0.5.23",
        gpu_kind=gpu_kind,
        model_arch="LlamaForCausalLM",
    )


def test_all_rows_are_there() -> None:
    assert len(ROWS) == 630
    assert Counter(row["outcome"] for row in ROWS) == {"accepted": 311, "adjusted": 111, "error": 208}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["outcome"] == "error"], ids=lambda row: str(list(row.values())[:6])
)
def test_what_sglang_rejects_is_infeasible(row: dict[str, str]) -> None:
    answer = ours(row)
    assert isinstance(answer, rules.Infeasible)
    assert answer.reason


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["outcome"] != "error"], ids=lambda row: str(list(row.values())[:6])
)
def test_what_we_call_valid_is_accepted_with_the_same_values(row: dict[str, str]) -> None:
    answer = ours(row)
    if isinstance(answer, rules.Infeasible):
        assert answer.rule in {"oversize_tree", "undersize_tree", "incomplete_triple", "backend_cannot_draft"}
        return
    expected = {key.removeprefix("effective_"): value for key, value in row.items() if key.startswith("effective_")}
    assert (answer.algorithm or "NONE") == expected["algorithm"]
    if answer.algorithm is not None:  # without speculation the three numbers have no meaning
        assert answer.num_steps == number(expected["num_steps"])
        assert answer.topk == number(expected["topk"])
        assert answer.num_draft_tokens == number(expected["num_draft_tokens"])
    assert answer.max_running_requests == number(expected["max_running_requests"])
    assert answer.page_size == number(expected["page_size"])


def test_our_extra_refusals_are_exactly_those_the_worker_dies_on() -> None:
    extra = [
        (row, answer) for row in ROWS if row["outcome"] != "error" and isinstance(answer := ours(row), rules.Infeasible)
    ]
    assert Counter(answer.rule for _, answer in extra) == {
        "oversize_tree": 59,
        "undersize_tree": 70,
        "incomplete_triple": 48,
        "backend_cannot_draft": 4,
    }
    for row, answer in extra:
        steps, topk, draft_tokens = (number(row[key]) for key in ("num_steps", "topk", "num_draft_tokens"))
        if answer.rule == "oversize_tree":
            assert steps is not None
            assert topk is not None
            assert draft_tokens is not None
            assert draft_tokens - 1 > topk + (steps - 1) * topk**2
        elif answer.rule == "undersize_tree":
            assert draft_tokens is not None
            assert steps is not None
            assert draft_tokens < steps + 1
        elif answer.rule == "incomplete_triple":
            assert draft_tokens is None
            assert topk in (2, 4, 8)
        else:
            assert row["attention_backend"] == "torch_native"


def test_no_tree_that_fits_is_refused() -> None:
    for row in ROWS:
        steps, topk, draft_tokens = (number(row[key]) for key in ("num_steps", "topk", "num_draft_tokens"))
        if row["outcome"] == "error" or row["algorithm"] not in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE"):
            continue
        if steps and topk and draft_tokens and topk > 1 and row["attention_backend"] != "torch_native":
            fits = steps <= draft_tokens - 1 <= topk + (steps - 1) * topk**2
            assert isinstance(ours(row), rules.Resolved) == fits


def test_rows_refused_only_for_the_missing_gpu_are_keyed_by_gpu() -> None:
    rows = [row for row in ROWS if "requires Hopper" in row["message"]]
    assert len(rows) == 6
    for row in rows:
        on_hopper = ours(row, gpu_kind="sm90")
        assert isinstance(ours(row), rules.Infeasible)
        assert isinstance(ours(row, gpu_kind="sm80"), rules.Infeasible)
        assert isinstance(on_hopper, rules.Resolved) == (row["topk"] == "1")
