# ruff: noqa: E501 - log lines are quoted as the server wrote them
"""Publicly reported failures as a table: words of the log -> verdict, reason, retry; and the traps beside them.

Longer than 300 lines because it is one table: the traps are read beside the cases they resemble.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from launchers.diagnosis import diagnose, with_foreign_processes
from sweep.model import ArmConfig, Diagnosis, GpuProcess, Phase, Retry, Verdict

TREE = ArmConfig("EAGLE", "head", 5, 8, 64)
CHAIN = ArmConfig("EAGLE3", "head", 3, 1, 4)
SIGQUIT = "[2026-01-01 00:00:09] Received sigquit from a child process. It usually means the child failed."
HINTS = "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
SPEC_FRAME = '  File "/x/sglang/srt/arg_groups/speculative_hook.py", line 5, in _handle_eagle_family'


@dataclass(frozen=True)
class Case:
    log: str
    verdict: Verdict
    reason: str
    retry: Retry
    advice: str
    phase: Phase = Phase.KV_POOL  # the phase the server was in
    says: Phase | None = None  # the phase of the diagnosis, where it is another
    exit_code: int | None = -9
    timed_out: bool = False
    arm: ArmConfig = TREE
    dominates: tuple[str, ...] | None = None


CASES: dict[str, Case] = {
    "A01 out of memory at capture": Case(
        f"Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.\n{HINTS}\n\n{SIGQUIT}",
        Verdict.LAUNCH_OOM, "gpu_oom", Retry.NEVER, "Lower mem-fraction-static", Phase.GRAPH_CAPTURE,
        dominates=("num_steps", "topk", "num_draft_tokens"),
    ),
    "A02 fraction too small, 0.5.23": Case(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        f"mem_fraction_static=0.6\n{SIGQUIT}",
        Verdict.LAUNCH_OOM, "mem_fraction_too_small", Retry.NEVER, "Raise mem-fraction-static (now 0.6)", Phase.WEIGHTS,
        Phase.KV_POOL, dominates=(),
    ),
    "A04 out of memory under load": Case(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.50 GiB. GPU 0 has a total capacity of 178 GiB",
        Verdict.CRASHED, "oom_at_runtime", Retry.ONCE, "Lower mem-fraction-static", Phase.BENCHMARK,
    ),
    "A05 no drafter, Qwen": Case(
        f"AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'\n{SIGQUIT}",
        Verdict.LAUNCH_CONFIG_ERROR, "draft_path_missing", Retry.NEVER, "Give a draft_model",
        arm=ArmConfig("EAGLE3", None, 3, 1, 4),
    ),
    "A05 a whole model given as head": Case(
        "AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'",
        Verdict.LAUNCH_CONFIG_ERROR, "algorithm_mismatch", Retry.NEVER, "Check draft_model's path", arm=CHAIN,
    ),
    "A06 extra tensor": Case(
        "KeyError: 'embed_tokens.weight'", Verdict.LAUNCH_CONFIG_ERROR, "draft_target_mismatch", Retry.NEVER,
        "hidden_size", Phase.WEIGHTS,
    ),
    "A06 hidden sizes differ": Case(
        "    assert hidden_states.shape[-1] == input_embeds.shape[-1]\nAssertionError",
        Verdict.LAUNCH_CONFIG_ERROR, "draft_target_mismatch", Retry.NEVER, "hidden_size", Phase.GRAPH_CAPTURE,
    ),
    "A07 drafter's tensor of another shape": Case(
        '  File "/x/sglang/srt/models/mimo_v2_nextn.py", line 300, in load_weights\n'
        '  File "/x/sglang/srt/layers/parameter.py", line 218, in load_merged_column_weight\n'
        "    assert param_data.shape == loaded_weight.shape\nAssertionError",
        Verdict.LAUNCH_CONFIG_ERROR, "draft_weights_incompatible", Retry.NEVER, "original checkpoint", Phase.WEIGHTS,
    ),
    "A09 topk on trtllm_mha": Case(
        "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
        Verdict.LAUNCH_CONFIG_ERROR, "topk_refused", Retry.NEVER, "attention-backend triton", Phase.START, Phase.CONFIG,
        exit_code=1, dominates=("num_steps", "topk", "num_draft_tokens"),
    ),
    "A09 topk on FlashInfer MLA, after the weights": Case(
        "ValueError: Currently Flashinfer MLA only supports topk=1 for speculative decoding",
        Verdict.LAUNCH_CONFIG_ERROR, "topk_refused", Retry.NEVER, "keep topk at 1",
    ),
    "A09 topk on FlashMLA": Case(
        "ValueError: Currently FlashMLA only supports topk=1 for speculative decoding",
        Verdict.LAUNCH_CONFIG_ERROR, "topk_refused", Retry.NEVER, "keep topk at 1",
    ),
    "A11 tree larger than the pool": Case(
        f"RuntimeError: selected index k out of range\n{SIGQUIT}",
        Verdict.LAUNCH_CONFIG_ERROR, "tree_too_large", Retry.NEVER, "at most 13",
        Phase.WARMUP, arm=ArmConfig("EAGLE", "head", 2, 3, 40), dominates=("num_draft_tokens",),
    ),
    "A13, A14, A15 compiling kernels": Case(
        "[2026-01-01 00:00:00] Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
        Verdict.LAUNCH_TIMEOUT, "jit_compile", Retry.ONCE, "launch_timeout_s", Phase.GRAPH_CAPTURE, exit_code=None,
        timed_out=True,
    ),
    "A16 watchdog ended it": Case(
        "[2026-01-01 00:00:00 DP0 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)\n"
        "Subprocess scheduler_0 crashed with exit code -3. Triggering SIGQUIT for cleanup...",
        Verdict.CRASHED, "watchdog", Retry.ONCE, "dp-attention", Phase.BENCHMARK,
    ),
    "A16 watchdog, still there": Case(
        "[DP0 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)",
        Verdict.HUNG, "watchdog", Retry.ONCE, "dp-attention", Phase.BENCHMARK, exit_code=None, timed_out=True,
    ),
    "A18, A19 illegal access under load": Case(
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        Verdict.CRASHED, "illegal_access", Retry.ONCE, "once more on a clean GPU", Phase.BENCHMARK,
    ),
    "A20 illegal access at capture": Case(
        f"Exception: Capture cuda graph failed: CUDA error: an illegal memory access was encountered\n{HINTS}",
        Verdict.CRASHED, "illegal_access", Retry.ONCE, "not memory", Phase.GRAPH_CAPTURE,
    ),
    "A21 longer than the drafter's window": Case(
        "/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu:163: operator(): block: [0,0,0], thread: [1,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"` failed.\n'
        "RuntimeError: CUDA error: device-side assert triggered",
        Verdict.CRASHED, "draft_context_exceeded", Retry.NEVER, "window", Phase.BENCHMARK,
    ),
    "A22 a derived port is held": Case(
        "port 31234 is in use. Waiting for 29 seconds for rpc_port to be available.\n"
        "ValueError: rpc_port at 31234 is not available in 30 seconds. rpc_port is used by a process already.",
        Verdict.INFRA_ERROR, "port_in_use", Retry.LATER, "sweep ps HOST", Phase.CONFIG, Phase.START, exit_code=1,
    ),
    "A23 /dev/shm too small": Case(
        "gpu-a:812:812 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-AbC123 "
        f"(size 7340384)\n{SIGQUIT}",
        Verdict.INFRA_ERROR, "host_shm", Retry.LATER, "--shm-size", Phase.WEIGHTS,
    ),
    "A25 ranks disagree": Case(
        "[rank0]:[E101 00:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=11, OpType=GATHER, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        Verdict.HUNG, "rank_mismatch", Retry.NEVER, "tp-size", Phase.BENCHMARK,
    ),
    "A26 no kernel for this GPU": Case(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        Verdict.LAUNCH_CONFIG_ERROR, "unsupported_gpu", Retry.NEVER, "kind of GPU", Phase.GRAPH_CAPTURE,
    ),
    "A26 on-chip shared memory": Case(
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376. "
        "Reducing block sizes or `num_stages` may help.",
        Verdict.LAUNCH_CONFIG_ERROR, "unsupported_gpu", Retry.NEVER, "kind of GPU", Phase.GRAPH_CAPTURE,
    ),
    "A27 host memory while loading": Case(
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a "
        "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        Verdict.INFRA_ERROR, "host_oom", Retry.LATER, "host memory", Phase.WEIGHTS, exit_code=1,
    ),
    "A27 another exit code is no host memory": Case(
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -11). If exit code is -9 (SIGKILL), a "
        "common cause is the OS OOM killer.",
        Verdict.CRASHED, "process_died", Retry.ONCE, "segmentation fault", Phase.WEIGHTS, exit_code=1,
    ),
    "C01, C04 somebody else's memory": Case(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 1.00 GiB is free. Process 4242 has 98.63 GiB memory in use. Including non-PyTorch memory, this process "
        "has 38.00 GiB memory in use.",
        Verdict.INFRA_ERROR, "gpu_dirty", Retry.LATER, "pid 4242 (98.63 GiB)", Phase.WEIGHTS, dominates=(),
    ),
    "C05 silent after so many requests": Case(
        "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, cuda graph: True, gen "
        "throughput (token/s): 5.0, #queue-req: 0",
        Verdict.HUNG, "no_tokens", Retry.ONCE, "fresh port", Phase.BENCHMARK, exit_code=None, timed_out=True,
    ),
    "C06 Ray lost the actor": Case(
        "Baseline trial failed: The actor 12ab is unavailable: The actor is temporarily unavailable: RpcError: Socket closed",
        Verdict.INFRA_ERROR, "ray", Retry.LATER, "tried again", Phase.BENCHMARK, exit_code=None,
    ),
    "C08 Ray's memory monitor": Case(
        "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed "
        "due to other reasons at node (ID: ab, IP: 192.0.2.10)",
        Verdict.INFRA_ERROR, "host_oom", Retry.LATER, "host's own memory", Phase.BENCHMARK, exit_code=None,
    ),
    "C10 versions differ": Case(
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.39.0  Python: 3.10.14",
        Verdict.INFRA_ERROR, "ray_version", Retry.NEVER, "patch level", Phase.START, exit_code=1,
    ),
    "C11 no GPU seen": Case(
        "RuntimeError: No CUDA GPUs are available", Verdict.INFRA_ERROR, "gpu_visibility", Retry.LATER,
        "CUDA_VISIBLE_DEVICES", Phase.CONFIG, Phase.START, exit_code=1,
    ),
    "C12 never started": Case(
        "", Verdict.INFRA_ERROR, "never_started", Retry.LATER, "no log", Phase.START, exit_code=None,
    ),
    "C13 no such command": Case(
        "nohup: failed to run command 'python9': No such file or directory",
        Verdict.LAUNCH_CONFIG_ERROR, "environment", Retry.NEVER, "absolute path", Phase.START, exit_code=127,
    ),
    "C13 status 127 alone": Case(
        "something nobody knows", Verdict.LAUNCH_CONFIG_ERROR, "environment", Retry.NEVER, "absolute path",
        Phase.START, exit_code=127,
    ),
    "C13 the wrong python": Case(
        "/usr/bin/python3: No module named sglang", Verdict.LAUNCH_CONFIG_ERROR, "environment", Retry.NEVER,
        "sweep doctor", Phase.START, exit_code=1,
    ),
    "C14 memory held by others": Case(
        "ValueError: Free memory on device cuda:1 (3.10/22.05 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 19.84 GiB).",
        Verdict.INFRA_ERROR, "gpu_dirty", Retry.LATER, "sweep doctor", Phase.START, exit_code=1,
    ),
    "C14 a margin of 70 MB": Case(
        "ValueError: Free memory on device cuda:1 (19.77/22.05 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 19.84 GiB).",
        Verdict.LAUNCH_OOM, "gpu_memory_borderline", Retry.NEVER, "Lower the share", Phase.START, exit_code=1,
    ),
    "an ambiguous old flag, 0.5.23": Case(
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
        "--cuda-graph-max-bs-prefill",
        Verdict.LAUNCH_CONFIG_ERROR, "bad_flag", Retry.NEVER, "--cuda-graph-max-bs-decode", Phase.START, Phase.CONFIG,
        exit_code=2,
    ),
    "a message-less assertion on the tree": Case(
        f"Traceback (most recent call last):\n{SPEC_FRAME}\nAssertionError",
        Verdict.LAUNCH_CONFIG_ERROR, "partial_tree", Retry.NEVER, "or none of them", Phase.START, Phase.CONFIG, exit_code=1,
    ),
    "vocabularies differ": Case(
        "ValueError: STANDALONE speculative decoding requires the draft model to share the same vocabulary as the target "
        "model, but got target vocab_size=151936 and draft vocab_size=32000.",
        Verdict.LAUNCH_CONFIG_ERROR, "draft_target_mismatch", Retry.NEVER, "vocabularies",
    ),
    "target without EAGLE3": Case(
        "RuntimeError: Model FooForCausalLM does not implement set_eagle3_layers_to_capture, which is required",
        Verdict.LAUNCH_CONFIG_ERROR, "target_unsupported", Retry.NEVER, "another algorithm",
    ),
    "KV cache ran out": Case(
        "RuntimeError: Decode out of memory. Try to lower your batch size.",
        Verdict.CRASHED, "kv_exhausted", Retry.ONCE, "max-running-requests", Phase.BENCHMARK,
    ),
    "refused before loading": Case(
        'Traceback (most recent call last):\n  File "/x/sglang/srt/server_args.py", line 9, in resolve\n'
        "ValueError: tp_size must divide the attention heads",
        Verdict.LAUNCH_CONFIG_ERROR, "rejected_arguments", Retry.NEVER, "message is the evidence", Phase.START,
        Phase.CONFIG, exit_code=1,
    ),
    "requires another GPU": Case(
        'Traceback (most recent call last):\n  File "/x/sglang/srt/server_args.py", line 9, in resolve\n'
        "AssertionError: FA3 requires Hopper",
        Verdict.LAUNCH_CONFIG_ERROR, "unsupported_gpu", Retry.NEVER, "kind of GPU", Phase.START, Phase.CONFIG, exit_code=1,
    ),
    "killed while serving": Case(
        "Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        Verdict.INFRA_ERROR, "killed_from_outside", Retry.LATER, "killed from outside", Phase.BENCHMARK,
    ),
    "no answer from the scheduler": Case(
        "[2026-01-01 00:00:00] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds",
        Verdict.HUNG, "no_response", Retry.ONCE, "once more", Phase.BENCHMARK, exit_code=None, timed_out=True,
    ),
}  # fmt: skip


def _diagnose(case: Case) -> Diagnosis:
    lines = case.log.split("\n") if case.log else []
    return diagnose(lines, exit_code=case.exit_code, phase=case.phase, timed_out=case.timed_out, arm=case.arm)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    found = _diagnose(case)
    assert (found.verdict, found.reason, found.retry) == (case.verdict, case.reason, case.retry)
    assert found.phase == (case.says or case.phase)
    assert case.advice in found.advice
    if case.dominates is not None:
        assert found.dominates == case.dominates


# The same words, where they are no cause: inside a request that was logged, a file name, a later line of another end.
HARMLESS = {
    "a prompt about memory": "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(text='RuntimeError: CUDA out of memory')",
    "a prompt that imitates a log": "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(text='x [2026-01-01 00:00:00] "
    "RuntimeError: CUDA out of memory')",
    "a file name": "Loading /models/out of memory/config.json",
    "an optional import": "[2026-01-01 00:00:00] OpenAI Responses API disabled: (ModuleNotFoundError: No module named 'x')",
    "a dead request": '[2026-01-01 00:00:00] INFO:     127.0.0.1:5 - "POST /timeout HTTP/1.1" 500 Internal Server Error',
    "the advice alone": "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    "a wait for a port": "port 31234 is in use. Waiting for 29 seconds for rpc_port to be available.",
    "sigquit alone": SIGQUIT,
    "a type error elsewhere": '  File "/x/foo.py", line 3, in bar\n'
    "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
    "an assertion elsewhere": '  File "/x/foo.py", line 3, in bar\nAssertionError',
    "a value error after loading": '  File "/x/sglang/srt/models/foo.py", line 3, in bar\nValueError: nobody knows this',
    "shared memory in prose": "[2026-01-01 00:00:00] Using shared memory for multimodal features",
    "compiling, but it exited": "[2026-01-01 00:00:00] Entering DeepGEMM JIT Pre-Compile session.",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_unknown_ends_are_crashed_and_never_a_wrong_class(name: str) -> None:
    found = diagnose(HARMLESS[name].split("\n"), exit_code=1, phase=Phase.GRAPH_CAPTURE, timed_out=False, arm=CHAIN)
    assert (found.verdict, found.reason, found.retry) == (Verdict.CRASHED, "unknown", Retry.ONCE)
    assert found.dominates == ()
    assert found.log_tail[-1] == HARMLESS[name].split("\n")[-1]


def test_out_of_memory_has_three_causes() -> None:
    gpu = diagnose(["RuntimeError: CUDA out of memory."], exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=TREE)
    dirty = _diagnose(CASES["C01, C04 somebody else's memory"])
    host = _diagnose(CASES["C08 Ray's memory monitor"])
    assert [d.verdict for d in (gpu, dirty, host)] == [Verdict.LAUNCH_OOM, Verdict.INFRA_ERROR, Verdict.INFRA_ERROR]


def test_a_small_neighbour_is_not_blamed_for_our_own_memory() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Process 7 has 512.00 MiB memory in use."
    found = diagnose([line], exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=TREE)
    assert (found.verdict, found.reason) == (Verdict.LAUNCH_OOM, "gpu_oom")


def test_foreign_processes_turn_out_of_memory_into_the_surroundings_fault() -> None:
    oom = diagnose(["RuntimeError: CUDA out of memory."], exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=TREE)
    assert with_foreign_processes(oom, ()) is oom
    found = with_foreign_processes(oom, (GpuProcess("GPU-1", 99, 5000, "other"),))
    assert (found.verdict, found.retry, found.dominates) == (Verdict.INFRA_ERROR, Retry.LATER, ())
    assert "pid 99 of other (5000 MiB)" in found.advice
    crash = diagnose(["boom"], exit_code=1, phase=Phase.READY, timed_out=False, arm=TREE)
    assert with_foreign_processes(crash, (GpuProcess("GPU-1", 99, 5000),)) is crash


def test_the_cause_stands_above_its_consequences() -> None:
    lines = [
        "[2026-01-01 00:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), ...",
        SIGQUIT,
        "[2026-01-01 00:00:09] SIGTERM received. signum=None frame=None.",
    ]
    found = diagnose(lines, exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=TREE)
    assert found.reason == "gpu_oom"


@pytest.mark.parametrize(
    ("phase", "verdict", "reason"),
    [
        (Phase.WEIGHTS, Verdict.LAUNCH_TIMEOUT, "no_progress"),
        (Phase.WARMUP, Verdict.LAUNCH_TIMEOUT, "no_progress"),
        (Phase.BENCHMARK, Verdict.HUNG, "no_tokens"),
    ],
)
def test_standing_still(phase: Phase, verdict: Verdict, reason: str) -> None:
    found = diagnose(
        ["[2026-01-01 00:00:00] Load weight begin."], exit_code=None, phase=phase, timed_out=True, arm=CHAIN
    )
    assert (found.verdict, found.reason, found.retry) == (verdict, reason, Retry.ONCE)


def test_a_server_that_died_while_we_waited_did_not_hang() -> None:
    found = diagnose(["boom"], exit_code=1, phase=Phase.BENCHMARK, timed_out=True, arm=CHAIN)
    assert found.verdict is Verdict.CRASHED


def test_our_own_stop_after_a_hang_is_not_a_termination_from_outside() -> None:
    lines = ["[2026-01-01 00:00:09] SIGTERM received. signum=None frame=None."]
    found = diagnose(lines, exit_code=None, phase=Phase.BENCHMARK, timed_out=True, arm=CHAIN)
    assert found.verdict is Verdict.HUNG


def test_odd_logs_are_read() -> None:
    logs = [
        ["\ufffd\ufffd binary \x00 noise", "x" * 300_000],
        [
            "  0%|          | 0/8 [00:00<?, ?it/s]\r 50%|  | 4/8\r[2026-01-01 00:00:00] RuntimeError: CUDA out of memory."
        ],
        ["[2026-01-01 00:00:00] Load weight begin.[2026-01-01 00:00:01] RuntimeError: CUDA out of memory."],
    ]
    found = [diagnose(log, exit_code=-9, phase=Phase.WEIGHTS, timed_out=False, arm=CHAIN) for log in logs]
    assert [d.reason for d in found] == ["killed_silently", "gpu_oom", "gpu_oom"]
    assert all(len(d.evidence) <= 600 for d in found)
    assert max(len(line) for d in found for line in d.log_tail) <= 2400


def test_credentials_are_masked_in_what_is_kept() -> None:
    log = [
        "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='/m', api_key='0123abcd', port=1)",
        "boom api_key='0123abcd'",
    ]
    found = diagnose(log, exit_code=1, phase=Phase.CONFIG, timed_out=False, arm=CHAIN)
    assert "0123abcd" not in repr(found)
    assert found.evidence == "boom api_key='***'"
