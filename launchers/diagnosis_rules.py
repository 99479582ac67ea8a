"""The rule table of ``launchers.diagnosis``: causes before consequences, the narrow before the wide.

Sources: logs recorded from SGLang 0.5.17, the message texts of 0.5.17 and 0.5.23, and public reports of failures.
Longer than 300 lines because it is one table whose order is its meaning.
"""

from __future__ import annotations

import difflib
import re

from launchers.diagnosis_rule import Found, Rule
from launchers.engines.flags import table_for
from sweep.model import Phase, Retry, Verdict

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
# A larger tree of the same kind needs more of the memory that ran out.
_LARGER_TREE = ("num_steps", "topk", "num_draft_tokens")
_DRAFTER = ("algorithm", "draft_model")
_SPEC_FRAME = re.compile(r"speculative_hook\.py|speculative/")
_DRAFT_FRAME = re.compile(r"File .*(?:_nextn\.py|eagle_worker|llama_eagle|eagle_utils|/speculative/|draft_worker)")

# What a GPU out of memory calls itself. `out of resource: shared memory` (on-chip), /dev/shm and Ray's OOM do not.
_OOM = (
    r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError\b"
    r"|(?:[\w.]*(?:Error|Exception): )?(?:CUDA|HIP) out of memory"
    r"|(?:[\w.]*(?:Error|Exception): )?(?:CUDA|HIP) error: (?:out of memory|CUBLAS_STATUS_ALLOC_FAILED)"
    r"|(?:[\w.]*(?:Error|Exception): )?CUBLAS_STATUS_ALLOC_FAILED"
    r"|[\w.]*Error: .*NCCL.*out of memory"
)
_RAISED = r"(?:[\w.]*(?:Error|Exception): )?"
_CAPTURE = _RAISED + "Capture cuda graph failed: "


def _p(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _bad_flag(found: Found) -> str:
    table, _ = table_for("")
    text = found.match["what"]
    if ambiguous := re.search(r"ambiguous option: --([\w-]+)", text):
        name = table.canonical(ambiguous[1])
        return f"Give the full name: --{name}." if name != ambiguous[1] else "Give the option's full name."
    unknown = [word for word in re.findall(r"--[\w-]+", text.partition("unrecognized arguments:")[2])]
    near = [f"{word} (nearest: --{close})" if (close := table.nearest(word)) else word for word in unknown]
    if near:
        return f"This SGLang does not take {', '.join(near)}. Mend the name in server.args or the space."
    return "This SGLang does not take the argument named. Mend it in server.args or the space."


def _unknown_algorithm(found: Found) -> str:
    near = difflib.get_close_matches(found.match["name"].upper(), _ALGORITHMS, n=1)
    return f"SGLang knows no algorithm {found.match['name']!r}" + (f"; nearest: {near[0]}." if near else ".")


def _tree(found: Found) -> str:
    arm = found.arm
    text = "The draft tree is larger than what the drafter can propose; "
    if arm.num_steps and arm.topk:
        most = 1 + arm.topk + (arm.num_steps - 1) * arm.topk**2
        text += f"with num_steps {arm.num_steps} and topk {arm.topk}, num_draft_tokens may be at most {most}. "
    return text + "Advice about memory in the log does not apply."


def _too_few_draft_tokens(found: Found) -> bool:
    """The words are torch's for any shapes that do not fit: only an arm with this fault is blamed by them."""
    arm = found.arm
    return (arm.topk or 1) > 1 and arm.num_draft_tokens is not None and arm.num_draft_tokens <= (arm.num_steps or 0)


def _small_tree(found: Found) -> str:
    return (
        f"{found.arm.num_draft_tokens} draft tokens are too few for {found.arm.num_steps} steps with topk "
        f"{found.arm.topk}: num_draft_tokens must be at least num_steps + 1."
    )


def _raise_fraction(found: Found) -> str:
    above = re.search(r"Raise --mem-fraction-static above (\d+(?:\.\d+)?)", found.match.string)
    now = re.search(r"mem[-_]fraction[-_]static=(\d+(?:\.\d+)?)", found.match.string)
    to = f" above {above[1]}" if above else ""
    was = f" (now {now[1]})" if now else ""
    return (
        f"Raise mem-fraction-static{to}{was}: the weights, the drafter's included, leave no room for the KV cache. "
        "Lowering it, as for other out-of-memory failures, makes this one worse."
    )


def _lower_fraction(found: Found) -> str:
    tree = ", or fewer num_draft_tokens" if found.arm.speculative else ""
    return (
        "Lower mem-fraction-static (by 0.05 to 0.1) or capture fewer and smaller batch sizes "
        f"(cuda-graph-bs-decode){tree}. Turning graphs off would start, but measure something else."
    )


def _plain_oom(found: Found) -> str:
    return (
        "The GPU's memory ran out. Lower mem-fraction-static (by 0.05 to 0.1) or max-total-tokens, "
        "or use more GPUs (tp-size)."
    )


def _foreign(found: Found) -> bool:
    """Torch's message names other processes on the GPU: somebody else's memory, not this configuration's."""
    return _others(found) is not None


def _others(found: Found) -> str | None:
    for pid, amount, unit in re.findall(r"Process (\d+) has ([\d.]+) (GiB|MiB) memory in use", found.match.string):
        if float(amount) * (1024 if unit == "GiB" else 1) >= 1024:
            return f"pid {pid} ({amount} {unit})"
    return None


def _mostly_taken(found: Found) -> bool:
    return float(found.match["free"]) < 0.8 * float(found.match["total"])


def _no_drafter_given(found: Found) -> bool:
    return found.arm.draft_model is None


_WATCHDOG = r"(?:\[[A-Z\d ]+\] )?\w+ watchdog timeout \(self\.watchdog_timeout="
_WAITING = (
    "The scheduler stood still and the server's own watchdog noticed. With speculation and dp-attention this is a "
    "known deadlock of the ranks: leave dp-attention out, or this algorithm."
)
_ENVIRONMENT = (
    "The host's python cannot run SGLang: give the python (absolute path) or the activate command of the environment "
    "that has it, and check it with `sweep doctor`."
)
_INFRA = Verdict.INFRA_ERROR
_CONFIG = Verdict.LAUNCH_CONFIG_ERROR
_MEMORY = Verdict.LAUNCH_OOM
_CRASH = Verdict.CRASHED

RULES: tuple[Rule, ...] = (
    # ------------------------------------------------------------------ the surroundings
    Rule(
        "port_in_use", _INFRA,
        _p(r"(?:ERROR: +|OSError: )?\[Errno 98\] (?:error while attempting to bind|Address already)"),
        "The port was taken by another process. The launch is tried again on another free port; SGLang itself would "
        "hang here with its GPU memory held.",
        Retry.LATER, phase=Phase.WARMUP,
    ),
    Rule(
        "port_in_use", _INFRA, _p(r"(?:ValueError: )?\w*port at \S+ is not available in \d+ seconds"),
        "A port that SGLang derives from its own is held, often by what an earlier server left. `sweep ps HOST` shows "
        "what is ours; the launch is tried again on another port.",
        Retry.LATER, phase=Phase.START,
    ),
    Rule(
        "host_shm", _INFRA,
        _p(r"(?:\S+:\d+:\d+ \[\d+\] .{0,60}?)?Error while creating shared memory segment /dev/shm/"
           r"|RuntimeError: unable to (?:allocate|open) shared memory|OSError: \[Errno 28\] .*'/dev/shm"),
        "The host's /dev/shm is too small for NCCL: enlarge it (containers: --shm-size or --ipc=host). No arm with "
        "more than one GPU can run there before.",
        Retry.LATER,
    ),
    Rule(
        "host_oom", _INFRA,
        _p(r"\(raylet[^)]*\) .*killed due to memory pressure|(?:\[[\d. ]+\] )?Out of memory: Killed process"
           r"|MemoryError\b"),
        "The host's own memory (not the GPU's) ran out. Run fewer things beside, or raise the host's limit.",
        Retry.LATER,
    ),
    Rule(
        "gpu_dirty", _INFRA, _p(rf"(?:{_OOM}|{_CAPTURE}).*Process \d+ has "),
        lambda found: f"The GPU's memory is held by {_others(found)}, which is not this server. End it (we never do) "
        "or give another GPU; the configuration is not at fault and is tried again.",
        Retry.LATER, when=_foreign,
    ),
    Rule(
        "gpu_dirty", _INFRA,
        _p(r"ValueError: Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than"),
        "Another process, or the server before, holds the GPU's memory. `sweep doctor` names it; it is tried again.",
        Retry.LATER, phase=Phase.START, when=_mostly_taken,
    ),
    Rule(
        "gpu_memory_borderline", _MEMORY, _p(r"ValueError: Free memory on device .* on startup is less than desired"),
        "The GPU is free but for what every context takes, and the wanted share is just above it. Lower the share.",
        phase=Phase.START,
    ),
    Rule(
        "gpu_visibility", _INFRA,
        _p(rf"{_RAISED}(?:No CUDA GPUs are available|(?:CUDA error: )?no CUDA-capable device is detected"
           r"|CUDA_VISIBLE_DEVICES is empty)"),
        "The server saw no GPU. Check the driver (`nvidia-smi`) and CUDA_VISIBLE_DEVICES on the host.",
        Retry.LATER, phase=Phase.START,
    ),
    Rule(
        "ray_version", _INFRA, _p(r"(?:RuntimeError: )?Version mismatch: The cluster was started with"),
        "Ray or Python differ between the machines, down to the patch level. Install the same on each; nothing can "
        "run before.",
        phase=Phase.START,
    ),
    Rule(
        "ray", _INFRA,
        _p(r"(?:[\w ]+ failed: )?The actor \S+ is unavailable|ray\.exceptions\.Actor(?:Died|Unavailable)Error"),
        "Ray lost the process that looks after the host. The trial is tried again.", Retry.LATER,
    ),
    # ------------------------------------------------------------------ the command cannot be run
    Rule(
        "environment", _CONFIG,
        _p(r"nohup: failed to run command|(?:/bin/)?(?:ba)?sh: .*(?:not found|No such file)"
           r"|\S*python[\d.]*: (?:No module named|can't open file)"),
        _ENVIRONMENT, phase=Phase.START,
    ),
    # ------------------------------------------------------------------ arguments
    Rule(
        "bad_flag", _CONFIG,
        _p(r"[\w ./-]{1,80}: error: (?P<what>(?:unrecognized arguments|ambiguous option|argument -|"
           r"the following arguments are required).*)"),
        _bad_flag, phase=Phase.CONFIG,
    ),
    Rule(
        "unknown_algorithm", _CONFIG, _p(r"ValueError: Unknown speculative algorithm name: (?P<name>\S+)"),
        _unknown_algorithm, phase=Phase.CONFIG,
    ),
    Rule(
        "partial_tree", _CONFIG, _p(r"TypeError: '[<>]=?' not supported between instances of 'NoneType' and 'int'"),
        "Give num_steps, topk and num_draft_tokens together, or none of them.",
        phase=Phase.CONFIG, context=_SPEC_FRAME,
    ),
    Rule(
        "partial_tree", _CONFIG, _p(r"AssertionError:?\s*$"),
        "Give num_steps, topk and num_draft_tokens together, or none of them.",
        phase=Phase.CONFIG, context=_p(r"speculative_hook\.py"),
    ),
    Rule(
        "topk_refused", _CONFIG,
        _p(r"ValueError: (?:trtllm_mha backend only supports topk = 1|speculative_eagle_topk > 1 with page_size > 1|"
           r"Currently Flash\w* ?(?:MLA)? ?only supports topk=1|.*topk.*only supports? .*topk ?=+ ?1)"
           r"|NotImplementedError: .*topk|AssertionError: .*topk"),
        "This attention backend takes topk above 1 not at all, or only with page-size 1. Pin attention-backend triton "
        "(or flashinfer, fa3) and page-size 1, or keep topk at 1.",
        dominates=_LARGER_TREE,
    ),
    Rule(
        "backend_unsupported", _CONFIG, _p(r"ValueError: \w+ is not supported in \w+ attention backend (?P<name>\S+)"),
        lambda found: f"The attention backend {found.match['name']} cannot draft. Pin attention-backend to triton, "
        "flashinfer or fa3 on every arm.",
        phase=Phase.KV_POOL, dominates=_DRAFTER,
    ),
    Rule(
        "tree_too_large", _CONFIG, _p(rf"(?:{_CAPTURE}|(?:RuntimeError|Exception): )selected index k out of range"),
        _tree, dominates=("num_draft_tokens",),
    ),
    Rule(
        "tree_too_small", _CONFIG,
        _p(r"RuntimeError: The expanded size of the tensor \(\d+\) must match the existing size \(\d+\)"),
        _small_tree, dominates=("num_draft_tokens",), when=_too_few_draft_tokens,
    ),
    # ------------------------------------------------------------------ the drafter
    Rule(
        "draft_path_missing", _CONFIG,
        _p(r"AttributeError: .*has no attribute '(?:set_embed|hot_token_id|set_eagle3_layers_to_capture)'"),
        "No drafter was given, so SGLang loaded the target as its own drafter, which cannot work for this "
        "architecture. Give a draft_model.",
        dominates=_DRAFTER, when=_no_drafter_given,
    ),
    Rule(
        "algorithm_mismatch", _CONFIG, _p(r"AttributeError: .*has no attribute '(?:set_embed|hot_token_id)'"),
        "What was loaded as drafter is not a head of this algorithm's kind (a whole model, perhaps the target itself). "
        "Check draft_model's path, or use STANDALONE for a whole model.",
        dominates=_DRAFTER,
    ),
    Rule(
        "target_unsupported", _CONFIG, _p(rf"{_RAISED}Model \S+ does not implement set_eagle3"),
        "This target has no support for EAGLE3 in this SGLang. Use another algorithm or a newer SGLang.",
        dominates=_DRAFTER,
    ),
    Rule(
        "draft_target_mismatch", _CONFIG,
        _p(r"ValueError: STANDALONE speculative decoding requires the draft model to share"
           r"|\w+: --speculative-use-rejection-sampling requires the draft and target to share one vocab"),
        "Drafter and target have different vocabularies. Take a drafter of the target's own family.",
        dominates=_DRAFTER,
    ),
    Rule(
        "draft_target_mismatch", _CONFIG,
        _p(r"KeyError: '(?:model\.)?embed_tokens\.weight'|\s*assert hidden_states\.shape\[-1\] == "),
        "The drafter does not fit this target (hidden sizes differ, or its checkpoint has other tensors). Compare "
        "hidden_size, target_hidden_size and vocab_size of both config.json, or take another drafter.",
        dominates=_DRAFTER,
    ),
    Rule(
        "draft_target_mismatch", _CONFIG,
        _p(r"RuntimeError: (?:mat1 and mat2 shapes cannot be multiplied|The size of tensor)"),
        "The drafter's layers take another width than the target gives: either it was made for another target, or an "
        "EAGLE head is served as EAGLE3 (or the other way round).",
        context=_DRAFT_FRAME, dominates=_DRAFTER,
    ),
    Rule(
        "draft_weights_incompatible", _CONFIG, _p(r"AssertionError:?\s*$"),
        "A tensor of the drafter's checkpoint has another shape than its code expects (a re-exported or quantised "
        "checkpoint). Take the original checkpoint or another drafter.",
        phase=Phase.WEIGHTS, context=_DRAFT_FRAME, evidence=_DRAFT_FRAME, dominates=_DRAFTER,
    ),
    Rule(
        "weights_incompatible", _CONFIG, _p(r"\s*assert param_data\.shape == loaded_weight\.shape"),
        "A tensor of the checkpoint has another shape than its code expects. Take the original checkpoint.",
        phase=Phase.WEIGHTS,
    ),
    Rule(
        "drafter_not_found", _CONFIG,
        _p(r"OSError: (?:Repo id must be in the form|.*is not a local folder and is not a valid model identifier|"
           r"(?:Can't load|.*does not appear to have) )|[\w.]*RepositoryNotFoundError|[\w.]*LocalEntryNotFoundError"
           r"|FileNotFoundError: .*config\.json"),
        "The drafter's path does not exist on the host (or is no model). Mend draft_model's path; `sweep doctor` "
        "checks it.",
        phase=Phase.CONFIG, context=_SPEC_FRAME, dominates=_DRAFTER,
    ),
    Rule(
        "model_not_found", _CONFIG,
        _p(r"OSError: (?:Repo id must be in the form|.*is not a local folder and is not a valid model identifier|"
           r"(?:Can't load|.*does not appear to have) )|[\w.]*RepositoryNotFoundError|[\w.]*LocalEntryNotFoundError"
           r"|FileNotFoundError: .*config\.json"),
        "The target model's path does not exist on the host (or is no model). No arm can run before model.path is "
        "mended; `sweep doctor` checks it.",
        phase=Phase.CONFIG,
    ),
    Rule(
        "unsupported_gpu", _CONFIG,
        _p(rf"{_RAISED}CUDA error: no kernel image is available|(?:[\w.]+: )?out of resource: shared memory, Required:"
           r"|(?:ValueError|AssertionError|RuntimeError|NotImplementedError): .*[Rr]equires? (?:an? )?(?:NVIDIA )?"
           r"(?:Hopper|Blackwell|SM ?\d+|sm_?\d+)"),
        "This kernel or backend does not run on this kind of GPU (on-chip memory or architecture). Choose another "
        "backend on it.",
    ),
    # ------------------------------------------------------------------ memory
    Rule(
        "mem_fraction_too_small", _MEMORY,
        _p(r"(?:RuntimeError|ValueError): (?:Not enough memory\. Please try to increase --mem-fraction-static|"
           r"Loaded weights leave no GPU memory for the KV cache)"),
        _raise_fraction, phase=Phase.KV_POOL,
    ),
    Rule(
        "gpu_oom", _MEMORY, _p(r"(?:\w+: )?Not enough GPU memory for hybrid"),
        "The state cache of a hybrid model does not fit. Lower max-running-requests, or use more GPUs.",
        phase=Phase.KV_POOL, dominates=_LARGER_TREE,
    ),
    Rule(
        "gpu_oom", _MEMORY, _p(rf"{_CAPTURE}.*(?:out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED)"),
        _lower_fraction, phase=Phase.GRAPH_CAPTURE, dominates=_LARGER_TREE,
    ),
    Rule("gpu_oom", _MEMORY, _p(_OOM), _plain_oom, ready=False, dominates=_LARGER_TREE),
    Rule(
        "oom_at_runtime", _CRASH, _p(_OOM),
        "The GPU's memory ran out under load, after a good start. Lower mem-fraction-static to leave more to the "
        "activations, or pin fewer running requests.",
        Retry.ONCE, ready=True, dominates=_LARGER_TREE,
    ),
    Rule(
        "kv_exhausted", _CRASH,
        _p(rf"{_RAISED}(?:(?:Prefill|Decode) out of memory\. Try to lower|alloc_req_slots runs out of memory)"),
        "The KV cache ran out while serving. Pin a smaller max-running-requests or a larger max-total-tokens.",
        Retry.ONCE, dominates=_LARGER_TREE,
    ),
    # ------------------------------------------------------------------ kernels and ranks
    Rule(
        "draft_context_exceeded", _CRASH, _p(r"\S*\.cu:\d+: .*Assertion .*scatter gather kernel index out of bounds"),
        "A request was longer than the drafter's window (max_position_embeddings). Use shorter prompts or fewer "
        "tokens, or a drafter with a longer window; do not override SGLang's context check.",
    ),
    Rule(
        "illegal_access", _CRASH, _p(rf"{_CAPTURE}.*illegal memory access"),
        "A kernel failed while graphs were captured. It is not memory, whatever the log suggests: try another "
        "attention backend or SGLang version.",
        Retry.ONCE, phase=Phase.GRAPH_CAPTURE,
    ),
    Rule(
        "capture_failed", _CRASH, _p(rf"(?:{_CAPTURE}|(?:\w+: )?Fail when using backend: \w+ for prefill runner)"),
        "CUDA graph capture failed for a reason that is not memory; the inner message is the evidence.",
        Retry.ONCE, phase=Phase.GRAPH_CAPTURE,
    ),
    Rule(
        "illegal_access", _CRASH, _p(rf"{_RAISED}CUDA error: an illegal memory access"),
        "A kernel failed. It is tried once more on a clean GPU; if it fails again, leave this configuration out or try "
        "another attention backend.",
        Retry.ONCE,
    ),
    Rule(
        "rank_mismatch", Verdict.HUNG,
        _p(r"(?:\[rank\d+\]:\[E.*?\] )?\[[^\]]*Rank \d+\] Watchdog caught collective operation timeout"),
        "The ranks wait for a collective that not all of them take part in: this drafter does not run with this "
        "tp-size.",
        dominates=_DRAFTER,
    ),
    Rule(
        "watchdog", _CRASH, _p(_WATCHDOG), _WAITING, Retry.ONCE, running=False,
    ),
    Rule(
        "watchdog", Verdict.HUNG, _p(_WATCHDOG), _WAITING, Retry.ONCE, running=True,
    ),
    Rule(
        "cuda_error", _CRASH, _p(r"(?:[\w.]*(?:Error|Exception): )?CUDA error: "),
        "A kernel or the driver failed; `dmesg` on the host may show an Xid. It is tried once more on a clean GPU.",
        Retry.ONCE,
    ),
    # ------------------------------------------------------------------ consequences: only where no cause was found
    Rule(
        "host_oom", _INFRA,
        _p(r"(?:RuntimeError: )?Rank \d+ scheduler died during initialization \(exit code: (?:-9|137)\)"),
        "A scheduler was killed while it loaded: most likely the kernel's out-of-memory killer "
        "(`dmesg -T | grep -i oom`). Free host memory or launch fewer servers at once.",
        Retry.LATER,
    ),
    Rule(
        "killed_from_outside", _INFRA, _p(r"Subprocess \S+ (?:\(pid=\S+\) )?crashed with exit code (?:-9|137)\b"),
        "A process of the server was killed from outside (kernel out-of-memory killer, or somebody's kill -9).",
        Retry.LATER, running=False,
    ),
    Rule(
        "process_died", _CRASH,
        _p(r"Subprocess \S+ (?:\(pid=\S+\) )?crashed with exit code|(?:RuntimeError: )?Rank \d+ scheduler died"),
        "A process of the server died without saying why (a segmentation fault has no traceback). Tried once more.",
        Retry.ONCE,
    ),
    Rule(
        "no_response", Verdict.HUNG, _p(r"Health check failed\. Server couldn't get a response"),
        "The scheduler no longer answers although the HTTP port does. It is tried once more.",
        Retry.ONCE, ready=True,
    ),
    Rule(
        "jit_compile", Verdict.LAUNCH_TIMEOUT, _p(r"(?i)Entering DeepGEMM JIT|Running FlashInfer autotune"),
        "Kernels were still being compiled, which takes 10 to 20 minutes once per host, model and tp-size. Raise "
        "measurement.launch_timeout_s, and keep the kernel cache (~/.cache) on disk between launches.",
        Retry.ONCE, ready=False, running=True,
    ),
    Rule(
        "environment", _CONFIG, _p(r"ModuleNotFoundError: No module named|ImportError: "), _ENVIRONMENT,
        phase=Phase.START, ready=False,
    ),
    Rule(
        "rejected_arguments", _CONFIG,
        _p(r"(?:ValueError|AssertionError|NotImplementedError|TypeError): ."),
        "SGLang refused these arguments before it loaded anything; the message is the evidence.",
        phase=Phase.CONFIG, context=_p(r"File .*server_args\.py|File .*arg_groups"), ready=False,
    ),
    Rule(
        "terminated_from_outside", _INFRA, _p(r"SIGTERM received\."),
        "The server was asked to stop by a signal from outside, not by an error of its own.",
        Retry.LATER, running=False, when=lambda found: not any("Traceback" in line for line in found.before),
    ),
)  # fmt: skip
