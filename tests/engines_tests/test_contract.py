"""What every engine keeps: one class of tests, run for each, which is why it is longer than 300 lines."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launchers.engines.flags import table_for
from launchers.engines.sglang import OWNED, SglangEngine
from launchers.engines.simulated import SimulatedEngine, profile_names
from sweep.errors import UsageError
from sweep.model import ArmConfig, Drafter, FlagValue, LaunchSpec, Phase, Verdict
from sweep.seams import Engine, LogState
from sweep.server_http import ServerHttp

HTTP = Path(__file__).parents[1] / "data" / "sglang-0.5.17" / "http"
VERSIONS = ("0.5.17", "0.5.23")
DRAFTERS = {"a": Drafter("a", "/models/a", "main"), "b": Drafter("b", "/models/b; rm -rf $(x)")}
PINS: dict[str, FlagValue] = {
    "tp-size": 2, "attention-backend": "triton", "page_size": 1, "cuda-graph-bs": (1, 2, 4), "random-seed": 1,
    "disable-custom-all-reduce": True, "speculative-draft-load-format": "dummy", "mem-fraction-static": 0.5,
}  # fmt: skip
ARMS = (
    ArmConfig(),
    ArmConfig(cuda_graph=False),
    ArmConfig("EAGLE3", "a"),
    ArmConfig("eagle3", "a", 3, 1, 4),
    ArmConfig("EAGLE3", "b", 3, 1),
    ArmConfig("EAGLE3", "b", 3, 4, 16, cuda_graph=False),
    ArmConfig("NGRAM", None, None, None, 8),
    ArmConfig("STANDALONE", "a", 5, 4, 8, extra=(("page-size", 16), ("speculative-attention-mode", "decode"))),
)


class Http:
    """Recorded or made-up answers; remembers what was asked."""

    def __init__(self, answers: Mapping[tuple[str, str], tuple[int, bytes] | OSError]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, method: str, path: str, json: Any = None) -> tuple[int, bytes]:
        self.asked.append((method, path, json))
        answer = self.answers.get((method, path.partition("?")[0]), (404, b'{"detail":"Not Found"}'))
        if isinstance(answer, OSError):
            raise answer
        return answer


class EngineContract:
    """Subclasses give the engine."""

    def engine(self) -> Any:
        raise NotImplementedError

    def spec(self, arm: ArmConfig, version: str = "0.5.17", **changes: Any) -> LaunchSpec:
        given: dict[str, Any] = {
            "model": {"path": "/models/target", "revision": None, "trust_remote_code": False}, "drafters": DRAFTERS,
            "server_args": PINS, "env": {"NCCL_PROTO": "LL"}, "secret_env": {"HF_TOKEN": "hush-hush"},
            "version": version, "gpus": (2, 3), **changes,
        }  # fmt: skip
        spec = self.engine().launch_spec(arm, **given)
        assert isinstance(spec, LaunchSpec)
        return spec

    def flags(self, spec: LaunchSpec) -> dict[str, list[str]]:
        """Option -> its words, of the part that SGLang itself parses."""
        out: dict[str, list[str]] = {}
        for word in spec.argv[len(self.engine().command()) :]:
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                assert name not in out, f"--{name} is given twice"
                out[name] = [value] if equals else []
                last = name
            else:
                out[last].append(word)
        return out

    def test_it_is_an_engine(self) -> None:
        engine: Engine = self.engine()
        assert engine.name
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", package) for package in engine.packages)
        for method in ("tools", "version_command", "launch_spec", "log_state", "diagnose", "ready", "effective",
                       "reset", "abort_all"):  # fmt: skip
            assert callable(getattr(engine, method))

    def test_each_cache_of_compiled_kernels_has_a_folder_of_its_own(self) -> None:
        caches = self.engine().caches
        assert caches
        assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", variable) for variable in caches)
        assert all(re.fullmatch(r"[a-z][a-z0-9_-]+", folder) for folder in caches.values())
        assert len(set(caches.values())) == len(caches)
        assert not {"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "HOME"} & set(caches), "models stay where they are"

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label())
    def test_only_full_names_of_this_version_with_the_right_number_of_values(
        self, arm: ArmConfig, version: str
    ) -> None:
        table, note = table_for(version)
        assert note is None
        for name, words in self.flags(self.spec(arm, version)).items():
            kind = table.kinds[name.removeprefix("no-") if name not in table.kinds else name]
            assert len(words) == {"switch": 0, "toggle": 0, "value": 1}.get(kind, len(words))
            assert kind != "list" or words

    @pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label())
    def test_the_same_pins_on_every_arm(self, arm: ArmConfig) -> None:
        flags = self.flags(self.spec(arm))
        meant = {name for name, _ in arm.extra}
        for name, words in {
            "tp-size": ["2"], "attention-backend": ["triton"], "page-size": ["1"], "random-seed": ["1"],
            "cuda-graph-bs-decode": ["1", "2", "4"], "disable-custom-all-reduce": [], "mem-fraction-static": ["0.5"],
        }.items():  # fmt: skip
            assert name in meant or flags[name] == words
        assert self.spec(arm).env["NCCL_PROTO"] == "LL"

    def test_the_baseline_is_the_pins_alone(self) -> None:
        flags = self.flags(self.spec(ArmConfig()))
        assert not [name for name in flags if name.startswith("speculative")]
        assert "cuda-graph-backend-decode" not in flags

    def test_the_engine_default_leaves_the_three_numbers_to_the_engine(self) -> None:
        flags = self.flags(self.spec(ArmConfig("EAGLE3", "a")))
        assert flags["speculative-algorithm"] == ["EAGLE3"]
        assert flags["speculative-draft-model-path"] == ["/models/a"]
        assert flags["speculative-draft-model-revision"] == ["main"]
        assert flags["speculative-draft-load-format"] == ["dummy"]
        for name in ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"):
            assert name not in flags

    @pytest.mark.parametrize(
        ("arm", "numbers"),
        [
            (ArmConfig("eagle3", "a", 3, 1, 4), ["3", "1", "4"]),
            (ArmConfig("EAGLE3", "b", 3, 1), ["3", "1", "4"]),
            (ArmConfig("EAGLE3", "b", 3, 4, 16), ["3", "4", "16"]),
            (ArmConfig("EAGLE3", "b", 3, 1, 8), ["3", "1", "8"]),  # asked is asked: the rewrite is read back
        ],
    )
    def test_a_candidate_gives_all_three_numbers(self, arm: ArmConfig, numbers: list[str]) -> None:
        flags = self.flags(self.spec(arm))
        assert flags["speculative-algorithm"] == ["EAGLE3"]
        given = [flags[f"speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
        assert given == [[n] for n in numbers]

    def test_axes_override_pins(self) -> None:
        flags = self.flags(self.spec(ARMS[-1]))
        assert flags["page-size"] == ["16"]
        assert flags["speculative-attention-mode"] == ["decode"]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_graphs_off_by_the_current_flags(self, version: str) -> None:
        flags = self.flags(self.spec(ArmConfig(cuda_graph=False), version))
        assert flags["cuda-graph-backend-decode"] == ["disabled"]
        assert flags["cuda-graph-backend-prefill"] == ["disabled"]
        assert "disable-cuda-graph" not in flags
        pinned = {**PINS, "cuda-graph-backend-prefill": "breakable"}
        flags = self.flags(self.spec(ArmConfig(cuda_graph=False), version, server_args=pinned))
        assert flags["cuda-graph-backend-prefill"] == ["breakable"]

    def test_the_arm_decides_about_graphs(self) -> None:
        flags = self.flags(self.spec(ArmConfig(), server_args={**PINS, "disable-cuda-graph": True}))
        assert "cuda-graph-backend-decode" not in flags

    def test_where_it_listens_is_ours_to_say(self) -> None:
        pins = {**PINS, "host": "0.0.0.0", "port": 1, "api-key": "users-own-key", "speculative-num-steps": 9}
        spec = self.spec(ArmConfig("EAGLE3", "a"), server_args=pins)
        flags = self.flags(spec)
        assert flags["host"] == ["127.0.0.1"]
        assert flags["port"] == ["@PORT@"]
        assert flags["model-path"] == ["/models/target"]
        assert "speculative-num-steps" not in flags
        assert "users-own-key" not in repr(spec.argv)
        notes = self.engine().notes(pins, "0.5.17")
        assert sum("set by us" in note for note in notes) == 4
        assert {"host", "port", "api-key"} <= OWNED

    def test_the_api_key_travels_in_a_file_alone(self) -> None:
        spec, again = self.spec(ARMS[3]), self.spec(ARMS[3])
        assert spec.api_key
        assert spec.api_key != again.api_key
        (line,) = spec.files["sglang.yaml"].decode().splitlines()
        name, _, value = line.partition(": ")
        assert name == "api-key"  # underscores would be no option of SGLang's parser
        assert json.loads(value) == spec.api_key
        shown = repr(spec.argv) + repr(dict(spec.env)) + repr(spec)
        assert spec.api_key not in shown
        assert "hush-hush" not in shown
        assert spec.secret_env == {"HF_TOKEN": "hush-hush"}
        words = self.flags(spec)
        assert words["config"] == ["@DIR@/sglang.yaml"]

    def test_environment(self) -> None:
        env = self.spec(ArmConfig()).env
        assert env["SPT_NOENV"] == "1"
        assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert self.spec(ArmConfig(), env={"CUDA_VISIBLE_DEVICES": "GPU-1"}).env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert "CUDA_VISIBLE_DEVICES" not in self.spec(ArmConfig(), gpus=()).env

    def test_hostile_paths_stay_one_word(self) -> None:
        flags = self.flags(self.spec(ARMS[4]))
        assert flags["speculative-draft-model-path"] == ["/models/b; rm -rf $(x)"]

    def test_an_unknown_drafter_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            self.spec(ArmConfig("EAGLE3", "nobody", 3, 1, 4))

    def test_an_unknown_version_is_said(self) -> None:
        assert self.engine().notes({}, "0.5.17") == ()
        (note,) = self.engine().notes({}, "0.9.0")
        assert "0.5.23" in note
        (near,) = self.engine().notes({"speculative-num-stepz": 1}, "0.5.23")
        assert "nearest: --speculative-num-steps" in near

    @pytest.mark.parametrize(
        ("answers", "ready"),
        [
            ({("GET", "/ready"): (200, b"")}, True),
            ({("GET", "/ready"): (503, b"")}, False),
            ({("GET", "/health_generate"): (200, b"")}, True),  # /ready is 404 in 0.5.17
            ({("GET", "/health_generate"): (503, b"")}, False),
            ({("GET", "/ready"): OSError("refused")}, False),
            ({}, False),
        ],
    )
    def test_ready(self, answers: Any, ready: bool) -> None:
        assert self.engine().ready(Http(answers)) is ready

    def test_reset(self) -> None:
        http = Http({("POST", "/flush_cache"): (200, b"Cache flushed.")})
        self.engine().reset(http)
        assert http.asked[0][1].startswith("/flush_cache")
        busy = Http({("POST", "/flush_cache"): (400, b"Flush cache failed: 3 running")})
        with pytest.raises(RuntimeError, match="3 running"):
            self.engine().reset(busy)

    def test_settle(self) -> None:
        http = Http({("POST", "/freeze_gc"): (200, b"Garbage collection frozen.")})
        self.engine().settle(http)
        assert http.asked == [("POST", "/freeze_gc", None)]
        self.engine().settle(Http({}))  # a version without it
        with pytest.raises(RuntimeError, match="401: no key"):
            self.engine().settle(Http({("POST", "/freeze_gc"): (401, b"no key")}))
        with pytest.raises(ConnectionError):
            self.engine().settle(Http({("POST", "/freeze_gc"): ConnectionError("gone")}))

    def test_abort_all(self) -> None:
        http = Http({("POST", "/abort_request"): (200, b"")})
        self.engine().abort_all(http)
        assert http.asked == [("POST", "/abort_request", {"rid": "", "abort_all": True})]
        self.engine().abort_all(Http({("POST", "/abort_request"): OSError("gone")}))

    def test_effective_reads_back_and_hides_the_key(self) -> None:
        info = json.loads((HTTP / "eagle3_steps3_topk4_draft8.server_info.json").read_text())
        body = json.dumps({**info, "api_key": "top-secret-key", "launch_command": "--api-key top-secret-key"}).encode()
        drafters = {"trained": Drafter("trained", "/models/drafter")}
        arm = ArmConfig("EAGLE3", "trained", 3, 4, 8)
        found, stored = self.engine().effective(
            Http({("GET", "/server_info"): (200, body)}), arm, drafters, {"page-size": 1}
        )
        assert found.status == "exact"
        assert "top-secret-key" not in json.dumps(stored)
        assert stored["page_size"] == 1

    def test_log_readers_are_independent(self) -> None:
        one, other = self.engine().log_state(), self.engine().log_state()
        assert one("[2026-01-01 00:00:00] The server is fired up and ready to roll!").ready
        assert other("[2026-01-01 00:00:00] Load weight begin.") == LogState(phase=Phase.WEIGHTS)

    def test_diagnoses(self) -> None:
        found = self.engine().diagnose(
            ["RuntimeError: CUDA out of memory."], exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=ARMS[3]
        )
        assert found.verdict is Verdict.LAUNCH_OOM
        assert self.engine().probe_diagnosis(2.0, 99, ARMS[3], DRAFTERS) is None


class TestSglang(EngineContract):
    def engine(self) -> SglangEngine:
        return SglangEngine()

    def test_command(self) -> None:
        assert self.spec(ArmConfig()).argv[:3] == ("@PYTHON@", "-m", "sglang.launch_server")
        assert set(self.spec(ArmConfig()).files) == {"sglang.yaml"}
        assert SglangEngine().tools(1).gpu_query == ("nvidia-smi",)

    def test_version_without_importing(self, tmp_path: Path) -> None:
        """Metadata first; a tree unpacked without it by its version file; nothing found is an exit status."""

        def run(path: Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                SglangEngine().version_command(sys.executable),
                env={"PYTHONPATH": str(path)},
                capture_output=True,
                text=True,
            )

        tree = tmp_path / "tree" / "sglang"
        tree.mkdir(parents=True)
        (tree / "__init__.py").write_text("raise SystemExit('imported')\n")
        (tree / "_version.py").write_text("__version__ = version = '0.5.17'\n")
        assert run(tree.parent).stdout.strip() == "0.5.17"
        metadata = tree.parent / "sglang-0.5.23.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
        assert run(tree.parent).stdout.strip() == "0.5.23"
        missing = run(tmp_path)
        assert missing.returncode == 1
        assert "no sglang here" in missing.stderr


def _read(engine: SglangEngine, log: Path) -> LogState:
    feed, state = engine.log_state(), LogState()
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        state = feed(line)
    return state


@contextmanager
def _served(spec: LaunchSpec, folder: Path) -> Iterator[tuple[ServerHttp, Path]]:
    """The spec as a launcher runs it; ended with everything of its process group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = {"@PYTHON@": sys.executable, "@DIR@": str(folder), "@BASE@": str(folder), "@PORT@": str(port)}
    argv = list(spec.argv)
    for token, value in words.items():
        argv = [word.replace(token, value) for word in argv]
    for name, content in spec.files.items():
        (folder / name).write_bytes(content)
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**spec.env, "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    http = ServerHttp(f"http://127.0.0.1:{port}", spec.api_key)
    try:
        deadline = time.monotonic() + 30
        while not _read(SglangEngine(), log).ready:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield http, log
    finally:
        http.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


CATEGORIES = {hashlib.sha1(b"hello").hexdigest(): "code"}


class TestSimulated(EngineContract):
    def engine(self) -> SimulatedEngine:
        return SimulatedEngine("tiny", 2.0, CATEGORIES, seed=3, host_name="gpu-a")

    def test_everything_it_needs_is_sent_along(self) -> None:
        spec = self.spec(ArmConfig())
        assert spec.argv[:2] == ("@PYTHON@", "@DIR@/server.py")
        assert {"server.py", "profile.json", "categories.json", "sglang.yaml"} == set(spec.files)
        assert json.loads(spec.files["categories.json"]) == CATEGORIES
        assert json.loads(spec.files["profile.json"])["speaks_as"] in VERSIONS
        words = dict(zip(spec.argv[2::2], spec.argv[3::2], strict=False))
        assert words["--time-scale"] == "2.0"
        assert words["--seed"] == "3"
        assert words["--host-name"] == "gpu-a"

    def test_it_speaks_as_its_profile(self) -> None:
        command = self.engine().version_command(sys.executable)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == self.engine().version

    def test_the_stand_in_for_nvidia_smi_answers(self, tmp_path: Path) -> None:
        tools = self.engine().tools(2)
        for name, content in tools.files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        argv = [word.replace("@PYTHON@", sys.executable).replace("@BASE@", str(tmp_path)) for word in tools.gpu_query]
        query = [*argv, "--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits"]
        done = subprocess.run(query, capture_output=True, text=True, check=True)
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.strip().splitlines()]
        assert [row[0] for row in rows] == ["0", "1"]
        assert all(int(row[3]) > int(row[4]) >= 0 for row in rows)

    @pytest.mark.parametrize(
        ("arm", "status", "runs", "verdict"),
        [
            (ArmConfig(), "exact", ArmConfig(), None),
            (ArmConfig("EAGLE3", "head", 3, 1, 8), "coerced", ArmConfig("EAGLE3", "head", 3, 1, 4), None),
            (ArmConfig("EAGLE3", "head"), "exact", ArmConfig("EAGLE3", "head", 5, 4, 8), None),
            (ArmConfig("EAGLE3", "head", 3, 4, 8, False), "exact", ArmConfig("EAGLE3", "head", 3, 4, 8, False), None),
            (ArmConfig("EAGLE", "head", 3, 4, 8), "exact", ArmConfig("EAGLE", "head", 3, 4, 8), "algorithm_mismatch"),
        ],
        ids=["baseline", "coerced", "engine default", "no graphs", "wrong algorithm"],
    )
    def test_against_the_real_simulated_server(
        self, tmp_path: Path, arm: ArmConfig, status: str, runs: ArmConfig, verdict: str | None
    ) -> None:
        engine = SimulatedEngine("tiny", 1.0, {}, seed=1)
        drafters = {"head": Drafter("head", "/models/eagle3-head")}
        spec = engine.launch_spec(
            arm, model={"path": "/models/target"}, drafters=drafters, server_args={"attention-backend": "triton"},
            env={}, secret_env={}, version=engine.version, gpus=(0,),
        )  # fmt: skip
        with _served(spec, tmp_path) as (http, log):
            assert engine.ready(http)
            found, stored = engine.effective(http, arm, drafters, {"attention-backend": "triton"})
            assert (found.status, found.config) == (status, runs)
            assert found.version == engine.version
            assert spec.api_key is not None
            assert spec.api_key not in json.dumps(stored)
            engine.reset(http)
            sampling = {"max_new_tokens": 150, "temperature": 0, "ignore_eos": True}
            code, body = http("POST", "/generate", {"text": "hello", "sampling_params": sampling})
            assert code == 200
            meta = json.loads(body)["meta_info"]
            if arm.speculative:
                steps = meta["spec_verify_ct"]
                length = 1 + meta["spec_num_correct_drafts"] / steps
                lines = log.read_text().split("\n")
                diagnosis = engine.probe_diagnosis(length, steps, arm, drafters, log_lines=lines)
                assert (diagnosis.reason if diagnosis else None) == verdict
            engine.abort_all(http)
            assert not _read(engine, log).flags

    def test_a_profile_by_path_and_unknown_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.json"
        path.write_text(json.dumps({"speaks_as": "0.5.23"}))
        assert SimulatedEngine(str(path)).version == "0.5.23"
        path.write_text("{")
        with pytest.raises(UsageError, match="not JSON"):
            SimulatedEngine(str(path))
        path.write_text("{}")
        with pytest.raises(UsageError, match="speaks_as"):
            SimulatedEngine(str(path))
        name = profile_names()[0]
        with pytest.raises(UsageError, match=f"nearest: '{name}'"):
            SimulatedEngine(name + "x")
        with pytest.raises(UsageError, match="time_scale"):
            SimulatedEngine(name, time_scale=0)
