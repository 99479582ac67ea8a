"""The model sampler in whole studies: what it is told, what it says, when it stops, and what it knows beforehand.

Owners live in this process; hosts, servers and requests are real.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from inline import Study
from yaml import safe_dump, safe_load

from storage import queries
from storage.pareto import pareto
from sweep import session
from sweep.cli.main import cli
from sweep.config import load_text
from sweep.errors import UsageError
from sweep.model import Stage, Verdict

pytestmark = pytest.mark.long

YAML = """
name: searched
engine: simulated
model: {{path: org/model}}
server:
  args: {{attention-backend: triton, page-size: 1, max-running-requests: 8}}
  env: {{SPECSWEEP_SIM: '{sim}'}}
space:
  algorithm: [EAGLE, EAGLE3]
  draft_model: [{{name: head, path: org/eagle3-head}}]
  num_steps: [1, 2, 3, 4]
  topk: [1, 4]
  num_draft_tokens: [4, 8, 16]
workload: {{categories: [code, math], per_category: 2, max_tokens: 40, concurrency: [1, 4], repeats: 1}}
objectives: [output_throughput@1, output_throughput@4]
budget: {{trials: {trials}}}
measurement: {{calibrate_launches: 1, baseline_every: 8, engine_default: false, confirm_top: 0}}
hosts: [{{name: here, kind: local, gpus: 1, base_dir: '{base}'}}]
simulate: {{profile: tiny, time_scale: 1}}
"""
# Trees of eight draft tokens and more run out of memory, unless they are shallow.
OOM = {"failures": [{"kind": "oom_at_capture", "when": {"num_draft_tokens": {"min": 8}, "num_steps": {"min": 3}}}]}


def yaml(folder: Path, trials: int, sim: dict[str, Any] | None = None) -> str:
    return YAML.format(sim=json.dumps(sim or {}), trials=trials, base=folder / "host")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Study, Path]]:
    """One study by the model sampler, run once: of what fails and what it then proposes."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        study = Study(folder, yaml(folder, 8, OOM))
        assert study.run() == "finished", study.lines
        yield study, folder


def ask(folder: Path, *args: str) -> Any:
    done = CliRunner().invoke(cli, [*args, "--db", f"sqlite:///{folder / 'inline.db'}"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in args else done.stdout


def test_the_model_is_the_sampler_of_a_speculative_space(searched: tuple[Study, Path]) -> None:
    study, _ = searched
    assert study.spec.sampler == "auto"
    assert study.status()["search"]["sampler"] == "model"
    assert {trial.origin for trial in study.store.trials(study.row.id)} == {"seed", "sampler"}


def test_a_drafter_that_never_accepts_is_tried_once(searched: tuple[Study, Path]) -> None:
    study, _ = searched
    trials = study.store.trials(study.row.id)
    (wrong,) = [trial for trial in trials if trial.config.algorithm == "EAGLE"]
    assert wrong.verdict is Verdict.DRAFTER_INEFFECTIVE
    assert len([trial for trial in trials if trial.verdict is Verdict.COMPLETE]) >= 4


def test_out_of_memory_excludes_every_larger_tree(searched: tuple[Study, Path]) -> None:
    study, _ = searched
    trials = study.store.trials(study.row.id)
    failed = [trial for trial in trials if trial.verdict is Verdict.LAUNCH_OOM]
    assert failed
    for one in failed:
        ours = (one.config.num_steps, one.config.topk, one.config.num_draft_tokens)
        for later in trials[one.number + 1 :]:
            theirs = (later.config.num_steps, later.config.topk, later.config.num_draft_tokens)
            assert not all((mine or 0) <= (other or 0) for mine, other in zip(ours, theirs, strict=True))


def test_why_it_was_proposed_is_kept_and_shown(searched: tuple[Study, Path]) -> None:
    study, folder = searched
    asked = [trial for trial in study.store.trials(study.row.id) if trial.origin == "sampler"]
    assert all("uncertain" in trial.why for trial in asked)
    best = ask(folder, "best", "--json")["best"]
    why = {trial.number: trial.why for trial in study.store.trials(study.row.id)}
    assert [row["why"] for row in best] == [why[row["trial"]] for row in best]
    assert asked[-1].why in ask(folder, "show", str(asked[-1].number))


def test_status_says_what_is_left_and_why_it_ended(searched: tuple[Study, Path]) -> None:
    study, folder = searched
    search = ask(folder, "status", "--json")["search"]
    assert search["regret"] >= 0
    assert search["tolerance"] == 0.01
    assert search["launches_left"] >= 0
    assert search["ended"]["reason"] in {"budget", "decided"}
    assert search["ended"]["why"] in ask(folder, "status")
    assert any(search["ended"]["why"] in line for line in study.lines)
    assert queries.summary(study.store, study.row.id)["search"] == search


def test_whatif_of_what_was_and_was_not_measured(searched: tuple[Study, Path]) -> None:
    study, folder = searched
    ranking = ask(folder, "whatif", "--json")
    assert [row["concurrency"] for row in ranking["answers"]] == [1] * 6 + [4] * 6
    first = ranking["answers"][:6]
    assert sorted(first, key=lambda row: -row["predicted"]["estimate"]) == first
    assert {row["trial"] for row in ranking["calibration"]["checked"]} == {
        trial.number for trial in study.store.trials(study.row.id) if trial.verdict is Verdict.COMPLETE
    }
    (better,) = ask(folder, "whatif", "--config", "2/1/3", "--accept-length", "2.5", "--concurrency", "1", "--json")[
        "answers"
    ]
    # tokens/s at a given accept length and the break-even accept length are one line through the baseline
    share = better["accept_length"]["estimate"] / better["break_even_accept_length"]["estimate"]
    assert better["predicted"]["estimate"] / better["baseline"] == pytest.approx(share)
    assert better["gain"]["estimate"] == pytest.approx(share - 1)
    assert "Checked on the study's own" in ask(folder, "whatif", "--no-graphs", "--concurrency", "2")


def test_whatif_refuses_what_cannot_be(searched: tuple[Study, Path]) -> None:
    _, folder = searched
    for args, words in (
        (("--config", "3/4"), "steps/topk/draft tokens"),
        (("--drafter", "hed"), "there are: head"),
        (("--config", "2/1/3", "--accept-length", "3.5"), "emits 1 to 3 tokens a step"),
        (("--config", "1/4/16"), "cannot be served"),
    ):
        done = CliRunner().invoke(cli, ["whatif", *args, "--db", f"sqlite:///{folder / 'inline.db'}"])
        assert isinstance(done.exception, UsageError)
        assert words in str(done.exception)


def test_a_warm_start_knows_what_the_first_study_learnt(searched: tuple[Study, Path]) -> None:
    first, folder = searched
    text = yaml(folder, 2, OOM).replace("name: searched", "name: warm\nwarm_start: true")
    study = Study(folder, text)
    planned = folder / "warm.yaml"
    planned.write_text(text)
    expected = ask(folder, "plan", str(planned), "--json")["expected"]
    assert [item["study"] for item in expected["studies"]] == ["searched"]
    assert expected["used"]
    assert study.run() == "finished", study.lines
    search = study.status()["search"]
    assert search["warm_start"] == [{"study": "searched", "launches": 8}]
    for trial in study.store.trials(study.row.id):
        assert trial.origin == "sampler"  # no launch is spent on seeds
        assert "warm start from searched" in trial.why
        assert trial.config.algorithm == "EAGLE3"
    assert {row["trial"] for row in queries.best(study.store, study.row.id)["best"]} <= {0, 1}
    assert first.status()["search"]["warm_start"] == []


def test_a_warm_start_from_another_model_is_refused(searched: tuple[Study, Path]) -> None:
    study, folder = searched
    text = (
        yaml(folder, 2).replace("org/model", "org/other").replace("name: searched", "name: cold\nwarm_start: searched")
    )
    with pytest.raises(UsageError, match="its target model is org/model, here it is org/other"):
        session.create(study.store, load_text(text), text)
    assert "cold" not in [row.name for row in study.store.studies()]


def test_a_hopeless_arm_is_stopped_after_its_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA graphs a step takes twice as long: nothing more is measured then. An arm like the best, the
    references and the confirm stage are measured whole."""
    monkeypatch.setenv("HOME", str(tmp_path))
    space = safe_load(yaml(tmp_path, 4))
    tree = {"algorithm": "EAGLE3", "num_steps": 3, "topk": 1, "num_draft_tokens": 4}
    space["known_good"] = [{**tree, "cuda_graph": True}, {**tree, "cuda_graph": False}]
    space["space"] |= {"algorithm": ["EAGLE3"], "num_steps": [2, 3], "topk": [1], "num_draft_tokens": [4]}
    space["space"]["cuda_graph"] = [True, False]
    space["workload"] |= {"concurrency": [1], "repeats": 2}
    space["objectives"] = ["output_throughput@1"]
    space["measurement"] |= {"calibrate_launches": 2, "baseline_every": 2, "confirm_top": 2, "confirm_launches": 1}
    study = Study(tmp_path, safe_dump(space))
    assert study.run() == "finished", study.lines
    trials = {trial.number: trial for trial in study.store.trials(study.row.id)}
    slow = {number for number, trial in trials.items() if not trial.config.cuda_graph}
    assert len(slow) == 2
    assert {number for number, trial in trials.items() if "screened_out" in trial.flags} == slow
    for launch in study.store.measured_launches(study.row.id):
        cut = launch.trial in slow and launch.stage is Stage.SEARCH
        assert [block.round for block in launch.blocks] == ([0] if cut else [0, 1])
    launches = study.store.launches(study.row.id)
    confirmed = {launch.trial for launch in launches if launch.stage is Stage.CONFIRM}
    assert confirmed == {None, *(set(trials) - slow)}
    front = {point["trial"] for point in pareto(study.store, study.row.id)["points"] if point["on_front"]}
    assert front.isdisjoint(slow)
    for number in slow:
        assert trials[number].verdict is Verdict.COMPLETE
        assert set(trials[number].values) == {"output_throughput@1"}
        evidence = trials[number].flags["screened_out"]
        assert re.fullmatch(r"output_throughput@1: at least \d+\.\d % worse than #\d .* after 1 block", evidence)
        assert any(evidence in line for line in study.lines)
