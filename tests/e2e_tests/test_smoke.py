"""One study from the command line to its answers: the smoke space on simulated servers."""

from __future__ import annotations

import json
import re

import pytest
from e2e_helpers import SPACES, User

pytestmark = pytest.mark.ray
Smoke = tuple[User, str]
CONFIG = {"algorithm", "draft_model", "num_steps", "topk", "num_draft_tokens", "cuda_graph"}


def test_start_prints_one_document(smoke: Smoke) -> None:
    user, stdout = smoke
    answer = json.loads(stdout)
    assert answer["study"] == "smoke"
    assert answer["simulated"] is True
    assert answer["state"] == "finished"
    assert answer["counts"] == {"complete": 3}
    assert [entry["trial"] for entry in answer["best"]]
    assert user.left() == []


def test_best(smoke: Smoke) -> None:
    user, _ = smoke
    answer = user.json("best")
    assert answer["simulated"] is True
    baseline = answer["baseline"]["by_objective"]["output_throughput@1"]
    assert len(answer["best"]) == 3
    first = answer["best"][0]
    assert first["rank"] == 1
    assert set(first["config"]) == CONFIG
    assert first["effective"] == first["config"]
    assert first["verdict"] == "complete"
    assert first["comparison"] == "faster"
    assert first["gain"]["stage"] == "confirm"
    assert first["gain"]["basis"] == "alternate"
    assert first["gain"]["low"] <= first["gain"]["estimate"] <= first["gain"]["high"]
    assert first["throughput"] == pytest.approx(baseline * (1 + first["gain"]["estimate"]), rel=0.05)
    expected = first["accept_length"] / (1 + first["gain"]["estimate"])
    assert first["break_even_accept_length"] == pytest.approx(expected, rel=0.01)
    for entry in answer["best"]:
        assert "simulated" in entry["flags"]
        assert set(entry["by_category"]) == {"code", "writing"}
    assert [entry["rank"] for entry in answer["best"]] == sorted(entry["rank"] for entry in answer["best"])


def test_pareto(smoke: Smoke) -> None:
    user, _ = smoke
    answer = user.json("pareto")
    assert answer["objectives"] == ["output_throughput@1"]
    assert sorted(point["trial"] for point in answer["points"] if not point["is_baseline"]) == [0, 1, 2]
    assert [point["is_baseline"] for point in answer["points"]].count(True) == 1
    values = {point["trial"]: point["values"]["output_throughput@1"] for point in answer["points"]}
    front = {point["trial"] for point in answer["points"] if point["on_front"]}
    assert front == {max(values, key=lambda trial: values[trial])}


def test_status(smoke: Smoke) -> None:
    user, _ = smoke
    answer = user.json("status")
    assert answer["state"] == "finished"
    assert answer["simulated"] is True
    assert answer["counts"] == {"complete": 3}
    assert answer["launches"] == {"search": 3, "total": 7}  # two brackets, three candidates, one confirmed pair
    assert [(host["name"], host["state"], host["phase"]) for host in answer["hosts"]] == [("gpu-a", "idle", None)]


def test_show_holds_launches_blocks_and_evidence(smoke: Smoke) -> None:
    user, _ = smoke
    answer = user.json("show", "1")
    assert answer["verdict"] == "complete"
    assert answer["simulated"] is True
    launch = answer["launches"][0]
    assert launch["stop"]["clean"] is True
    assert launch["probe"]["verify_steps"] >= 60
    assert launch["argv"]
    assert not any("api_key" in word or "api-key" in word for word in launch["argv"])
    block = launch["blocks"][0]
    assert block["n_ok"] == block["n_requests"] == 4
    assert block["accept_length"] == pytest.approx(launch["probe"]["accept_length"], rel=0.15)


def test_each_server_is_settled_once_before_its_first_block(smoke: Smoke) -> None:
    user, _ = smoke
    logs = [path.read_text() for path in user.home.glob("**/server.log")]
    assert len(logs) == 7
    for log in logs:
        lines = re.findall("Cache flushed|Freezing GC", log)
        assert lines.count("Freezing GC") == 1
        assert 0 < lines.index("Freezing GC") < len(lines) - 1  # flushed for the warm-up before, for blocks after


def test_every_text_output_says_simulated(smoke: Smoke) -> None:
    user, _ = smoke
    for command in (["best"], ["pareto"], ["status"], ["ls"], ["show", "0"]):
        assert "simulated" in user.run(*command).stdout.lower(), command


def test_plan_launches_nothing_and_agrees_with_what_ran(smoke: Smoke) -> None:
    user, _ = smoke
    answer = user.json("plan", str(SPACES / "smoke.yaml"))
    assert (answer["distinct"], answer["duplicates"], len(answer["infeasible"])) == (3, 0, 1)
    assert "8 draft tokens" in answer["infeasible"][0]["reason"]
    assert answer["launches"] == user.json("status")["launches"]["total"]
    assert [arm["num_draft_tokens"] for arm in answer["arms"]] == [2, 4, 8]


def test_the_name_is_taken(smoke: Smoke) -> None:
    user, _ = smoke
    done = user.run("start", "smoke", "--simulate", exit_code=4)
    assert "resume" in done.stderr
    assert done.stdout == ""


def test_an_unknown_study_names_its_neighbours(smoke: Smoke) -> None:
    user, _ = smoke
    assert "Near: smoke" in user.run("resume", "smoek", exit_code=5).stderr


def test_changed_pins_are_refused_with_the_reason(smoke: Smoke) -> None:
    user, _ = smoke
    done = user.run("resume", "smoke", "--set", "server.args.page-size=16", exit_code=2)
    assert "page-size" in done.stderr
    assert user.json("status")["launches"]["total"] == 7
