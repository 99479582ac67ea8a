"""show, logs and command of one trial."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import details
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.model import (
    Difference,
    Effective,
)
from tests.storage_tests.samples import (
    ARM,
    FAILED,
    SPEED,
    arm,
    block,
    complete,
    gain,
)


class TestOneTrial:
    def test_show(self, store: Store, study: StudyRow, launch: Callable[..., int]) -> None:
        store.add_trial(study.id, ARM, origin="known_good", why="row 5")
        made = launch(trial=0)
        store.launch_probed(made, 2.1, 60, (1, 2))
        store.add_block(made, block())
        store.finish_launch(made)
        effective = Effective(arm(4), {}, (Difference("num_draft_tokens", 5, 4, "topk_1"),), "0.5.17")
        store.finish_trial(study.id, 0, values={SPEED.key: 82.3}, effective=effective, flags={"coerced": "5 -> 4"})
        store.replace_analysis(study.id, [gain(0, -0.086)], {})
        answer = details.show(store, study.id, 0)
        assert (answer["trial"], answer["verdict"], answer["why"]) == (0, "complete", "row 5")
        assert answer["config"]["num_draft_tokens"] == 5
        assert answer["effective"]["num_draft_tokens"] == 4
        assert answer["differences"] == [{"key": "num_draft_tokens", "asked": 5, "effective": 4, "rule": "topk_1"}]
        assert answer["flag_evidence"] == {"coerced": "5 -> 4"}
        [shown] = answer["launches"]
        assert shown["probe"]["accept_length"] == 2.1
        [measured] = shown["blocks"]
        assert measured["output_throughput"] == pytest.approx(100.0)
        assert measured["accept_histogram"] == [40, 100, 60]
        assert answer["gains"][0]["estimate"] == -0.086
        json.dumps(answer, allow_nan=False)

    def test_failed_trial_shows_its_evidence(self, store: Store, study: StudyRow) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        store.finish_trial(study.id, 0, FAILED)
        answer = details.show(store, study.id, 0)
        assert (answer["verdict"], answer["phase"], answer["reason"]) == ("crashed", "benchmark", "crashed")
        assert (answer["evidence"], answer["advice"], answer["values"]) == ("Segmentation fault", "See the log", {})

    def test_unknown_number(self, store: Store, study: StudyRow) -> None:
        with pytest.raises(UsageError, match=r"no trial 3 in study 'kimi'; it has no trials yet"):
            details.show(store, study.id, 3)
        complete(store, study, [arm(4), arm(5)])
        with pytest.raises(UsageError, match="trials are numbered 0 to 1"):
            details.show(store, study.id, 3)

    def test_command_is_quoted_and_keeps_references(
        self, store: Store, study: StudyRow, launch: Callable[..., int]
    ) -> None:
        store.add_trial(study.id, ARM, origin="sampler")
        with pytest.raises(UsageError, match="no launch yet"):
            details.launch_command(store, study.id, 0)
        launch(trial=0)
        answer = details.launch_command(store, study.id, 0)
        assert answer["command"] == (
            "NCCL_PROTO='LL 128' HF_TOKEN=\"${HF_TOKEN}\" python3 -m sglang.launch_server --model-path '/models/a b'"
        )

    def test_log_of_a_local_host_is_read_live(
        self, store: Store, study: StudyRow, launch: Callable[..., int], tmp_path: Path
    ) -> None:
        log = tmp_path / "server.log"
        log.write_bytes(b"one\ntwo \xff\nthree\n")
        store.add_trial(study.id, ARM, origin="sampler")
        made = launch(trial=0, log_path=str(log))
        store.add_host(study.id, "gpu-a", "local")
        assert details.log_lines(store, study.id, 0, 2)[1] == ["two \N{REPLACEMENT CHARACTER}", "three"]
        store.finish_launch(made, None, log_tail=["a", "b", "c"])
        log.unlink()
        assert details.log_lines(store, study.id, 0, 2)[1] == ["b", "c"]

    def test_file_of_the_same_name_here_is_not_another_hosts_log(
        self, store: Store, study: StudyRow, launch: Callable[..., int], tmp_path: Path
    ) -> None:
        log = tmp_path / "server.log"
        log.write_text("somebody else's\n")
        store.add_trial(study.id, ARM, origin="sampler")
        store.add_host(study.id, "gpu-a", "ssh")
        store.finish_launch(launch(trial=0, log_path=str(log)), None, log_tail=["a"])
        assert details.log_lines(store, study.id, 0, 9)[1] == ["a"]
