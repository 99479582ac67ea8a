"""Prompt sets: the built-in one, the three file formats, stages, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sweep.bench.workload import CATEGORIES, load_prompts
from sweep.errors import ConfigError
from sweep.model import Stage


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n", encoding="utf-8")
    return path


def test_builtin_prompts() -> None:
    builtin = load_prompts("builtin")
    assert builtin.categories == CATEGORIES
    counts = Counter(p.category for p in builtin.prompts)
    assert min(counts.values()) >= 12
    assert len({p.id for p in builtin.prompts}) == len(builtin.prompts)
    texts = [p.messages[0]["content"] for p in builtin.prompts]
    assert len(set(texts)) == len(texts)
    assert all(15 <= len(text.split()) <= 400 for text in texts)
    summaries = [p for p in builtin.prompts if p.category == "summarisation"]
    assert all(len(p.messages[0]["content"].split()) >= 150 for p in summaries), "there must be a text to summarise"
    assert builtin.not_fresh == ()


def test_stages_are_disjoint_repeatable_and_mixed() -> None:
    builtin = load_prompts("builtin")
    search = builtin.for_stage(Stage.SEARCH, seed=3, per_category=6)
    confirm = builtin.for_stage(Stage.CONFIRM, seed=3, per_category=6)
    assert len(search) == len(confirm) == 36
    assert not {p.id for p in search} & {p.id for p in confirm}
    assert search == builtin.for_stage(Stage.SEARCH, seed=3, per_category=6)
    assert search == builtin.for_stage(Stage.CALIBRATE, seed=3, per_category=6)
    assert search != builtin.for_stage(Stage.SEARCH, seed=4, per_category=6)
    for start in range(0, 36, 6):
        assert [p.category for p in search[start : start + 6]] == list(CATEGORIES)
    whole = [*builtin.for_stage(Stage.SEARCH, seed=3), *builtin.for_stage(Stage.CONFIRM, seed=3)]
    assert sorted(p.id for p in whole) == sorted(p.id for p in builtin.prompts)


def test_a_stage_that_cannot_be_filled_is_refused(tmp_path: Path) -> None:
    rows = [{"category": "a", "prompt": f"text {i}"} for i in range(5)]
    small = load_prompts(write(tmp_path / "p.jsonl", *rows))
    assert len(small.for_stage(Stage.SEARCH, 0, 2)) == len(small.for_stage(Stage.CONFIRM, 0, 2)) == 2
    with pytest.raises(ConfigError, match="'a' has 5 prompts; 3 per stage need 6"):
        small.for_stage(Stage.CONFIRM, 0, 3)


def test_a_single_prompt_is_used_twice_and_named(tmp_path: Path) -> None:
    one = load_prompts(write(tmp_path / "p.jsonl", {"category": "lonely", "prompt": "text"}))
    assert one.not_fresh == ("lonely",)
    assert one.for_stage(Stage.SEARCH, 0) == one.for_stage(Stage.CONFIRM, 0) != ()


def test_categories_by_sha1_uses_the_last_user_text(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "größe"}]
    prompts = load_prompts(write(tmp_path / "p.jsonl", {"category": "math", "messages": messages}))
    assert prompts.categories_by_sha1() == {hashlib.sha1("größe".encode()).hexdigest(): "math"}


def test_categories_and_limit() -> None:
    chosen = load_prompts("builtin", categories=["math", "code"], limit=3)
    assert Counter(p.category for p in chosen.prompts) == {"code": 3, "math": 3}
    with pytest.raises(ConfigError, match="no category 'maths'; did you mean 'math'"):
        load_prompts("builtin", categories=["maths"])


def test_jsonl(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"id": "one", "category": "code", "prompt": "write", "source": "extra keys are fine"},
        "",
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]},
    )
    first, second = load_prompts(path).prompts
    assert (first.id, first.category, first.messages) == ("one", "code", ({"role": "user", "content": "write"},))
    assert (second.id, second.category) == ("mine-2", "other")
    assert [m["role"] for m in second.messages] == ["system", "user"]


def test_mtbench(tmp_path: Path) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["first question", "second question"]}
    (prompt,) = load_prompts(write(tmp_path / "q.jsonl", row)).prompts
    assert (prompt.id, prompt.category, prompt.messages[0]["content"]) == ("81", "writing", "first question")
    assert len(prompt.messages) == 1


@pytest.mark.parametrize("lines", [True, False])
def test_sharegpt(tmp_path: Path, lines: bool) -> None:
    rows = [
        {"id": "x_0", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"id": "y_0", "conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "hey"}]},
    ]
    path = tmp_path / "share.json"
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows, indent=1))
    first, second = load_prompts(path).prompts
    assert (first.id, first.messages) == ("x_0", ({"role": "user", "content": "hi"},))
    assert [m["role"] for m in second.messages] == ["system", "user"]


BROKEN = [
    ('{"prompt": "a"', r"p\.jsonl:2: not JSON"),
    ("[1]", r"p\.jsonl:2: an object is needed, not list"),
    ('{"id": "z"}', r"p\.jsonl:2: exactly one of 'prompt' and 'messages'"),
    ('{"prompt": "a", "messages": []}', r"p\.jsonl:2: exactly one of"),
    ('{"prompt": "  "}', r"p\.jsonl:2: 'prompt' must be a text that is not empty"),
    ('{"prompt": 7}', r"p\.jsonl:2: 'prompt' must be a text"),
    ('{"messages": []}', r"p\.jsonl:2: 'messages' must be a list"),
    ('{"messages": [{"role": "robot", "content": "a"}]}', r"p\.jsonl:2: a message needs 'role'"),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', r"p\.jsonl:2: the last message must be the user's"),
    ('{"id": "ok", "prompt": "again"}', r"p\.jsonl:2: id 'ok' was used before \(.*p\.jsonl:1\)"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "p.jsonl", {"id": "ok", "prompt": "fine"}, line, {"prompt": "fine too"})
    with pytest.raises(ConfigError, match=message):
        load_prompts(path)


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        load_prompts(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "gr\xf6sse"}\n')
    with pytest.raises(ConfigError, match=r"latin\.jsonl:2: not UTF-8"):
        load_prompts(tmp_path / "latin.jsonl")
    (tmp_path / "cut.json").write_text('[{"conversations": [\n')
    with pytest.raises(ConfigError, match=r"cut\.json:2: not JSON"):
        load_prompts(tmp_path / "cut.json")
    write(tmp_path / "silent.json", json.dumps([{"conversations": [{"from": "gpt", "value": "a"}]}]))
    with pytest.raises(ConfigError, match=r"silent\.json, item 1: the conversation has no human turn"):
        load_prompts(tmp_path / "silent.json")
    write(tmp_path / "turns.jsonl", {"question_id": 1, "turns": []})
    with pytest.raises(ConfigError, match=r"turns\.jsonl:1: 'turns' must be a list"):
        load_prompts(tmp_path / "turns.jsonl")
    with pytest.raises(ConfigError, match="unknown prompt format 'csv'"):
        load_prompts("builtin", format="csv")
