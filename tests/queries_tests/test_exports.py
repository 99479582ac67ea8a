"""Exports for other tools: they are read back by the tools themselves, or checked against the tools' own rules."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from storage.records import StudyRow
from storage.store import Store
from sweep.errors import UsageError
from sweep.exports.acceptance import summary
from sweep.exports.adaptive import adaptive, bounds
from sweep.exports.manifests import compose, dns_name, kubernetes
from sweep.exports.serving import serving
from sweep.exports.winner import chosen
from tests.commands import Run
from tests.report_tests.made import LONG, SHORT, TREE, make


class TestOptuna:
    def test_optuna_opens_the_file(self, sweep: Run, tmp_path: Path) -> None:
        import optuna

        target = tmp_path / "optuna.db"
        code, out, err = sweep("export", "night", "--format", "optuna", "-o", str(target), "--json")
        assert code == 0, err
        assert json.loads(out)["rows"] == {"trials": 5}
        storage = optuna.storages.RDBStorage(f"sqlite:///{target}")
        study = optuna.load_study(study_name="night", storage=storage)
        states = [trial.state.name for trial in study.trials]
        assert states == ["COMPLETE"] * 4 + ["PRUNED"]
        assert study.metric_names == ["output_throughput@1", "output_throughput@32"]
        assert study.trials[1].params["num_steps"] == 3
        assert study.trials[1].values == pytest.approx([139.4, 1295], rel=0.01)
        assert study.trials[4].values is None
        assert study.trials[4].user_attrs["verdict"] == "launch_oom"
        assert {trial.number for trial in study.best_trials} == {0, 1}
        storage.remove_session()
        storage.engine.dispose()


class TestManifests:
    def test_compose(self, store: Store, study: StudyRow) -> None:
        text = compose(study, chosen(store, study, None))
        service = yaml.safe_load(text)["services"]["sglang"]
        assert text.startswith("# Trial 1 of study night: EAGLE3 good 3/1/4.")
        assert service["image"] == "lmsysorg/sglang:v0.5.23"
        assert service["command"][:3] == ["python3", "-m", "sglang.launch_server"]
        assert _flags(service["command"])["--host"] == "0.0.0.0"
        assert service["ports"] == ["127.0.0.1:30000:30000"]
        environment = service["environment"]
        assert environment.pop("HF_TOKEN") == "${HF_TOKEN:?set HF_TOKEN}"
        assert environment == {"HF_HOME": "/hub", "NCCL_PROTO": "LL 128"}
        assert "${HF_HOME:-~/.cache/huggingface}:/hub" in service["volumes"]
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
        assert "/drafters/good:/drafters/good:ro" in service["volumes"]

    def test_compose_follows_the_specification(self, store: Store, study: StudyRow) -> None:
        # Compose itself fills in variables and `~` before it reads the rest.
        text = re.sub(r"\$\{(\w+):[-?]([^}]*)\}", r"\2", compose(study, chosen(store, study, None)))
        text = text.replace("~/", "/srv/user/")
        assert list(PyCompose.from_yaml(text).to_spec().services) == ["sglang"]
        with pytest.raises(ValueError, match="healthchek"):
            PyCompose.from_yaml(text.replace("healthcheck", "healthchek"))

    @pytest.mark.parametrize("version", ["1.29", "1.37"])
    def test_kubernetes_follows_the_schema(self, store: Store, study: StudyRow, version: str) -> None:
        documents = list(yaml.safe_load_all(kubernetes(study, chosen(store, study, 2))))
        assert [document["kind"] for document in documents] == ["Deployment", "Service"]
        for document in documents:
            kubernetes_validate.validate(document, version, strict=True)
            wrong = {**document, "spec": {**document["spec"], "replica": 1}}
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, version, strict=True)

    def test_kubernetes(self, store: Store, study: StudyRow) -> None:
        deployment, service = yaml.safe_load_all(kubernetes(study, chosen(store, study, 2)))
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert _flags(container["command"])["--speculative-num-draft-tokens"] == "8"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
        assert {"name": "NCCL_PROTO", "value": "LL 128"} in container["env"]
        secret = next(item for item in container["env"] if item["name"] == "HF_TOKEN")
        assert secret["valueFrom"]["secretKeyRef"] == {"name": "night-secrets", "key": "HF_TOKEN"}
        assert {"name": "HF_HOME", "value": "/hub"} in container["env"]
        assert {"name": "hub", "mountPath": "/hub"} in container["volumeMounts"]
        mounts = {item["name"] for item in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
        assert "&id" not in kubernetes(study, chosen(store, study, 2))

    def test_a_study_of_running_servers_has_no_command(self, store: Store, study: StudyRow) -> None:
        attached = replace(study, notes=({"attached": "http://127.0.0.1:30000", "arm": {}},))
        with pytest.raises(UsageError, match="running already"):
            serving(attached, None)

    def test_the_image_of_the_hosts_is_used(self, store: Store, study: StudyRow) -> None:
        host = {**study.spec["hosts"][0], "container": {"image": "registry.test/engine:7"}}
        contained = replace(study, spec={**study.spec, "hosts": [host]})
        text = compose(contained, chosen(store, study, None))
        assert yaml.safe_load(text)["services"]["sglang"]["image"] == "registry.test/engine:7"

    def test_no_key_or_folder_of_ours(self, store: Store, study: StudyRow) -> None:
        words = serving(study, chosen(store, study, None)).argv
        assert not {"--config", "--api-key", "@PORT@", "@DIR@", "@PYTHON@"} & set(words)
        assert words.count("--host") == words.count("--port") == 1

    @pytest.mark.parametrize(("name", "label"), [("Kimi_K2.5!", "kimi-k2-5"), ("---", "study"), ("a" * 80, "a" * 50)])
    def test_dns_name(self, name: str, label: str) -> None:
        assert dns_name(name) == label

    def test_only_a_complete_trial(self, store: Store, study: StudyRow) -> None:
        with pytest.raises(UsageError, match=r"trial 4 .* is not complete \(launch_oom\)"):
            chosen(store, study, 4)


class TestAdaptive:
    def test_tiers_of_the_best_drafter(self, store: Store, study: StudyRow) -> None:
        document, about = adaptive(store, study)
        # 3 steps at 1, 1 step at 8, none at 32; tiers change at the geometric middle.
        assert document == {
            "1": {"candidate_steps": [3]},
            "3": {"candidate_steps": [1]},
            "16": {"candidate_steps": [0]},
        }
        assert (about["algorithm"], about["draft_model"], about["startup_num_steps"]) == ("EAGLE3", "good", 3)
        assert [tier["trial"] for tier in about["tiers"]] == [1, 0, None]

    def test_shape(self, sweep: Run, tmp_path: Path) -> None:
        """Integer-string keys that are lower bounds of batch size, beginning at 1; lists of integers >= 0; a start
        among the candidates (SGLang refuses any other)."""
        target = tmp_path / "adaptive.json"
        code, out, err = sweep("export", "night", "--format", "adaptive", "-o", str(target), "--json")
        assert code == 0, err
        document = json.loads(target.read_text())
        keys = [int(key) for key in document]
        assert keys == sorted(set(keys))
        assert keys[0] == 1
        for slot in document.values():
            assert set(slot) == {"candidate_steps"}
            assert all(type(step) is int and step >= 0 for step in slot["candidate_steps"])
        steps = {step for slot in document.values() for step in slot["candidate_steps"]}
        assert json.loads(out)["startup_num_steps"] in steps

    def test_says_every_flag_of_the_server_that_takes_it(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "my adaptive.json"
        _, out, _ = sweep("export", "night", "--format", "adaptive", "-o", str(target))
        words = shlex.split(out)
        assert words[words.index("--speculative-adaptive-config") + 1] == str(target)
        assert words[words.index("--speculative-eagle-topk") + 1] == "1"
        steps = {step for tier in json.loads(target.read_text()).values() for step in tier["candidate_steps"]}
        assert int(words[words.index("--speculative-num-steps") + 1]) in steps - {0}

    def test_equal_neighbours_are_one_tier(self) -> None:
        tiers = [{"concurrency": c, "steps": s} for c, s in ((1, 3), (4, 3), (16, 1), (64, 0))]
        assert bounds(tiers) == [(1, 3), (8, 1), (32, 0)]

    def test_without_chains(self, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'own.db'}") as own:
            study = make(own, failed=[SHORT, LONG])
            assert {t.config for t in own.trials(study.id)} >= {TREE}
            with pytest.raises(UsageError, match="no complete EAGLE or EAGLE3 arm with topk 1"):
                adaptive(own, study)


class TestAcceptance:
    def test_profile(self, sweep: Run, tmp_path: Path) -> None:
        target = tmp_path / "acceptance.json"
        code, _, err = sweep("export", "night", "--format", "acceptance", "-o", str(target))
        assert code == 0, err
        found: dict[str, Any] = json.loads(target.read_text())
        assert found["format"] == "specsweep-acceptance-1"
        assert found["config"]["num_steps"] == 3
        assert set(found["by_category"]) == {"code", "math"}
        assert set(found["by_concurrency"]) == {"1", "8", "32"}
        assert found["overall"]["accept_length"] == pytest.approx(1 + 55 / 50)
        assert found["overall"]["requests"] == 2 * (8 + 16 + 64)

    def test_summary_by_hand(self) -> None:
        found = summary([(10, 12, (2, 4, 4)), (10, 3, (7, 3))])
        assert found == {
            "accept_length": 1.75,
            "requests": 2,
            "verify_steps": 20,
            "accept_histogram": [9, 7, 4],
            "accept_by_depth": [11 / 20, 4 / 11],
        }


class TestCommand:
    @pytest.mark.parametrize("kind", ["optuna", "compose", "kubernetes", "adaptive", "acceptance"])
    def test_a_file_that_exists_is_kept(self, sweep: Run, tmp_path: Path, kind: str) -> None:
        target = tmp_path / "there"
        target.write_text("mine")
        code, _, err = sweep("export", "night", "--format", kind, "-o", str(target))
        assert code == 2
        assert "exists already" in err
        assert target.read_text() == "mine"

    def test_nothing_half_written_is_left(self, sweep: Run, tmp_path: Path) -> None:
        code, _, _ = sweep("export", "night", "--format", "compose", "--trial", "4", "-o", str(tmp_path / "x"))
        assert code == 2
        assert list(tmp_path.iterdir()) == []

    def test_trial_only_where_it_says_something(self, sweep: Run, tmp_path: Path) -> None:
        code, _, err = sweep("export", "night", "--format", "csv", "--trial", "1", "-o", str(tmp_path / "x"))
        assert code == 2
        assert "--trial says nothing" in err


def _flags(words: list[str]) -> dict[str, str]:
    return dict(pairwise(words))
