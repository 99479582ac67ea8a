"""SGLang, versions 0.5.17 and 0.5.23: its flags, its log, its HTTP answers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from launchers import diagnosis
from launchers.engines import effective as readback
from launchers.engines import probing
from launchers.engines.flags import table_for
from launchers.engines.pins import Pin, recommended_pins
from launchers.engines.sglang_log import log_reader
from launchers.redact import Redactor
from sweep.model import ArmConfig, Diagnosis, Drafter, Effective, FlagValue, LaunchSpec, Phase
from sweep.seams import HostTools, HttpGet, LogState

# Ours to set, on every launch; pins of these names are left out and named in `notes`.
OWNED = frozenset(
    {
        "host", "port", "api-key", "config", "model-path", "revision", "trust-remote-code", "speculative-algorithm",
        "speculative-draft-model-path", "speculative-draft-model-revision", "speculative-num-steps",
        "speculative-eagle-topk", "speculative-num-draft-tokens",
    }
)  # fmt: skip

# Reads the version without importing the package, which would take a quarter of a minute; a tree without metadata
# (unpacked by hand) still has its version file.
_VERSION = """
import importlib.metadata as m, importlib.util as u, pathlib, re, sys
try:
    print(m.version("sglang"))
except m.PackageNotFoundError:
    spec = u.find_spec("sglang")
    for name in ("_version.py", "version.py"):
        path = pathlib.Path(spec.origin).parent / name if spec and spec.origin else None
        found = path and path.exists() and re.search(r"version__\\s*=.*?['\\"]([0-9][^'\\"]*)", path.read_text())
        if found:
            print(found.group(1))
            sys.exit(0)
    sys.exit("no sglang here")
"""


class SglangEngine:
    """``sweep.seams.Engine`` for SGLang. Stateless."""

    name: str = "sglang"
    time_scale: float = 1.0
    packages: tuple[str, ...] = ("sglang", "torch", "transformers")
    # What Triton, torch, TVM's FFI (SGLang's own kernels), FlashInfer, DeepGEMM, TileLang and the driver compile.
    caches: Mapping[str, str] = MappingProxyType(
        {
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
            "TORCH_EXTENSIONS_DIR": "torch_extensions",
            "TVM_FFI_CACHE_DIR": "tvm-ffi",
            "FLASHINFER_WORKSPACE_BASE": "flashinfer",
            "SGLANG_DG_CACHE_DIR": "deep_gemm",
            "TILELANG_CACHE_DIR": "tilelang",
            "CUDA_CACHE_PATH": "cuda",
        }
    )
    speaks: ClassVar[tuple[str, ...]] = ("0.5.17", "0.5.23")

    def tools(self, gpus: int) -> HostTools:
        """Nothing is needed on the host beyond what it has."""
        return HostTools()

    def version_command(self, python: str) -> tuple[str, ...]:
        """argv that prints the installed version in a fraction of a second, or exits 1."""
        return (python, "-c", _VERSION)

    def command(self) -> tuple[str, ...]:
        """What is run, before the flags."""
        return ("@PYTHON@", "-m", "sglang.launch_server")

    def notes(self, server_args: Mapping[str, FlagValue], version: str) -> tuple[str, ...]:
        """What the user should know about these pins on this version. Pure."""
        table, note = table_for(version)
        out = [note] if note else []
        for given in server_args:
            name = table.canonical(given)
            if name in OWNED:
                out.append(f"--{name} is set by us on every launch; the pin is left out")
            elif not table.knows(given):
                near = table.nearest(given)
                out.append(f"SGLang {table.version} has no --{name}" + (f"; nearest: --{near}" if near else ""))
        return tuple(out)

    def recommended_pins(
        self, server_args: Mapping[str, FlagValue], concurrency_levels: Sequence[int], version: str
    ) -> tuple[Pin, ...]:
        """Pins to add on every arm, with the reason of each; to be stored with the study."""
        return recommended_pins(server_args, concurrency_levels, version)

    def launch_spec(
        self,
        arm: ArmConfig,
        *,
        model: Mapping[str, Any],
        drafters: Mapping[str, Drafter],
        server_args: Mapping[str, FlagValue],
        env: Mapping[str, str],
        secret_env: Mapping[str, str],
        version: str,
        gpus: tuple[int, ...],
    ) -> LaunchSpec:
        """argv for this version. ``model``: {path, revision, trust_remote_code}. KeyError for an unknown drafter name.

        The baseline gets the pins alone (less those that only concern speculation); the engine default the algorithm
        and drafter; a candidate all three numbers, since SGLang dies on some of them without the others. A fresh API
        key for every launch travels in a 0600 file.
        """
        table, _ = table_for(version)
        args = table.normalise(server_args)
        args.update(table.normalise(dict(arm.extra)))
        args = {name: value for name, value in args.items() if name not in OWNED}
        if not arm.speculative:
            args = {name: value for name, value in args.items() if not name.startswith("speculative-")}
        if not arm.cuda_graph:
            # The current spelling of --disable-cuda-graph in both versions; a pinned prefill backend stays.
            args = {"cuda-graph-backend-prefill": "disabled", **args, "cuda-graph-backend-decode": "disabled"}
        elif args.get("cuda-graph-backend-decode") == "disabled":
            del args["cuda-graph-backend-decode"]  # the arm decides, not the pin
        args.update(_speculative(arm, drafters))
        head: dict[str, FlagValue] = {
            "model-path": model["path"],
            "revision": model.get("revision"),
            "trust-remote-code": bool(model.get("trust_remote_code")),
        }
        words = [word for name, value in {**head, **args}.items() for word in table.render(name, value)]
        api_key = secrets.token_hex(24)
        # JSON is YAML; unquoted, a key of digits alone would be read as a number.
        config = f"api-key: {json.dumps(api_key)}\n".encode()
        own = {"SPT_NOENV": "1"}  # else setproctitle wipes /proc/PID/environ, and our marker with it
        if gpus and "CUDA_VISIBLE_DEVICES" not in env:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
            own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of nvidia-smi, from which the numbers come
        return LaunchSpec(
            argv=(*self.command(), *words, "--host", "127.0.0.1", "--port", "@PORT@", "--config", "@DIR@/sglang.yaml"),
            env={**env, **own},
            secret_env=dict(secret_env),
            files={"sglang.yaml": config},
            gpus=gpus,
            api_key=api_key,
        )

    def log_state(self) -> Callable[[str], LogState]:
        return log_reader()

    def diagnose(
        self, log_lines: Sequence[str], *, exit_code: int | None, phase: Phase, timed_out: bool, arm: ArmConfig
    ) -> Diagnosis:
        return diagnosis.diagnose(log_lines, exit_code=exit_code, phase=phase, timed_out=timed_out, arm=arm)

    def probe_diagnosis(
        self,
        accept_length: float | None,
        verify_steps: int,
        arm: ArmConfig,
        drafters: Mapping[str, Drafter],
        *,
        log_lines: Sequence[str] = (),
        target_config: Mapping[str, Any] | None = None,
        drafter_config: Mapping[str, Any] | None = None,
    ) -> Diagnosis | None:
        """Is the drafter of any use? None where it is, or where too few verify steps were seen to say.

        The architectures come from the log (SGLang names the class of each set of weights it loads), vocabularies and
        windows from each config.json.
        """
        target, drafter = probing.facts_from_log(log_lines)
        target, drafter = probing.with_config(target, target_config), probing.with_config(drafter, drafter_config)
        return probing.probe_diagnosis(accept_length, verify_steps, arm, drafter, target)

    def ready(self, http: HttpGet) -> bool:
        """``/ready`` where the version has it, else ``/health_generate``, which takes about a second."""
        try:
            status, _ = http("GET", "/ready")
            if status in (404, 405):
                status, _ = http("GET", "/health_generate")
        except OSError:
            return False
        return status == 200

    def effective(
        self, http: HttpGet, arm: ArmConfig, drafters: Mapping[str, Drafter], server_args: Mapping[str, FlagValue]
    ) -> tuple[Effective, dict[str, Any]]:
        """RuntimeError where ``/server_info`` gives no answer to read; OSError where there is none at all."""
        info = readback.read_server_info(http)
        return readback.effective(info, arm, drafters, server_args), Redactor().value(info)

    def reset(self, http: HttpGet) -> None:
        """Flush the prefix cache; refused while requests run. Waits up to 10 s for them to end."""
        status, body = http("POST", "/flush_cache?timeout=10")
        if status != 200:
            raise RuntimeError(f"/flush_cache answered {status}: {body[:300].decode('utf-8', 'replace').strip()}")

    def settle(self, http: HttpGet) -> None:
        """Take what lives since the start out of the server's garbage collections (``/freeze_gc``; newer versions do so
        themselves). Unfrozen, SGLang 0.5.17 halted once in each launch for 0.4 to 0.5 s, in whichever block it fell."""
        status, body = http("POST", "/freeze_gc")
        if status not in (200, 404, 405):
            raise RuntimeError(f"/freeze_gc answered {status}: {body[:300].decode('utf-8', 'replace').strip()}")

    def abort_all(self, http: HttpGet) -> None:
        """Ends every request, since SIGTERM waits for them without limit. A server that is gone has none."""
        try:
            http("POST", "/abort_request", {"rid": "", "abort_all": True})
        except OSError:
            return

    def next_tokens(self, http: HttpGet, ids: Sequence[int], count: int) -> dict[int, float]:
        """From ``/generate`` with ``return_logprob``: one token is generated greedily and the ``count`` likeliest are
        read from ``meta_info.output_top_logprobs``, whose items are [log-probability, token, text]."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": count,
        }
        status, answer = http("POST", "/generate", body)
        try:
            first = json.loads(answer)["meta_info"]["output_top_logprobs"][0]
            return {int(token): float(logprob) for logprob, token, *_ in first}
        except (ValueError, LookupError, TypeError) as error:
            words = answer[:300].decode("utf-8", "replace").strip()
            raise RuntimeError(f"/generate answered {status} without log-probabilities: {words}") from error


def _speculative(arm: ArmConfig, drafters: Mapping[str, Drafter]) -> dict[str, FlagValue]:
    if arm.algorithm is None:
        return {}
    drafter = drafters[arm.draft_model] if arm.draft_model is not None else None
    tokens = arm.num_draft_tokens
    if tokens is None and arm.topk == 1 and arm.num_steps is not None:
        tokens = arm.num_steps + 1  # the only value SGLang runs with topk 1
    return {
        # Upper case: some of SGLang's model overrides compare the word before it is normalised.
        "speculative-algorithm": arm.algorithm.upper(),
        "speculative-draft-model-path": drafter.path if drafter else None,
        "speculative-draft-model-revision": drafter.revision if drafter else None,
        "speculative-num-steps": arm.num_steps,
        "speculative-eagle-topk": arm.topk,
        "speculative-num-draft-tokens": tokens,
    }
