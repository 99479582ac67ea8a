"""docs/reference/ is what the program would make of it now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_tests.pages import PAGES, ROOT, prose

GENERATOR = ROOT / "docs" / "generator"
REFERENCE = ROOT / "docs" / "reference"


def generate(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_reference_pages_are_of_now() -> None:
    done = generate(REFERENCE, "--check")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_a_stale_page_is_found(tmp_path: Path) -> None:
    assert generate(tmp_path).returncode == 0
    page = tmp_path / "yaml.md"
    page.write_text(page.read_text(encoding="utf-8").replace("`max_tokens`", "`most_tokens`"), encoding="utf-8")
    done = generate(tmp_path, "--check")
    assert done.returncode == 1
    assert "most_tokens" in done.stdout
    assert "1 pages are stale" in done.stderr


def test_the_annotated_space_has_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import yaml_page

    text = (ROOT / "search_spaces" / "eagle3.yaml").read_text(encoding="utf-8")
    names = {path.split(".")[-1] for path in yaml_page.paths()}
    assert {"max_tokens", "ttft_ms", "image"} <= names
    assert [name for name in sorted(names) if not re.search(rf"\b{name}:", text)] == []


def test_keys_named_in_text_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import yaml_page

    there = yaml_page.paths()
    assert {"workload.max_tokens", "hosts.gpus", "workload.slo.ttft_ms"} <= there
    tops = {path.split(".")[0] for path in there}
    named = {
        (page.name, span)
        for page in PAGES
        for span in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", prose(page))
        if span.split(".")[0] in tops and not span.endswith((".log", ".yaml"))
    }
    assert len(named) > 3
    assert [(page, span) for page, span in sorted(named) if span not in there] == []


def test_nothing_is_left_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import database_page
    import verdict_page
    import yaml_page

    from storage import schema
    from sweep.config.parts import Workload

    makers = (yaml_page, database_page, verdict_page)
    assert [word for maker in makers for word in maker.undocumented()] == []

    monkeypatch.setattr(schema.trials.c.why, "doc", None)
    assert database_page.undocumented() == ["trials.why"]

    monkeypatch.setattr(Workload.model_fields["max_tokens"], "description", None)
    Workload.model_rebuild(force=True)
    whole = yaml_page.StudySpec
    whole.model_rebuild(force=True)
    try:
        assert yaml_page.undocumented() == ["workload: max_tokens"]
    finally:
        monkeypatch.undo()
        Workload.model_rebuild(force=True)
        whole.model_rebuild(force=True)
