"""A stand-in for an SGLang server: its flags, log lines, HTTP surface and failures, with a timing model for a GPU.

Longer than 300 lines on purpose: it is sent to a host as one file and run there by whatever Python (>= 3.8) the host
has, so it may import the standard library only and nothing of ours.

::

    python server.py --profile P.json [--time-scale X] [--gpu-state DIR] [--gpus N] [--categories C.json] [--seed N]
                     [--host-name H] [--print-version] SGLANG-FLAGS...

``P.json`` holds the noise-free truth (see ``truth.py``) and the SGLang version the server speaks as. Simulated seconds
are multiplied by the time scale to give real ones. ``SPECSWEEP_SIM`` (JSON: ``{"effects": {...}, "failures": [...]}``)
overrides the profile's switches; ``SGLANG_SIMULATE_ACC_LEN`` forces the accept length as it does in SGLang.

Sections: truth model, text, arguments, host side (log, GPU registry, processes), scheduler, HTTP, life cycle, flags.
"""

# The host's Python may be 3.8: no strict zip, no pairwise, typing's own names; and
# %-formats, as in the log lines they imitate.
# ruff: noqa: B905, RUF007, SIM905, UP006, UP031, UP035, UP045

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fnmatch
import hashlib
import json
import math
import os
import random
import re
import selectors
import signal
import socket
import sys
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, NoReturn, Optional, Sequence, Tuple

Json = Dict[str, Any]

# ------------------------------------------------------------------------------------------------ truth model

GOLDEN = 0.6180339887498949  # the fractional part of the golden ratio: the most even one-dimensional sequence


def interpolate(table: Sequence[Sequence[float]], x: float) -> float:
    """Piecewise linear value at ``x`` of ``[[x0, y0], ...]``; the last slope goes on, below the first point is flat."""
    if x <= table[0][0]:
        return float(table[0][1])
    for (x0, y0), (x1, y1) in zip(table, table[1:]):
        if x <= x1:
            return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    (x0, y0), (x1, y1) = table[-2], table[-1]
    return float(y1 + (y1 - y0) * (x - x1) / (x1 - x0))


def tree_widths(steps: int, topk: int, draft_tokens: int, decay: float) -> List[float]:
    """Candidates per depth of a draft tree: ``draft_tokens - 1`` nodes shared over the depths, geometrically fewer
    with depth; depth one has at most ``topk`` of them, what it cannot take goes deeper. A chain has one each."""
    nodes = float(draft_tokens - 1)
    if topk == 1:
        return [1.0] * int(min(steps, nodes))
    caps = [float(topk)] + [float(topk * topk)] * (steps - 1)
    widths = [0.0] * steps
    open_depths = list(range(steps))
    while nodes > 1e-9 and open_depths:
        total = sum(decay**d for d in open_depths)
        share = {d: nodes * decay**d / total for d in open_depths}
        full = [d for d in open_depths if widths[d] + share[d] >= caps[d]]
        if not full:
            for d in open_depths:
                widths[d] += share[d]
            break
        for d in full:
            nodes -= caps[d] - widths[d]
            widths[d] = caps[d]
            open_depths.remove(d)
    return widths


class Arm:
    """Step time and acceptance of one effective configuration under one profile. Pure; times in simulated seconds.

    Rule of acceptance: at depth d the target's token is the drafter's first guess with probability ``depth[d]``; with
    ``w`` candidates it is among them with ``1 - (1 - depth[d]) ** (w ** width_gain)``, and with less than one candidate
    (the tree thins out) ``w * depth[d]``. Exponents of drafter, algorithm, category and prompt act on ``depth[d]``.
    """

    def __init__(
        self,
        profile: Json,
        *,
        algorithm: Optional[str] = None,
        draft_path: Optional[str] = None,
        steps: int = 0,
        topk: int = 1,
        draft_tokens: int = 1,
        cuda_graph: bool = True,
        graph_max_batch: Optional[int] = None,
        forced_accept_length: Optional[float] = None,
    ) -> None:
        self.profile = profile
        self.algorithm = algorithm
        self.steps, self.topk, self.draft_tokens = steps, topk, draft_tokens
        self.cuda_graph, self.graph_max_batch = cuda_graph, graph_max_batch
        self.forced = forced_accept_length
        self.drafter = find_drafter(profile, draft_path) if draft_path else {}
        self.ineffective = algorithm == "EAGLE" and "Eagle3" in str(
            self.drafter.get("architecture") or ""
        )  # SGLang does not check: the head gets the wrong hidden states and guesses at random
        self._timing = profile["timing"]
        self._table = list(self._timing["decode_ms"])
        self._cache: Dict[Tuple[int, bool], float] = {}

    def graphed(self, batch: int) -> bool:
        return self.cuda_graph and (self.graph_max_batch is None or batch <= self.graph_max_batch)

    def step_s(self, batch: int) -> float:
        """Seconds of one decode (or draft and verify) step with ``batch`` running requests."""
        key = (batch, self.graphed(batch))
        if key not in self._cache:
            ms = interpolate(self._table, batch)
            if self.algorithm:
                ms += self._speculation_ms(batch)
            if not key[1]:
                plain = self._timing["graph_off_factor"]
                ms *= self._timing.get("graph_off_spec_factor", plain) if self.algorithm else plain
            self._cache[key] = ms / 1000.0
        return self._cache[key]

    def _speculation_ms(self, batch: int) -> float:
        """What drafting and verifying cost above a plain step: fitted, see ``benchmarks/fit_profiles.py``."""
        spec = self._timing["spec"]
        ngram = self.algorithm == "NGRAM"
        steps = 0.0 if ngram else self.steps * self._algorithm().get("step_factor", 1.0)
        base = spec["ngram_base"] if ngram else spec["base"]
        tree = spec["tree_step"] * steps if self.topk > 1 and not ngram else 0.0
        tokens = batch * self.draft_tokens
        return float(
            base + spec["step"] * steps + tree + batch * spec["request"] + tokens * spec["token"]
            + batch * steps * spec["request_step"] + (tokens / 100.0) ** 2 * spec["token_square"]
        )  # fmt: skip

    def prefill_s(self, tokens: int, chunk: int = 8192) -> float:
        """Seconds to prefill ``tokens`` uncached tokens; each chunk pays the fixed part."""
        prefill = self._timing["prefill_ms"]
        chunks = max(1, math.ceil(tokens / max(1, chunk)))
        ms = chunks * prefill["base"] + tokens * prefill["token"]
        if self.algorithm and self.algorithm != "NGRAM":
            ms += chunks * prefill["draft"]
        return float(ms) / 1000.0

    def _algorithm(self) -> Json:
        return dict(self.profile.get("algorithms", {}).get(self.algorithm or "", {}))

    def survival(self, category: str = "other", prompt_exponent: float = 1.0) -> List[float]:
        """``[P(at least 1 draft accepted), P(at least 2), ...]`` of one verify step; empty without speculation."""
        if not self.algorithm:
            return []
        if self.forced is not None:
            whole = int(self.forced)
            return ([1.0] * (whole - 1) + [self.forced - whole])[: self.draft_tokens - 1]
        if self.ineffective:
            return [float(self.profile["acceptance"].get("wrong_algorithm", 0.01))]
        ngram = self.algorithm == "NGRAM"
        rule = self.profile["ngram" if ngram else "acceptance"]
        exponent = float(self.profile["categories"].get(category, 1.0)) * prompt_exponent
        exponent *= float(self.drafter.get("exponent", 1.0)) * float(self._algorithm().get("exponent", 1.0))
        if ngram:  # a trie gives long chains rather than wide trees
            widths = [1.0] * (self.draft_tokens - 1)
        else:
            widths = tree_widths(self.steps, self.topk, self.draft_tokens, rule["depth_decay"])
        out: List[float] = []
        alive = 1.0
        for depth, width in enumerate(widths):
            first = float(rule["depth"][min(depth, len(rule["depth"]) - 1)]) ** exponent
            wide = 1.0 - (1.0 - first) ** (width ** rule.get("width_gain", 0.0))
            alive *= wide if width >= 1.0 else width * first
            out.append(alive)
        return out

    def draw_offset(self, text: str) -> float:
        """Where this arm's draws for a prompt start: fixed, so that accept lengths repeat exactly as greedy ones do."""
        key = (self.algorithm, self.drafter.get("match"), self.steps, self.topk, self.draft_tokens)
        return unit_hash("offset", text, repr(key))


def find_drafter(profile: Json, path: str) -> Json:
    """The first profile entry whose pattern matches the path (case ignored) or, failing that, an exact-fit one."""
    for entry in profile.get("drafters", []):
        if fnmatch.fnmatch(path.lower(), str(entry["match"]).lower()):
            return dict(entry)
    return {}


def prompt_exponent(profile: Json, category: str, text: str) -> float:
    """A prompt's own, fixed deviation in acceptance: ``exp(spread * z)``, z uniform of unit variance from its hash."""
    spread = float(profile.get("prompt_spread", {}).get(category, 0.0))
    return math.exp(spread * (2.0 * unit_hash("exponent", text) - 1.0) * math.sqrt(3.0)) if spread else 1.0


def natural_length(profile: Json, text: str) -> int:
    """Output tokens (end-of-text included) after which this prompt's answer ends by itself, on every arm."""
    low, high = profile["output_tokens"]["min"], profile["output_tokens"]["max"]
    return int(low + unit_hash("length", text) * (high - low + 1))


def unit_hash(*parts: str) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha1("\0".join(parts).encode("utf-8", "replace")).digest()[:6], "big") / 2.0**48


# ------------------------------------------------------------------------------------------------ text

EOS, IM_START, IM_END = 2, 3, 4
_SPECIAL = {"<|endoftext|>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_SPECIAL_TEXT = {number: text for text, number in _SPECIAL.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in _SPECIAL) + ")")
_ASCII_PACK = 1 << 28  # ids at and above hold four 7-bit characters; (n << 24) | bytes hold n = 1..3 bytes


def encode(text: str) -> List[int]:
    """Reversible ids: packs of four ASCII characters, else of up to three UTF-8 bytes; all below 2**29."""
    ids: List[int] = []
    for part in _SPLIT.split(text):
        if part in _SPECIAL:
            ids.append(_SPECIAL[part])
            continue
        data = part.encode("utf-8", "surrogatepass")
        i, end = 0, len(data)
        while i < end:
            pack = data[i : i + 4]
            if len(pack) == 4 and max(pack) < 128:
                ids.append(_ASCII_PACK | pack[0] << 21 | pack[1] << 14 | pack[2] << 7 | pack[3])
                i += 4
            else:
                pack = pack[:3]
                ids.append(len(pack) << 24 | int.from_bytes(pack, "big"))
                i += len(pack)
    return ids


def decode(ids: Sequence[int]) -> str:
    """Inverse of :func:`encode`; an id of another tokenizer becomes ``<id>``."""
    out = bytearray()
    for number in ids:
        if number in _SPECIAL_TEXT:
            out += _SPECIAL_TEXT[number].encode()
        elif _ASCII_PACK <= number < 2 * _ASCII_PACK:
            out += bytes((number >> shift) & 127 for shift in (21, 14, 7, 0))
        elif 1 <= number >> 24 <= 3:
            size = number >> 24
            out += (number & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        else:
            out += b"<%d>" % number
    return out.decode("utf-8", "replace")


def chat_prompt(messages: Sequence[Json]) -> str:
    """The chat template: ``<|im_start|>role\\ncontent<|im_end|>\\n`` each, then the assistant's opening."""
    text = ""
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        text += "<|im_start|>%s\n%s<|im_end|>\n" % (message.get("role", "user"), content)
    return text + "<|im_start|>assistant\n"


_ASSISTANT = encode("assistant\n")
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.S)


def split_prompt(ids: Sequence[int]) -> Tuple[str, str, List[int]]:
    """(stream key, last user message, answer tokens the prompt already holds) of prompt ids."""
    start = len(ids) - 1 - ids[::-1].index(IM_START) if IM_START in ids else -1
    answer = start + 1 + len(_ASSISTANT)
    if start >= 0 and list(ids[start + 1 : answer]) == _ASSISTANT:
        head = decode(ids[:answer])
        users = _USER.findall(head)
        return head, users[-1] if users else head, list(ids[answer:])
    text = decode(ids)
    return text, text, []


_WORDS = (
    "the model drafts a short path then checks each token against its target and keeps what agrees while rest falls "
    "away so that answer stays same but comes sooner when guesses are good or later they fail often under load with "
    "many requests because every wasted check costs time"
).split()


class Stream:
    """The endless deterministic answer to one prompt: a token is always four ASCII characters, nine digits as an id.

    ``tie`` is the position at which an arm with speculation may leave the ``main`` branch (None: never): for ``other``,
    as bf16 near-ties do, or for ``wrong``, which the target finds unlikely.
    """

    def __init__(self, key: str, tie: Optional[int] = None) -> None:
        self.key, self.tie = key, tie
        self._texts: Dict[str, str] = {}

    def _text(self, branch: str, characters: int) -> str:
        text = self._texts.get(branch, "")
        block = len(text)
        while len(text) < characters:
            seed = hashlib.sha1(("%s\0%s\0%d" % (self.key, branch, block)).encode("utf-8", "replace")).digest()
            text += " ".join(random.Random(seed).choices(_WORDS, k=128)) + ". "
            block = len(text)
        self._texts[branch] = text
        return text

    def text(self, start: int, stop: int, branch: str) -> str:
        """Characters of tokens ``[start, stop)``; branches other than ``main`` leave it at the tie."""
        if branch == "main" or self.tie is None or stop <= self.tie:
            return self._text("main", 4 * stop)[4 * start : 4 * stop]
        head = self._text("main", 4 * self.tie)[4 * start : 4 * self.tie]
        skip = max(0, start - self.tie)
        return head + self._text(branch, 4 * (stop - self.tie))[4 * skip : 4 * (stop - self.tie)]

    def token(self, position: int, branch: str) -> int:
        return encode(self.text(position, position + 1, branch))[0]


# ------------------------------------------------------------------------------------------------ arguments

_ALIASES = {
    "tp-size": ("tensor-parallel-size", "tp"),
    "dp-size": ("data-parallel-size", "dp"),
    "pp-size": ("pipeline-parallel-size", "pp"),
    "ep-size": ("expert-parallel-size", "ep"),
    "speculative-draft-model-path": ("speculative-draft-model",),
}
_ATTENTION = (
    "triton,torch_native,flex_attention,dsa,nsa,dsv4,compressed,cutlass_mla,fa3,fa4,flashinfer,flashmla,trtllm_mla,"
    "cutedsl_mla,tokenspeed_mla,trtllm_mha,dual_chunk_flash_attn,hpc_ops,aiter,wave,intel_amx,ascend,intel_xpu"
)
_CHOICES = {
    "attention_backend": _ATTENTION,
    "decode_attention_backend": _ATTENTION,
    "prefill_attention_backend": _ATTENTION,
    "sampling_backend": "ascend,pytorch,flashinfer",
    "schedule_policy": "lpm,random,fcfs,dfs-weight,lof,priority,routing-key",
    "cuda_graph_backend_decode": "full,breakable,tc_piecewise,disabled",
    "cuda_graph_backend_prefill": "full,breakable,tc_piecewise,disabled",
    "speculative_attention_mode": "prefill,decode",
    "speculative_ngram_match_type": "BFS,PROB",
}
# SGLang's flags come and go: what 0.5.23 no longer takes, and what it takes beside the table at the end of this file.
_GONE_IN_0_5_23 = (
    "cuda-graph-max-bs cuda-graph-bs piecewise-cuda-graph-tokens piecewise-cuda-graph-max-tokens "
    "piecewise-cuda-graph-compiler disable-piecewise-cuda-graph enforce-piecewise-cuda-graph"
).split()
_NEW_IN_0_5_23 = (
    "speculative-use-block-verification:b speculative-draft-kv-cache-dtype:s speculative-draft-sink-size:i "
    'uno-lora-path:s speculative-domino-candidate-pool-size:i:2048 speculative-dsa-topk-backend:s:"sgl-kernel" '
    "speculative-enable-w4a4-mxfp4-megamoe:n attn-dp-size:i enable-amd-monokernel:b cuda-graph-max-seq-len-prefill:i "
    "cuda-graph-prefill-max-context:i"
).split()
EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
_ALGORITHMS = ("DFLASH", "UNO", "DSPARK", "FROZEN_KV_MTP", "NGRAM", "NONE", *EAGLE_FAMILY)
_TREE_PAGED_BACKENDS = ("flashinfer", "fa3", "triton")


def flag_rows(version: str) -> List[Tuple[str, str, str, Any]]:
    """(flag without dashes, field, kind, default) of every server flag of that version."""
    rows = FLAGS.split()
    if version_tuple(version) >= (0, 5, 23):
        rows = [row for row in rows if row.split(":")[0].split("=")[0] not in _GONE_IN_0_5_23] + _NEW_IN_0_5_23
    out = []
    for row in rows:
        name, kind, *default = row.split(":", 2)
        flag, _, field = name.partition("=")
        value = json.loads(default[0]) if default else (False if kind == "b" else None)
        out.append((flag, field or flag.replace("-", "_"), kind, value))
    return out


def version_tuple(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def build_parser(version: str) -> argparse.ArgumentParser:
    """SGLang's parser for that version. Abbreviations are accepted, as there."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--model-path", "--model", required=True)
    for flag, field, kind, default in flag_rows(version):
        names = ["--" + flag] + ["--" + alias for alias in _ALIASES.get(flag, ())]
        options: Json = {"dest": field, "default": default}
        if kind == "b":
            options["action"] = "store_true"
        elif kind == "n":
            parser.add_argument("--no-" + flag, dest=field, action="store_false", default=default)
            options["action"] = "store_true"
        else:
            options["type"] = {"i": int, "f": float, "s": str}[kind[0]]
            if kind[1:]:
                options["nargs"] = kind[1:]
            if field in _CHOICES:
                options["choices"] = _CHOICES[field].split(",")
        parser.add_argument(*names, **options)
    parser.add_argument("--config")
    return parser


def config_arguments(path: str) -> List[str]:
    """Command-line form of a ``--config`` file: JSON, or the flat subset of YAML that server flags need."""
    text = Path(path).read_text(encoding="utf-8")
    values: Json = {}
    if text.lstrip().startswith("{"):
        values = json.loads(text)
    else:
        last = ""
        for raw in text.splitlines():
            line = raw.rstrip()
            if not line.strip() or line.lstrip().startswith("#") or line == "---":
                continue
            if line.lstrip().startswith("- ") and last:
                if not isinstance(values[last], list):
                    values[last] = []
                values[last].append(_yaml_scalar(line.lstrip()[2:]))
                continue
            last, _, value = line.partition(":")
            last = last.strip().strip("'\"")
            values[last] = _yaml_scalar(value)
    argv: List[str] = []
    for key, value in values.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            argv.append(flag)
        elif isinstance(value, list):
            argv += [flag] + [str(item) for item in value]
        elif value is not False and value is not None:
            argv.append(flag + "=" + str(value))
    return argv


def _yaml_scalar(text: str) -> Any:
    text = text.strip()
    if text[:1] in "'\"" and text[-1:] == text[:1] and len(text) >= 2:
        return json.loads(text) if text[0] == '"' else text[1:-1].replace("''", "'")
    text = text.split(" #")[0].strip()
    if text.startswith("["):
        return [_yaml_scalar(item) for item in text.strip("[]").split(",") if item.strip()]
    return {"true": True, "false": False, "null": None, "~": None, "": None}.get(text.lower(), text)


class ConfigError(Exception):
    """The arguments cannot be resolved: ``kind`` is the Python error SGLang raises, the text its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def resolve(args: argparse.Namespace, profile: Json, warn: Callable[[str], None]) -> None:
    """SGLang's argument rewrites, in place, before anything is loaded. Raises :class:`ConfigError` with its words."""
    architecture = profile["model"]["architecture"]
    for path in (args.model_path, args.speculative_draft_model_path):
        if path and any(fnmatch.fnmatch(path, pattern) for pattern in profile.get("missing_paths", [])):
            raise ConfigError(
                "OSError",
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '%s'. "
                "Use `repo_type` argument if needed." % path,
            )
    algorithm = args.speculative_algorithm.upper() if args.speculative_algorithm else None
    if algorithm == "NEXTN":
        algorithm = "EAGLE"
    if algorithm and algorithm not in _ALGORITHMS:
        raise ConfigError("ValueError", "Unknown speculative algorithm name: " + args.speculative_algorithm)
    algorithm = None if algorithm == "NONE" else algorithm
    args.speculative_algorithm = algorithm
    if algorithm in ("DFLASH", "UNO", "DSPARK", "FROZEN_KV_MTP"):
        raise ConfigError("NotImplementedError", "The simulated engine does not model " + str(algorithm))
    if args.attention_backend is None:
        tree = args.speculative_eagle_topk not in (None, 1)
        args.attention_backend = "flashinfer" if tree else "fa3"
    if args.page_size is None:
        args.page_size = 1
    if args.chunked_prefill_size is None:
        args.chunked_prefill_size = 8192
    if args.context_length is None:
        args.context_length = profile["model"]["context_length"]
    if args.served_model_name is None:
        args.served_model_name = args.model_path
    if args.tokenizer_path is None:
        args.tokenizer_path = args.model_path
    if args.random_seed is None:
        args.random_seed = random.SystemRandom().randrange(2**30)
    if args.mem_fraction_static is None:
        args.mem_fraction_static = 0.85
    if args.disable_cuda_graph or args.disable_decode_cuda_graph:
        if args.disable_cuda_graph:
            warn(
                "'--disable-cuda-graph' is deprecated and will be removed in a future release. "
                "Use '--cuda-graph-backend-{decode,prefill}=disabled' instead."
            )
        args.cuda_graph_backend_decode = "disabled"
    if algorithm and args.attention_backend == "flex_attention":
        raise ConfigError(
            "AssertionError", "Speculative decoding is currently not supported with Flex Attention backend"
        )
    if algorithm in EAGLE_FAMILY:
        _resolve_eagle(args, architecture, warn)
    elif algorithm == "NGRAM":
        _reset_running(args, warn)
        args.enable_mixed_chunk = False
        warn("The mixed chunked prefill are disabled because of using ngram speculative decoding.")
        args.speculative_eagle_topk = args.speculative_ngram_max_bfs_breadth
        if args.speculative_num_draft_tokens is None:
            args.speculative_num_draft_tokens = 12
        if args.speculative_num_steps is None:
            args.speculative_num_steps = args.speculative_num_draft_tokens // args.speculative_eagle_topk
        _refuse_paged_tree(args)
    if args.max_running_requests is None:
        args.max_running_requests = 4096
    if args.speculative_draft_model_path and args.speculative_draft_model_revision is None:
        args.speculative_draft_model_revision = "main"


def _reset_running(args: argparse.Namespace, warn: Callable[[str], None]) -> None:
    if args.max_running_requests is None:
        args.max_running_requests = 48
        warn(
            "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly "
            "setting --max-running-requests."
        )


def _resolve_eagle(args: argparse.Namespace, architecture: str, warn: Callable[[str], None]) -> None:
    _reset_running(args, warn)
    if args.speculative_num_steps is None:
        if args.speculative_eagle_topk is not None or args.speculative_num_draft_tokens is not None:
            raise ConfigError("AssertionError", "")
        big = architecture == "LlamaForCausalLM" or architecture.startswith("Grok")
        chosen = (5, 4, 8) if big and args.speculative_algorithm != "STANDALONE" else (3, 1, 4)
        (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens) = chosen
    if args.speculative_eagle_topk is None:
        raise ConfigError("TypeError", "'>' not supported between instances of 'NoneType' and 'int'")
    topk, steps = args.speculative_eagle_topk, args.speculative_num_steps
    if topk > 1 and args.attention_backend == "trtllm_mha":
        raise ConfigError("ValueError", "trtllm_mha backend only supports topk = 1 for speculative decoding.")
    if topk == 1 and args.speculative_num_draft_tokens != steps + 1:
        warn("speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1")
        args.speculative_num_draft_tokens = steps + 1
    _refuse_paged_tree(args)


def _refuse_paged_tree(args: argparse.Namespace) -> None:
    if args.speculative_eagle_topk > 1 and args.page_size > 1 and args.attention_backend not in _TREE_PAGED_BACKENDS:
        raise ConfigError(
            "ValueError",
            "speculative_eagle_topk > 1 with page_size > 1 is only supported on %r; got attention_backend=%r. "
            "Use page_size == 1 or one of those backends." % (_TREE_PAGED_BACKENDS, args.attention_backend),
        )


def graph_batches(args: argparse.Namespace) -> List[int]:
    """Decode batch sizes captured as CUDA graphs; empty with graphs off."""
    if args.cuda_graph_backend_decode == "disabled":
        return []
    if args.cuda_graph_bs_decode:
        return sorted(args.cuda_graph_bs_decode)
    top = min(args.cuda_graph_max_bs_decode or 256, max(1, args.max_running_requests or 256))
    if args.speculative_algorithm:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
    else:
        sizes = [1, 2, 4, *range(8, 257, 4)]
    return [size for size in sizes if size <= top]


def arm_of(args: argparse.Namespace, profile: Json) -> Arm:
    """The timing and acceptance model of resolved arguments."""
    batches = graph_batches(args)
    forced = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "-1"))
    return Arm(
        profile,
        algorithm=args.speculative_algorithm,
        draft_path=args.speculative_draft_model_path,
        steps=args.speculative_num_steps or 0,
        topk=args.speculative_eagle_topk or 1,
        draft_tokens=args.speculative_num_draft_tokens or 1,
        cuda_graph=bool(batches),
        graph_max_batch=max(batches) if batches else None,
        forced_accept_length=forced if forced > 0 else None,
    )


def largest_tree(steps: int, topk: int) -> int:
    """Most draft tokens (root included) that a tree holds: 1 + topk + (steps - 1) * topk squared."""
    return 1 + topk + (steps - 1) * topk * topk


# ------------------------------------------------------------------------------------------------ host side


class Log:
    """SGLang's log on stderr: a time stamp, the rank with several ranks, the message."""

    def __init__(self) -> None:
        self.ranked = False
        self.newline = "\n"
        self.closed = False

    def line(self, message: str, rank: bool = False) -> None:
        tag = " TP0" if rank and self.ranked else ""
        self.raw("[%s%s] %s" % (time.strftime("%Y-%m-%d %H:%M:%S"), tag, message))

    def info(self, message: str) -> None:
        """A line of the HTTP server, which goes through the same handler."""
        self.line("INFO:     " + message)

    def raw(self, text: str) -> None:
        if self.closed:
            return
        try:
            sys.stderr.write(text + self.newline)
            sys.stderr.flush()
        except (OSError, ValueError):
            self.closed = True  # nobody reads the log any more; SGLang's logging carries on as well

    def traceback(self, frames: Sequence[Tuple[str, int, str]], error: str, head: str = "") -> None:
        """A Python traceback as SGLang prints it; ``frames`` are (file, line, function)."""
        lines = [head + "Traceback (most recent call last):"]
        lines += ['  File "%s", line %d, in %s' % frame for frame in frames]
        text = "\n".join([*lines, error, ""])
        if head:
            self.line(text, rank=True)
        else:
            self.raw(text.rstrip("\n"))


def process_start(pid: int) -> str:
    """The kernel's start time of a process (field 22 of its stat); empty when there is none or it is a zombie."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class GpuRegistry:
    """The GPU memory of simulated processes: one JSON file per pid, valid while that very process lives.

    The stand-in ``nvidia_smi.py`` reads the same files; both are single files, so the few lines that judge whether an
    entry is alive stand in each.
    """

    def __init__(self, directory: Optional[str], profile: Json, gpus: Sequence[int]) -> None:
        self.directory = Path(directory) if directory else None
        self.total_mib = int(profile["gpu"]["memory_total_mib"])
        self.gpus = list(gpus)
        self.telemetry: Json = {}
        if self.directory:
            self.directory.mkdir(parents=True, exist_ok=True)

    def hold(self, pid: int, rank: int, mib: float, name: str = "sglang::scheduler") -> None:
        """Say that process ``pid`` holds ``mib`` on the GPU of its rank."""
        if not self.directory:
            return
        entry = {
            "pid": pid,
            "start": process_start(pid),
            "gpus": {str(self.gpus[rank]): int(mib)},
            "name": name,
            "telemetry": self.telemetry,
        }
        partial = self.directory / (".%d.tmp" % pid)
        partial.write_text(json.dumps(entry))
        partial.replace(self.directory / ("%d.json" % pid))

    def free_gb(self, rank: int, own: Sequence[int]) -> float:
        """GiB that a fresh process finds free on the rank's GPU; 1.31 GiB go to the driver and a CUDA context."""
        used = 0
        for path in self.directory.glob("*.json") if self.directory else ():
            if not path.stem.isdigit() or int(path.stem) in own:
                continue
            try:
                entry = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if entry["start"] and process_start(int(entry["pid"])) == entry["start"]:
                used += int(entry["gpus"].get(str(self.gpus[rank]), 0))
        return (self.total_mib - used) / 1024.0 - 1.31


_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def set_title(title: str) -> None:
    """Rename this process as setproctitle does: the name, then the argument area, and the environment area behind it
    too unless SPT_NOENV is set, which is how a marker in /proc/PID/environ gets lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]), 0, 0, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    if len(fields) < 49:
        return
    arg_start, arg_end, env_end = int(fields[45]), int(fields[46]), int(fields[48])
    end = arg_end if os.environ.get("SPT_NOENV") else max(arg_end, env_end)
    if not 0 < arg_start < end:
        return
    ctypes.memset(arg_start, 0, end - arg_start)
    ctypes.memmove(arg_start, title.encode(), min(len(title), end - arg_start - 1))


def fork_child(title: str, *, detach: bool = False, new_session: bool = False) -> int:
    """A child that only exists: dies with its parent, or (``detach``) is re-parented and outlives it, deaf to TERM.

    Returns its pid; of a detached one the pid of the grandchild.
    """
    reading, writing = os.pipe()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        if not detach:
            os.close(reading)
            return pid
        with os.fdopen(reading, "rb") as pipe:
            grandchild = int(pipe.read() or b"0")
        os.waitpid(pid, 0)
        return grandchild
    try:
        os.close(reading)
        if detach:
            if new_session:
                os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writing, b"%d" % os.getpid())
        else:
            parent = os.getppid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        os.close(writing)
        set_title(title)
        while True:
            signal.pause()
    finally:
        os._exit(1)


class Effects:
    """Multiplies step times: launch, host, block, request, drift, heavy tails. All absent: exactly 1.

    ``{"launch_cv": .., "block_cv": .., "request_cv": .., "host": {name: factor}, "host_cv": ..,
    "heavy_tail": {"probability": p, "factor": f}, "drift": {"kind": "ramp", "per_hour": r} |
    {"kind": "step", "at_s": t, "factor": f} | {"kind": "sawtooth", "period_s": p, "depth": d},
    "neighbour": factor, "acceptance": "random"}``. ``neighbour`` counts while another server holds memory of the
    host's GPUs, looked at once in a fifth of a second. Drift runs in simulated time since the
    host's first launch (a file in the GPU state folder), so that it goes on over launches.
    """

    def __init__(self, spec: Json, *, host: str, seed: str, scale: float, state: Optional[Path]) -> None:
        self.spec, self.scale = spec, scale
        self.rng = random.Random(seed)
        self.random_acceptance = spec.get("acceptance") == "random"
        self.launch = self._log_normal(spec.get("launch_cv", 0.0))
        self.launch *= float(spec.get("host", {}).get(host, 1.0))
        if spec.get("host_cv"):
            self.launch *= math.exp(spec["host_cv"] * (2.0 * unit_hash("host", host) - 1.0) * math.sqrt(3.0))
        self.block = 1.0
        self.drift = spec.get("drift")
        self.epoch = _drift_epoch(state) if self.drift else 0.0
        self.alone: Callable[[], bool] = lambda: True
        self.looked_at, self.seen_alone = -math.inf, True
        self.new_block()

    def _log_normal(self, cv: float) -> float:
        return math.exp(self.rng.gauss(-cv * cv / 2.0, cv)) if cv else 1.0

    def new_block(self) -> None:
        self.block = self._log_normal(self.spec.get("block_cv", 0.0))

    def request(self) -> float:
        factor = self._log_normal(self.spec.get("request_cv", 0.0))
        tail = self.spec.get("heavy_tail")
        if tail and self.rng.random() < tail["probability"]:
            factor *= float(tail["factor"])
        return factor

    def heat(self) -> float:
        """Position in the thermal sawtooth, 0 (cool) to 1 (about to recover)."""
        if not self.drift or self.drift["kind"] != "sawtooth":
            return 0.0
        return (self._simulated_s() / float(self.drift["period_s"])) % 1.0

    def _simulated_s(self) -> float:
        return (time.time() - self.epoch) / self.scale

    def step(self) -> float:
        factor = self.launch * self.block
        if "neighbour" in self.spec:
            if time.monotonic() - self.looked_at > 0.2:
                self.looked_at, self.seen_alone = time.monotonic(), self.alone()
            factor *= 1.0 if self.seen_alone else float(self.spec["neighbour"])
        if self.drift:
            kind = self.drift["kind"]
            if kind == "ramp":
                factor *= math.exp(self.drift["per_hour"] * self._simulated_s() / 3600.0)
            elif kind == "step":
                factor *= float(self.drift["factor"]) if self._simulated_s() >= self.drift["at_s"] else 1.0
            elif kind == "sawtooth":
                factor *= 1.0 + float(self.drift["depth"]) * self.heat()
        return factor


def _drift_epoch(state: Optional[Path]) -> float:
    if state is None:
        return time.time()
    path = state / "drift_epoch"
    if not path.exists():
        path.write_text(repr(time.time()))
    return float(path.read_text())


def next_launch_number(state: Optional[Path]) -> int:
    """Counts launches on this host, so that a seeded launch effect differs from launch to launch."""
    if state is None:
        return 0
    path = state / "launches"
    number = int(path.read_text() or 0) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number


class Failures:
    """Which failures this launch has: ``{"kind": .., "when": {field: value | [values] | {"min"/"max": ..}}, "times": n,
    "probability": p, ...}``. Fields are those of an arm or any server argument; ``times`` counts over launches on
    this host. Kinds and their further keys are those that :class:`Server` asks for by name."""

    def __init__(self, specs: Sequence[Json], fields: Json, state: Optional[Path], rng: random.Random) -> None:
        self.active: Dict[str, Json] = {}
        for number, spec in enumerate(specs):
            if not all(_matches(fields.get(key), wanted) for key, wanted in spec.get("when", {}).items()):
                continue
            if rng.random() >= spec.get("probability", 1.0):
                continue
            if "times" in spec and state is not None:
                counter = state / ("failure-%d" % number)
                used = int(counter.read_text()) if counter.exists() else 0
                if used >= spec["times"]:
                    continue
                counter.write_text(str(used + 1))
            self.active.setdefault(spec["kind"], spec)

    def get(self, kind: str) -> Optional[Json]:
        return self.active.get(kind)


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        low, high = wanted.get("min", -math.inf), wanted.get("max", math.inf)
        return value is not None and low <= value <= high
    if isinstance(wanted, list):
        return value in wanted
    return bool(value == wanted)


# ------------------------------------------------------------------------------------------------ scheduler


class Request:
    """One generation. Times are real seconds on the monotonic clock, counts are output tokens of this request."""

    __slots__ = (
        "arrival", "branch", "cached", "correct", "emitted", "factor", "finish", "first_token", "histogram",
        "last_chunk", "natural", "offset", "prompt_tokens", "retractions", "rid", "rng", "sent", "sink", "start",
        "stream", "survival", "target", "verify_steps",
    )  # fmt: skip

    def __init__(
        self, *, rid: str, arrival: float, prompt_tokens: int, cached: int, target: int, natural: bool
    ) -> None:
        self.rid, self.arrival, self.prompt_tokens, self.cached = rid, arrival, prompt_tokens, cached
        self.target, self.natural = target, natural
        self.stream: Optional[Stream] = None
        self.branch = "main"
        self.start = 0  # answer tokens that the prompt already holds
        self.survival: List[float] = []
        self.offset = 0.0
        self.rng: Optional[random.Random] = None
        self.factor = 1.0
        self.emitted = self.sent = self.verify_steps = self.correct = self.retractions = 0
        self.histogram: List[int] = []
        self.finish: Optional[Json] = None
        self.first_token: Optional[float] = None
        self.last_chunk = -math.inf
        self.sink: Any = None


class Iteration:
    """One forward pass: its requests and its absolute end."""

    __slots__ = ("begin", "decode", "end", "requests")

    def __init__(self, decode: bool, begin: float, end: float, requests: List[Request]) -> None:
        self.decode, self.begin, self.end, self.requests = decode, begin, end, requests


class Scheduler:
    """Continuous batching in virtual time: prefill goes ahead of decode, one queue, at most ``max_running`` at once.

    It never sleeps and never reads a clock: ``begin(now)`` plans a pass, ``complete`` books it at its planned end.
    The server drives it against absolute deadlines; ``truth.py`` drives it with no clock at all.
    """

    def __init__(
        self,
        arm: Arm,
        *,
        max_running: int,
        kv_tokens: int = 1 << 60,
        chunk: int = 8192,
        scale: float = 1.0,
        factor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.arm, self.max_running, self.kv_tokens, self.chunk = arm, max_running, kv_tokens, chunk
        self.scale, self.factor = scale, factor
        self.waiting: Deque[Request] = deque()
        self.running: List[Request] = []
        self.joining: List[Request] = []  # in the prefill pass under way
        self.retracted = 0

    def active(self) -> List[Request]:
        """Admitted and not finished, those in prefill included."""
        return [*self.running, *self.joining]

    def pending(self) -> List[Request]:
        """Everything that is not finished."""
        return [*self.active(), *self.waiting]

    def kv_used(self) -> int:
        return sum(request.prompt_tokens + request.emitted for request in self.active())

    def begin(self, now: float, horizon: Optional[float] = None) -> Optional[Iteration]:
        """The next pass from ``now`` on, None when there is nothing to do; requests that arrived up to ``horizon``
        (default ``now``) may join."""
        limit = now if horizon is None else horizon
        joining: List[Request] = []
        used = self.kv_used()
        while self.waiting and self.waiting[0].arrival <= limit and len(self.running) + len(joining) < self.max_running:
            need = self.waiting[0].prompt_tokens + self.waiting[0].emitted + self.arm.draft_tokens
            if used + need > self.kv_tokens and (self.running or joining):
                break
            used += need
            joining.append(self.waiting.popleft())
        if joining:
            self.joining = joining
            tokens = sum(max(1, r.prompt_tokens + r.emitted - r.cached) for r in joining)
            factor = self.factor() * sum(r.factor for r in joining) / len(joining)
            end = now + self.arm.prefill_s(tokens, self.chunk) * factor * self.scale
            return Iteration(False, now, end, joining)
        if not self.running:
            return None
        while len(self.running) > 1 and self.kv_used() + len(self.running) * self.arm.draft_tokens > self.kv_tokens:
            victim = self.running.pop()
            victim.retractions += 1
            victim.cached = 0
            self.retracted += 1
            self.waiting.appendleft(victim)
        factor = self.factor() * sum(r.factor for r in self.running) / len(self.running)
        return Iteration(True, now, now + self.arm.step_s(len(self.running)) * factor * self.scale, list(self.running))

    def complete(self, iteration: Iteration) -> List[Request]:
        """Book a pass; the requests it touched, the finished ones with ``finish`` set."""
        if not iteration.decode:
            self.joining = []
            for request in iteration.requests:
                if request.finish is None:
                    request.emitted += 1
                    if request.first_token is None:
                        request.first_token = iteration.end
                    self.running.append(request)
        else:
            for request in iteration.requests:
                if request.finish is None:
                    accepted = self._draw(request)
                    if self.arm.algorithm:
                        request.verify_steps += 1
                        request.correct += accepted
                        while len(request.histogram) <= accepted:
                            request.histogram.append(0)
                        request.histogram[accepted] += 1
                    request.emitted = min(request.target, request.emitted + accepted + 1)
        ended = False
        for request in iteration.requests:
            if request.finish is None and request.emitted >= request.target:
                request.finish = (
                    {"type": "stop", "matched": EOS}
                    if request.natural
                    else {"type": "length", "length": request.target}
                )
            ended = ended or request.finish is not None
        if ended:
            self.running = [request for request in self.running if request.finish is None]
        return iteration.requests

    def _draw(self, request: Request) -> int:
        """Drafts accepted in one verify step. The draws of a request are a golden-ratio sequence from a start of its
        own: each has the right distribution and a request's mean is within a step or so of its expectation, so that
        what is measured can be compared with the truth. ``acceptance: random`` draws independently instead."""
        if not self.arm.algorithm:
            return 0
        if request.rng is not None:
            u = request.rng.random()
        else:
            request.offset = u = (request.offset + GOLDEN) % 1.0
        accepted = 0
        for alive in request.survival:
            if u >= alive:
                break
            accepted += 1
        return accepted


# ------------------------------------------------------------------------------------------------ HTTP

_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip
_SAMPLING_KEYS = frozenset(
    "max_new_tokens temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty "
    "min_new_tokens n stop stop_token_ids stop_regex ignore_eos skip_special_tokens spaces_between_special_tokens "
    "no_stop_trim stream_interval logit_bias sampling_seed json_schema regex ebnf structural_tag custom_params "
    "beam_width".split()
)
_MAX_CHUNKS_PER_S = 3000.0  # above that steps are coalesced, as SGLang's tokenizer process does when its queue lags


class HttpError(Exception):
    """An answer other than 200: status and body as SGLang gives them."""

    def __init__(self, status: int, body: Any, content_type: str = "application/json") -> None:
        super().__init__(str(body))
        self.status, self.content_type = status, content_type
        self.body = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time; only what SGLang's clients need."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self.peer = "127.0.0.1:0"
        self.buffer = bytearray()
        self.busy = False
        self.keep_alive = True
        self.reply: Optional[Reply] = None
        self.request_line = ""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.fileno() > 1000:  # select() takes descriptors below 1024 only
                transport.abort()
                return
        self.peer = "%s:%d" % tuple((transport.get_extra_info("peername") or ("127.0.0.1", 0))[:2])

    def connection_lost(self, exc: Optional[Exception]) -> None:
        if self.reply is not None:
            self.server.abort_reply(self.reply)
            self.reply = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy:
            self._next(time.monotonic())

    def _next(self, arrival: float) -> None:
        while not self.busy:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:]:
                key, _, value = line.partition(":")
                headers[key.strip().lower()] = value.strip()
            length = int(headers.get("content-length", "0") or 0)
            if headers.get("expect", "").lower() == "100-continue" and len(self.buffer) < end + 4 + length:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            method, _, rest = lines[0].partition(" ")
            target = rest.rpartition(" ")[0]
            self.keep_alive = headers.get("connection", "").lower() != "close" and rest.endswith("1.1")
            self.request_line = "%s %s HTTP/1.1" % (method, target)
            self.busy = True
            try:
                if "transfer-encoding" in headers:
                    raise HttpError(411, {"detail": "Length Required"})
                self.server.handle(self, method, target, headers, body, arrival)
            except HttpError as error:
                self.respond(error.status, error.body, error.content_type)

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        if self.transport.is_closing():
            return
        kind = "content-type: %s\r\n" % content_type if body else ""
        head = "HTTP/1.1 %d %s\r\ndate: %s\r\nserver: uvicorn\r\ncontent-length: %d\r\n%s\r\n" % (
            status, _REASONS[status], self.server.http_date(), len(body), kind + self._closing(),
        )  # fmt: skip
        self.transport.write(head.encode() + body)
        self.server.log.info('%s - "%s" %d %s' % (self.peer, self.request_line, status, _REASONS[status]))
        self.finished()

    def _closing(self) -> str:
        return "" if self.keep_alive else "connection: close\r\n"

    def start_stream(self) -> None:
        head = (
            "HTTP/1.1 200 OK\r\ndate: %s\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            "transfer-encoding: chunked\r\n%s\r\n" % (self.server.http_date(), self._closing())
        )
        self.transport.write(head.encode())
        self.server.log.info('%s - "%s" 200 OK' % (self.peer, self.request_line))

    def event(self, data: str) -> None:
        payload = data.encode()
        self.transport.write(b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload))

    def raw_event(self, payload: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self) -> None:
        self.event("[DONE]")
        self.transport.write(b"0\r\n\r\n")
        self.finished()

    def finished(self) -> None:
        self.busy = False
        self.reply = None
        if not self.keep_alive:
            self.transport.close()
        elif self.buffer:
            self.server.loop.call_soon(self._next, time.monotonic())


class Reply:
    """The answer to one generation call: turns scheduler progress into the chunks or the body of its endpoint."""

    def __init__(self, server: Server, connection: Connection, api: str, body: Json, requests: List[Request]) -> None:
        self.server, self.connection, self.api, self.requests = server, connection, api, requests
        self.stream = bool(body.get("stream"))
        self.single = not isinstance(body.get("text"), list) and not (
            body.get("input_ids") and isinstance(body["input_ids"][0], list)
        )
        sampling = body.get("sampling_params") or {}
        interval = sampling.get("stream_interval") if api == "generate" else None
        self.interval = max(1, int(interval or server.args.stream_interval))
        options = body.get("stream_options") or {}
        self.usage = bool(options.get("include_usage"))
        self.logprobs = bool(body.get("return_logprob"))
        self.top_logprobs = int(body.get("top_logprobs_num") or 0)
        self.token_logprobs = list(body.get("token_ids_logprob") or [])
        self.created = int(time.time())
        self.texts: List[str] = []
        self.ids: List[str] = []
        self.fixed: List[str] = []
        for request in requests:
            assert request.stream is not None
            text = request.stream.text(request.start, request.start + request.target, request.branch)
            self.texts.append(text)
            self.ids.append(",".join(map(str, encode(text))) if api == "generate" else "")
            self.fixed.append(
                '"prompt_tokens":%d,"weight_version":"default","num_retractions":%%d,"reasoning_tokens":0,'
                '"completion_tokens":%%d,"cached_tokens":%d,"cached_tokens_details":%s,"dp_rank":null'
                % (
                    request.prompt_tokens,
                    request.cached,
                    '{"device":%d,"host":0}' % request.cached if request.cached else "null",
                )
            )
        if self.stream:
            connection.start_stream()
            if api == "chat":
                self._chat_event({"reasoning_content": None, "role": "assistant", "content": ""}, None, None)

    def progress(self, request: Request, now: float) -> None:
        """New tokens of one request, or its end."""
        final = request.finish is not None
        if not self.stream:
            if final and all(other.finish is not None for other in self.requests):
                self._whole(now)
            return
        if not final:
            fresh = request.emitted - request.sent
            if request.sent and fresh < self.interval:
                return
            if now - request.last_chunk < len(self.server.scheduler.running) / _MAX_CHUNKS_PER_S:
                return
        if self.server.spoil(self, request):
            return
        request.last_chunk = now
        index = self.requests.index(request) if len(self.requests) > 1 else 0
        if self.api == "generate":
            text = self._native(index, now)
            if not self.single:
                text = text[:-1] + ',"index":%d}' % index
            self.connection.event(text)
        else:
            self._delta(index)
        request.sent = request.emitted
        if final and all(other.finish is not None for other in self.requests):
            if self.usage and self.api != "generate":
                self._usage_event()
            self.connection.end_stream()

    # -- the native endpoint

    def visible(self, index: int) -> int:
        """Tokens with text: the end-of-text token has none."""
        request = self.requests[index]
        ended = request.finish is not None and request.finish["type"] == "stop"
        return request.emitted - (1 if ended else 0)

    def _native(self, index: int, now: float) -> str:
        """One /generate object: cumulative text and ids (deltas with --incremental-streaming-output)."""
        request = self.requests[index]
        shown = self.visible(index)
        first = request.sent if self.server.args.incremental_streaming_output and self.stream else 0
        ids = self.ids[index][10 * first : max(0, 10 * shown - 1)]
        if shown < request.emitted:
            ids += ",%d" % EOS if ids else str(EOS)
        finish = json.dumps(request.finish, separators=(",", ":")) if request.finish else "null"
        meta = '{"id":"%s","finish_reason":%s,' % (request.rid, finish)
        meta += self.fixed[index] % (request.retractions, request.emitted)
        if self.logprobs:
            meta += self.server.logprob_fields(request, shown, self.top_logprobs, self.token_logprobs)
        if request.finish:
            meta += self._final_fields(request, now)
        return '{"text":"%s","output_ids":[%s],"meta_info":%s}}' % (
            self.texts[index][4 * first : 4 * shown], ids, meta,
        )  # fmt: skip

    def _final_fields(self, request: Request, now: float) -> str:
        out = ',"e2e_latency":%r' % (now - request.arrival)
        if request.verify_steps and self.server.arm.draft_tokens > 1:
            proposed = request.verify_steps * (self.server.arm.draft_tokens - 1)
            wrong = self.server.failures.get("overcounted_drafts")  # counters that cannot be right
            correct = request.correct * (wrong["factor"] if wrong else 1)
            spec = {
                "spec_accept_rate": correct / proposed,
                "spec_accept_length": request.emitted / request.verify_steps,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": proposed,
                "spec_verify_ct": request.verify_steps,
                "spec_accepted_drafts": correct,
                "spec_proposed_drafts": proposed,
                "spec_correct_drafts_histogram": request.histogram,
                "spec_accept_histogram": request.histogram,
            }
            out += "," + json.dumps(spec, separators=(",", ":"))[1:-1]
        return out

    # -- the OpenAI endpoints

    def _envelope(self, kind: str, choices: Any) -> Json:
        return {
            "id": self.requests[0].rid,
            "object": kind,
            "created": self.created,
            "model": self.server.args.served_model_name,
            "choices": choices,
        }

    def _chat_event(self, delta: Json, finish: Optional[str], matched: Any, index: int = 0) -> None:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": matched}
        self.connection.event(json.dumps(self._envelope("chat.completion.chunk", [choice]), separators=(",", ":")))

    def _delta(self, index: int) -> None:
        request = self.requests[index]
        text = self.texts[index][4 * request.sent : 4 * self.visible(index)]
        reason = self._reason(request)
        matched = (request.finish or {}).get("matched")
        if self.api == "chat":
            if text:
                self._chat_event({"reasoning_content": None, "content": text}, None, None, index)
            if request.finish:
                self._chat_event({"reasoning_content": None}, reason, matched, index)
            return
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
        self.connection.event(json.dumps(self._envelope("text_completion", [choice]), separators=(",", ":")))

    @staticmethod
    def _reason(request: Request) -> Optional[str]:
        return str(request.finish["type"]) if request.finish else None

    def _usage(self) -> Json:
        prompt = sum(request.prompt_tokens for request in self.requests)
        output = sum(request.emitted for request in self.requests)
        cached = sum(request.cached for request in self.requests)
        details = {"cached_tokens": cached} if self.server.args.enable_cache_report and cached else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": details,
            "reasoning_tokens": 0,
        }

    def _usage_event(self) -> None:
        kind = "chat.completion.chunk" if self.api == "chat" else "text_completion"
        self.connection.event(json.dumps({**self._envelope(kind, []), "usage": self._usage()}, separators=(",", ":")))

    def _whole(self, now: float) -> None:
        if self.api == "generate":
            parts = [self._native(index, now) for index in range(len(self.requests))]
            self.connection.respond(200, (parts[0] if self.single else "[" + ",".join(parts) + "]").encode())
            return
        choices = []
        for index, request in enumerate(self.requests):
            text = self.texts[index][: 4 * self.visible(index)]
            choice: Json = {"index": index}
            if self.api == "chat":
                choice["message"] = {
                    "role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None,
                }  # fmt: skip
            else:
                choice["text"] = text
            choice.update(
                logprobs=None,
                finish_reason=self._reason(request),
                matched_stop=(request.finish or {}).get("matched"),
            )
            choices.append(choice)
        kind = "chat.completion" if self.api == "chat" else "text_completion"
        whole = {**self._envelope(kind, choices), "usage": self._usage(), "metadata": {"weight_version": "default"}}
        self.connection.respond(200, json.dumps(whole, separators=(",", ":")).encode())


# ------------------------------------------------------------------------------------------------ the server

_FRAME = "/opt/sglang/python/sglang/srt/"
_GRACE_S = 0.003  # arrivals this soon after a request has ended count as waiting at that moment: a closed-loop
# client needs about a millisecond to send its next request, which at small time scales would cost a whole step


class Launch:
    """The loading phases of one server process, with SGLang's log lines, up to the moment the port is bound."""

    def __init__(self, own: argparse.Namespace, args: argparse.Namespace, profile: Json, log: Log) -> None:
        self.own, self.args, self.profile, self.log = own, args, profile, log
        self.version = str(profile["speaks_as"])
        self.modern = version_tuple(self.version) >= (0, 5, 23)
        self.scale = own.time_scale
        self.phase_scale = own.time_scale / float(profile.get("launch_speedup", 1.0))
        self.seconds: Dict[str, float] = dict(profile["launch_s"])
        self.clock = time.monotonic()
        self.children: Dict[int, str] = {}
        self.categories: Dict[str, str] = {}
        if own.categories:
            self.categories = json.loads(Path(own.categories).read_text(encoding="utf-8"))
        self.state = Path(own.gpu_state) if own.gpu_state else None
        if self.state:
            self.state.mkdir(parents=True, exist_ok=True)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        known = self.state / "gpus" if self.state else None  # left by the stand-in nvidia-smi
        count = own.gpus or int(known.read_text() if known and known.exists() else profile["gpu"].get("count", 1))
        self.gpus = [int(part) for part in visible.split(",") if part.strip()] if visible else list(range(count))
        self.gpus = self.gpus[args.base_gpu_id :]
        self.graph_seconds: Dict[str, float] = dict.fromkeys(
            ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0
        )
        self.graph_gb = dict.fromkeys(self.graph_seconds, 0.0)
        self.kv_tokens = 0
        self.kv_gb = 0.0

    # -- loading

    def spend(self, phase: str, share: float = 1.0) -> float:
        """Let a phase pass against the launch's absolute clock; the seconds a real server would report."""
        seconds = float(self.seconds.get(phase, 0.0)) * share
        self.clock += seconds * self.phase_scale
        time.sleep(max(0.0, self.clock - time.monotonic()))
        return seconds

    def load(self) -> None:
        """Everything before the port is bound. Ends the process itself where SGLang does."""
        log, args = self.log, self.args
        self.spend("import")
        try:
            resolve(args, self.profile, log.line)
        except ConfigError as error:
            self._config_traceback(error)
        self._switches()
        if self.failures.get("exit_at_start"):
            self._config_traceback(ConfigError("RuntimeError", "simulated failure: exit at start"))
        log.ranked = args.tp_size > 1
        log.line("server_args=" + self._server_args_text())
        log.line("Using default HuggingFace chat template with detected content format: string")
        self.spend("spawn")
        self._fork_children()
        if self.failures.get("hang_at_load"):
            self._hang()
        self._load_weights_and_pool()
        self._capture_graphs()
        log.line(
            "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
            "context_len=%d, available_gpu_mem=%.2f GB"
            % (
                self.kv_tokens, args.chunked_prefill_size, args.max_prefill_tokens, args.max_running_requests,
                args.context_length, self.available,
            ),
            rank=True,
        )  # fmt: skip
        graphs = ", ".join("%s=%.2f" % item for item in self.graph_seconds.items())
        log.line(
            "Engine startup timings (s): load_weight=%.2f, kv_cache_allocation=%.2f, scheduler_e2e=%.2f, "
            "cuda_graph={%s}, tokenizer_e2e=%.2f"
            % (self.seconds["weights"], self.seconds["kv_pool"], sum(self.graph_seconds.values()), graphs,
               self.seconds["spawn"])
        )  # fmt: skip

    def _switches(self) -> None:
        """Effects and failures of this launch, from the profile or, where given, from the environment."""
        override = json.loads(os.environ.get("SPECSWEEP_SIM") or "{}")
        number = next_launch_number(self.state)
        seed = "%s|%s|%d" % (self.own.seed, self.own.host_name, number) if self.own.seed is not None else None
        self.effects = Effects(
            override.get("effects", self.profile.get("effects", {})),
            host=self.own.host_name,
            seed=seed or uuid.uuid4().hex,
            scale=self.scale,
            state=self.state,
        )
        self.arm = arm_of(self.args, self.profile)
        fields = dict(
            vars(self.args),
            algorithm=self.args.speculative_algorithm,
            draft_model=self.args.speculative_draft_model_path,
            num_steps=self.args.speculative_num_steps,
            topk=self.args.speculative_eagle_topk,
            num_draft_tokens=self.args.speculative_num_draft_tokens,
            cuda_graph=self.arm.cuda_graph,
            host_name=self.own.host_name,
            launch=number,
        )
        specs = override.get("failures", self.profile.get("failures", []))
        self.failures = Failures(specs, fields, self.state, random.Random("%s|failures" % seed if seed else None))
        if self.failures.get("accept_length_one"):
            self.arm.ineffective = True
        if self.failures.get("no_newline"):
            self.log.newline = " "
        if self.failures.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _config_traceback(self, error: ConfigError) -> NoReturn:
        frames = [
            ("<frozen runpy>", 198, "_run_module_as_main"),
            (_FRAME.replace("srt/", "") + "launch_server.py", 68, "<module>"),
            (_FRAME + "server_args.py", 9380, "prepare_server_args"),
            (_FRAME + "arg_groups/speculative_hook.py", 144, "handle_speculative_decoding"),
        ]
        self.log.traceback(frames, "%s: %s" % (error.kind, error))
        sys.exit(1)

    def _server_args_text(self) -> str:
        values = self._resolved_args()
        if self.modern:
            return repr(values)
        return "ServerArgs(" + ", ".join("%s=%r" % item for item in values.items()) + ")"

    def _resolved_args(self) -> Json:
        """The flat arguments that /server_info and the log show."""
        out: Json = {"model_path": self.args.model_path}
        for _, field, _, _ in flag_rows(self.version):
            out[field] = getattr(self.args, field)
        batches = graph_batches(self.args)
        backend = self.args.cuda_graph_backend_decode or "full"
        out["cuda_graph_config"] = {
            "decode": {"backend": backend, "max_bs": max(batches) if batches else None, "bs": batches},
            "prefill": {"backend": self.args.cuda_graph_backend_prefill or "breakable"},
        }
        return out

    def _fork_children(self) -> None:
        ranks = self.args.tp_size
        if ranks > len(self.gpus):
            self.gpus += [max(self.gpus, default=-1) + 1 + extra for extra in range(ranks - len(self.gpus))]
            self.missing_gpu = True
        else:
            self.missing_gpu = False
        self.registry = GpuRegistry(self.own.gpu_state, self.profile, self.gpus)
        for rank in range(ranks):
            title = "sglang::scheduler" + ("_TP%d" % rank if ranks > 1 else "")
            self.children[fork_child(title)] = "scheduler_%d" % rank
        self.children[fork_child("sglang::detokenizer")] = "detokenizer"
        self.schedulers = [pid for pid, name in self.children.items() if name.startswith("scheduler")]
        for kind, session in (("fork_away", False), ("escape_session", True)):
            if self.failures.get(kind):
                title = "python3-worker" if session else "sglang::scheduler"
                runaway = fork_child(title, detach=True, new_session=session)
                self.registry.hold(runaway, 0, 2048, title)

    def _hold_memory(self) -> None:
        for rank, pid in enumerate(self.schedulers):
            self.registry.hold(pid, rank, (self.before - self.available + 0.5) * 1024.0)

    def _load_weights_and_pool(self) -> None:
        log, args, model = self.log, self.args, self.profile["model"]
        log.line("Init torch distributed begin.", rank=True)
        if self.missing_gpu:
            self.scheduler_dies("RuntimeError: CUDA error: invalid device ordinal", "init_torch_distributed")
        log.line("Init torch distributed ends. elapsed=0.02 s, mem usage=0.09 GB", rank=True)
        own = list(self.children)
        empty = self.registry.total_mib / 1024.0 - 1.31
        self.effects.alone = lambda: self.registry.free_gb(0, own) >= empty
        self.before = self.available = min(self.registry.free_gb(rank, own) for rank in range(args.tp_size))
        self._load_one(model["weights_gb"], model["architecture"], "weights")
        drafting = args.speculative_algorithm in EAGLE_FAMILY
        kv_bytes = float(model["kv_bytes_per_token"])
        draft = self.profile.get("draft", {})
        if drafting:
            alone = args.speculative_draft_model_path is None
            head = model if alone else draft
            kind = model["architecture"] if alone else self.arm.drafter.get("architecture") or "LlamaForCausalLM"
            self._load_one(head["weights_gb"], kind, "draft_weights")
            kv_bytes += float(head["kv_bytes_per_token"])
        allowed = self.available - self.before * (1.0 - args.mem_fraction_static)
        if allowed <= 0:
            viable = 1.0 - self.available / self.before
            self.scheduler_dies(
                "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=%s. Raise "
                "--mem-fraction-static above %.3f (minimum viable = 1 - available/pre = %.4f). If using speculative "
                "decoding, draft weights are now counted." % (args.mem_fraction_static, viable + 0.0005, viable),
                "init_memory_pools",
            )
        tokens = int(allowed * 2**30 / kv_bytes)
        if args.max_total_tokens:
            tokens = min(tokens, args.max_total_tokens)
        if tokens < 1024:
            self.scheduler_dies(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
                "mem_fraction_static=%s" % args.mem_fraction_static,
                "init_memory_pools",
            )
        self.kv_tokens = tokens
        self.spend("kv_pool")
        pools = [float(model["kv_bytes_per_token"])]
        if drafting:
            pools.append(kv_bytes - pools[0])
        for size in pools:
            half = tokens * size / 2**31
            self.available -= 2 * half
            log.line(
                "KV Cache is allocated. dtype: torch.bfloat16, #tokens: %d, K size: %.2f GB, V size: %.2f GB"
                % (tokens, half, half),
                rank=True,
            )
            log.line("Memory pool end. avail mem=%.2f GB" % self.available, rank=True)
        self.kv_gb = tokens * kv_bytes / 2**30
        self._hold_memory()
        if drafting and args.speculative_draft_model_path is None:
            self.scheduler_dies(
                "AttributeError: '%s' object has no attribute 'hot_token_id'" % model["architecture"], "init_lm_head"
            )
        if self.available < 0.25:
            self.scheduler_dies(
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                "init_cublas",
            )
        self._refuse_backend(drafting)

    def _refuse_backend(self, drafting: bool) -> None:
        backend, topk = self.args.attention_backend, self.args.speculative_eagle_topk
        head = str(self.arm.drafter.get("architecture") or "")
        if drafting and self.args.speculative_algorithm == "EAGLE3" and head == "LlamaForCausalLMEagle":
            self.scheduler_dies(
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x16384 and 8192x4096)", "forward"
            )
        if drafting and backend == "torch_native":
            self.scheduler_dies(
                "ValueError: EAGLE is not supported in decode attention backend torch_native", "_create_backend"
            )
        if drafting and topk > 1 and self.profile["model"].get("mla"):
            names = {"flashmla": "FlashMLA", "flashinfer": "Flashinfer MLA"}
            if backend in names:
                self.scheduler_dies(
                    "ValueError: Currently %s only supports topk=1 for speculative decoding" % names[backend],
                    "__init__",
                )

    def _load_one(self, weights_gb: float, kind: str, phase: str) -> None:
        self.log.line("Load weight begin. avail mem=%.2f GB" % self.available, rank=True)
        failed = self.failures.get("oom_at_weights")
        if self.available < weights_gb or failed:
            self.scheduler_dies(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                "%.2f GiB of which %.2f GiB is free." % (self.registry.total_mib / 1024.0, max(0.0, self.available)),
                "load_model",
            )
        for share in (0.5, 0.5):
            self.spend(phase, share)
        bar = "Multi-thread loading shards: %3d%% Completed | %d/1 [00:00<?, ?it/s]"
        self.log.raw("\r" + bar % (0, 0) + "\r" + bar % (100, 1))
        self.available -= weights_gb
        self.log.line(
            "Load weight end. elapsed=%.2f s, type=%s, avail mem=%.2f GB, mem usage=%.2f GB."
            % (self.seconds.get(phase, 0.0), kind, self.available, weights_gb),
            rank=True,
        )
        self._hold_memory()

    def _capture_graphs(self) -> None:
        """CUDA graphs in SGLang's order: verify (or decode), draft decode (more than one step), draft extend."""
        args, arm = self.args, self.arm
        batches = graph_batches(args)
        if not batches:
            return
        drafting = args.speculative_algorithm in EAGLE_FAMILY
        names = ["target_verify" if args.speculative_algorithm else "decode"]
        if drafting:
            names += (["draft_decode"] if arm.steps > 1 else []) + ["draft_extend"]
        per_token = float(self.profile["model"].get("graph_gb_per_token", 0.0015))
        for name in names:
            width = arm.topk if name == "draft_decode" else arm.draft_tokens
            title = {"decode": "target decode"}.get(name, name.replace("_", " "))
            self.log.line(
                "Capture %s CUDA graph begin. backend=full, num_tokens_per_req=%d, bs=%s, avail mem=%.2f GB"
                % (title, width, batches, self.available),
                rank=True,
            )
            if self.failures.get("hang_at_capture"):
                self._hang()
            slow = self.failures.get("slow_jit")
            if slow:
                self.log.line("Entering DeepGEMM JIT Pre-Compile session. It may take a long time", rank=True)
                self.clock += slow["seconds"] * self.phase_scale
            seconds = self.spend("capture")
            need = 0.08 + per_token * max(batches) * width
            if need > self.available or self.failures.get("oom_at_capture"):
                self._capture_failed("CUDA out of memory. Tried to allocate %.2f GiB." % need)
            if name == "draft_decode" and arm.draft_tokens > largest_tree(arm.steps, arm.topk):
                self._capture_failed("selected index k out of range")
            bar = "Capturing batches (bs=%d avail_mem=%.2f GB): %3d%%|##########| %d/%d"
            self.log.raw(
                "\r".join(
                    bar % (size, self.available, 100 * (i + 1) // len(batches), i + 1, len(batches))
                    for i, size in enumerate(reversed(batches))
                )
            )
            self.available -= need
            self.graph_seconds[name], self.graph_gb[name] = seconds, need
            self.log.line(
                "Capture %s CUDA graph end. elapsed=%.2f s, mem usage=%.2f GB, avail mem=%.2f GB."
                % (title, seconds, need, self.available),
                rank=True,
            )
            self._hold_memory()

    def _capture_failed(self, inner: str) -> NoReturn:
        self.scheduler_dies(
            "Exception: Capture cuda graph failed: %s\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
            "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
            "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance "
            "loss)\nOpen an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n" % inner,
            "__init__",
        )

    def _hang(self) -> NoReturn:
        while True:
            signal.pause()

    def scheduler_dies(self, error: str, function: str, running: bool = False) -> NoReturn:
        """An exception in the scheduler process: its traceback, then SGLang kills its whole tree, itself included."""
        frames = [
            (_FRAME + "managers/scheduler.py", 4931, "run_scheduler_process"),
            (_FRAME + "model_executor/model_runner.py", 775, function),
        ]
        self.log.traceback(frames, error, head="Scheduler hit an exception: ")
        if running:
            self.log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        else:
            self.log.line("Received sigquit from a child process. It usually means the child failed.")
        self.kill_tree()

    def kill_tree(self) -> NoReturn:
        me = os.getpid()
        self.log.line("kill_process_tree called: parent_pid=%d, include_parent=True, pid=%d" % (me, me))
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        os.kill(me, signal.SIGKILL)
        self._hang()  # the signal may take a moment to arrive


class Server(Launch):
    """A loaded server: HTTP over the scheduler against absolute deadlines, then draining."""

    def __init__(self, own: argparse.Namespace, args: argparse.Namespace, profile: Json, log: Log) -> None:
        super().__init__(own, args, profile, log)
        self.ready = False
        self.draining = False
        self.iteration: Optional[Iteration] = None
        self.requests_seen = 0
        self.seen: set[bytes] = set()
        self.last_prompt: List[int] = []
        self.tokens_total = 0
        self.prompt_tokens_total = 0
        self.interval: Json = {}
        self.last_throughput = 0.0
        self.last_accept_length = 0.0
        self.cumulative = [0, 0]  # accepted drafts, verify steps since start or flush, folded in per log interval
        self._date = (0, "")
        self.loop: asyncio.AbstractEventLoop
        self.scheduler: Scheduler

    def serve(self) -> None:
        """Bind the port (only now, as SGLang does) and serve until a signal."""
        self.loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll would round waits up to 1 ms
        asyncio.set_event_loop(self.loop)
        self.scheduler = Scheduler(
            self.arm,
            max_running=self.args.max_running_requests,
            kv_tokens=self.kv_tokens,
            chunk=self.args.chunked_prefill_size,
            scale=self.scale,
            factor=self.effects.step,
        )
        self.log.info("Started server process [%d]" % os.getpid())
        self.log.info("Waiting for application startup.")
        self.log.info("Application startup complete.")
        try:
            self.loop.run_until_complete(
                self.loop.create_server(lambda: Connection(self), self.args.host, self.args.port, backlog=512)
            )
        except OSError as error:
            self.log.line(
                "ERROR:    [Errno %s] error while attempting to bind on address ('%s', %d): address already in use"
                % (error.errno, self.args.host, self.args.port)
            )
            self.log.info("Waiting for application shutdown.")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._hang()
        if not self.failures.get("ignore_term"):
            for number in (signal.SIGTERM, signal.SIGINT):
                self.loop.add_signal_handler(number, self._drain)
        self.loop.add_signal_handler(signal.SIGCHLD, lambda: self.loop.call_later(0.05, self._child_ended))
        self.log.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)" % (self.args.host, self.args.port))
        self._reset_interval()
        self.loop.call_later(self.seconds["warmup"] * self.phase_scale, self._warmed_up)
        self.loop.run_forever()

    def _warmed_up(self) -> None:
        self.log.info('127.0.0.1:0 - "GET /model_info HTTP/1.1" 200 OK')
        if self.args.speculative_algorithm in EAGLE_FAMILY and self.arm.draft_tokens > largest_tree(
            self.arm.steps, self.arm.topk
        ):
            self.scheduler_dies("RuntimeError: selected index k out of range", "organize_draft_results", running=True)
        self._log_prefill(1, 6, 0, 0.5)
        self.log.info('127.0.0.1:0 - "POST /generate HTTP/1.1" 200 OK')
        self.ready = True
        self.log.line("The server is fired up and ready to roll!")
        if self.failures.get("close_stdout"):
            self.log.closed = True
            os.close(1)
            os.close(2)
        flood = self.failures.get("log_flood")
        if flood:
            self._flood(int(flood.get("mb", 200) * 1e6))
        if self.effects.drift:
            self._thermometer()

    def _flood(self, left: int) -> None:
        text = ("flood " * 170 + "\n") * 100
        self.log.raw(text)
        if left > len(text):
            self.loop.call_later(0.001, self._flood, left - len(text))

    def _thermometer(self) -> None:
        """Keep what nvidia-smi shows in step with the thermal drift."""
        heat = self.effects.heat()
        self.registry.telemetry = {
            "temperature": round(60 + 28 * heat),
            "sm_clock": round(1980 - 300 * heat),
            "throttle": heat > 0.8,
        }
        self._hold_memory()
        self.loop.call_later(1.0, self._thermometer)

    def _child_ended(self) -> None:
        for pid, name in list(self.children.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if not ended:
                continue
            del self.children[pid]
            if not self.draining:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self.log.line("Subprocess %s (pid=%d) crashed with exit code %d" % (name, pid, code))
                self.log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            self.kill_tree()

    def _drain(self) -> None:
        if self.draining:
            return
        self.draining = True
        self.log.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.loop.call_later(self.seconds["drain"] * self.phase_scale, self._drained)

    def _drained(self) -> None:
        if self.scheduler.pending():
            self.loop.call_later(self.seconds["drain"] * self.phase_scale + 0.01, self._drained)
            return
        self.log.line("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        self.loop.call_later(self.seconds["exit"] * self.phase_scale, self.kill_tree)

    # -- the engine loop

    def submit(self, request: Request) -> None:
        self.scheduler.waiting.append(request)
        if self.iteration is None:
            self._plan(max(request.arrival, time.monotonic() - _GRACE_S))

    def _plan(self, now: float, held: bool = False) -> None:
        """Plan the pass that starts at ``now`` (on the absolute clock, perhaps a little in the past)."""
        self.iteration = self._begin(now, now + _GRACE_S if held else None)
        if self.iteration is not None:
            self.loop.call_at(self.iteration.end, self._passed)

    def _begin(self, now: float, horizon: Optional[float]) -> Optional[Iteration]:
        """As the scheduler's; from the first waiting request where all of them arrived later (this loop was late)."""
        iteration = self.scheduler.begin(now, horizon)
        if iteration is None and self.scheduler.waiting:
            iteration = self.scheduler.begin(max(now, self.scheduler.waiting[0].arrival))
        return iteration

    def _passed(self) -> None:
        """Book every pass whose end has come; late passes are caught up, the clock never shifts."""
        for _ in range(64):
            iteration = self.iteration
            if iteration is None:
                return
            now = time.monotonic()
            if iteration.end > now + 1e-5:
                self.loop.call_at(iteration.end, self._passed)
                return
            retracted = self.scheduler.retracted
            before = sum(request.emitted for request in iteration.requests)
            touched = self.scheduler.complete(iteration)
            self._account(iteration, touched, before)
            ended = False
            for request in touched:
                if request.sink is not None:
                    request.sink.progress(request, now)
                ended = ended or request.finish is not None
            if ended and now < iteration.end + _GRACE_S:
                self.iteration = Iteration(True, iteration.end, math.inf, [])
                self.loop.call_at(iteration.end + _GRACE_S, self._plan, iteration.end, True)
                return
            self.iteration = self._begin(iteration.end, iteration.end + _GRACE_S if ended else None)
            if self.scheduler.retracted > retracted:
                self.log.line(
                    "KV cache pool is full. Retract requests. #retracted_reqs: %d"
                    % (self.scheduler.retracted - retracted),
                    rank=True,
                )
        self.loop.call_soon(self._passed)

    def _reset_interval(self) -> None:
        self.interval = {"steps": 0, "tokens": 0, "since": time.monotonic(), "correct": 0, "verify": 0}

    def _account(self, iteration: Iteration, touched: List[Request], before: int) -> None:
        """Counters and the periodic log lines of one pass."""
        fresh = sum(request.emitted for request in touched) - before
        self.tokens_total += fresh
        interval = self.interval
        interval["tokens"] += fresh
        crash = self.failures.get("crash_after_tokens")
        if crash and self.tokens_total >= crash.get("tokens", 1):
            self.scheduler_dies(
                "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "forward", running=True
            )
        if not iteration.decode:
            tokens = sum(request.prompt_tokens for request in touched)
            cached = sum(request.cached for request in touched)
            self._log_prefill(len(touched), tokens - cached, cached, iteration.end - iteration.begin)
            return
        interval["steps"] += 1
        if self.arm.algorithm:
            interval["verify"] += len(touched)
            interval["correct"] += fresh - len(touched)
        if interval["steps"] >= self.args.decode_log_interval:
            self._log_decode(len(touched))

    def _log_prefill(self, sequences: int, tokens: int, cached: int, seconds: float) -> None:
        self.log.line(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, #pending-token: 0, cuda graph: False, input throughput (token/s): %.2f"
            % (
                sequences, tokens, cached, self.scheduler.kv_used() / self.kv_tokens,
                len(self.scheduler.running) - sequences if self.scheduler.running else 0,
                len(self.scheduler.waiting), tokens / max(seconds, 1e-9),
            ),
            rank=True,
        )  # fmt: skip

    def _log_decode(self, batch: int) -> None:
        interval = self.interval
        seconds = max(1e-9, time.monotonic() - interval["since"])
        self.last_throughput = interval["tokens"] / seconds
        spec = ""
        if self.arm.algorithm and interval["verify"]:
            self.last_accept_length = 1.0 + interval["correct"] / interval["verify"]
            self.cumulative[0] += interval["correct"]
            self.cumulative[1] += interval["verify"]
            rate = (self.last_accept_length - 1.0) / max(1, self.arm.draft_tokens - 1)
            spec = "accept len: %.2f, accept rate: %.2f, " % (self.last_accept_length, rate)
        used = self.scheduler.kv_used()
        self.log.line(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d"
            % (batch, used, used / self.kv_tokens, spec, self.arm.graphed(batch), self.last_throughput,
               len(self.scheduler.waiting)),
            rank=True,
        )  # fmt: skip
        self._reset_interval()

    # -- requests

    def http_date(self) -> str:
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now)))
        return self._date[1]

    def handle(
        self, connection: Connection, method: str, target: str, headers: Dict[str, str], body: bytes, arrival: float
    ) -> None:
        path = target.partition("?")[0]
        open_path = path.startswith(("/health", "/ready", "/metrics"))
        key = self.args.api_key
        if key and not open_path and headers.get("authorization") != "Bearer " + key:
            raise HttpError(401, {"error": "Unauthorized"})
        generation = {"/generate": "generate", "/v1/chat/completions": "chat", "/v1/completions": "completion"}
        if path in generation:
            if method not in ("POST", "PUT"):
                raise HttpError(405, {"detail": "Method Not Allowed"})
            self._generation(connection, generation[path], self._json(body), arrival)
            return
        if path in ("/health", "/health_generate"):
            quiet = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION") in ("0", "false") and path == "/health"
            wait = 0.0 if quiet else self.scale
            self.loop.call_later(wait, connection.respond, 200 if self.ready else 503, b"")
            return
        status, answer = self._plain(method, path, self._json(body) if body else {})
        if isinstance(answer, str):
            connection.respond(status, answer.encode(), "text/plain; charset=utf-8" if answer else "")
        else:
            connection.respond(status, json.dumps(answer, separators=(",", ":")).encode())

    @staticmethod
    def _json(body: bytes) -> Json:
        try:
            value = json.loads(body)
        except ValueError:
            raise HttpError(400, {"error": {"message": "Invalid JSON body"}}) from None
        if not isinstance(value, dict):
            raise HttpError(400, {"error": {"message": "The body must be a JSON object"}})
        return value

    def _plain(self, method: str, path: str, body: Json) -> Tuple[int, Any]:
        """Everything that is answered at once: (status, text or JSON value)."""
        if path == "/ready" and self.modern:
            return (200 if self.ready else 503), ""
        if path in ("/server_info", "/get_server_info"):
            return 200, self._server_info()
        if path in ("/model_info", "/get_model_info"):
            return 200, self._model_info()
        if path == "/v1/models":
            name = self.args.served_model_name
            card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name}
            return 200, {
                "object": "list",
                "data": [{**card, "parent": None, "max_model_len": self.args.context_length}],
            }
        if path in ("/tokenize", "/v1/tokenize"):
            return 200, self._tokenize(body)
        if path in ("/detokenize", "/v1/detokenize"):
            return 200, {"text": decode(list(body.get("tokens") or []))}
        if path == "/flush_cache":
            return self._flush_cache()
        if path == "/freeze_gc":
            self.log.line("Freezing GC in Scheduler process. gen0: 118->0, gen1: 380->0, gen2: 821374->0")
            return 200, "Garbage collection frozen.\n"
        if path == "/metrics" and self.args.enable_metrics:
            return 200, self._metrics()
        if path == "/abort_request":
            self._abort(body)
            return 200, ""
        if path == "/set_internal_state":
            known = {
                "pp_max_micro_batch_size",
                "speculative_accept_threshold_single",
                "speculative_accept_threshold_acc",
            }
            asked = body.get("server_args") or {}
            for name in asked:
                if name not in known:
                    self.log.line("Updating %s is not supported." % name)
            return 200, {"updated": bool(asked) and set(asked) <= known}
        if path == "/get_load" and not self.modern:
            return 200, [
                {
                    "dp_rank": 0,
                    "num_reqs": len(self.scheduler.pending()),
                    "num_waiting_reqs": len(self.scheduler.waiting),
                    "num_tokens": self.scheduler.kv_used(),
                    "num_pending_tokens": 0,
                    "ts_tic": time.monotonic(),
                }
            ]
        if path == "/v1/loads":
            return 200, self._loads()
        raise HttpError(404, {"detail": "Not Found"})

    def _tokenize(self, body: Json) -> Json:
        if body.get("messages"):
            prompt: Any = chat_prompt(body["messages"])
        else:
            prompt = body.get("prompt", body.get("text", ""))
        if isinstance(prompt, list):
            tokens: Any = [encode(str(item)) for item in prompt]
            count: Any = [len(item) for item in tokens]
        else:
            tokens = encode(str(prompt))
            count = len(tokens)
        return {"tokens": tokens, "count": count, "max_model_len": self.args.context_length}

    def _flush_cache(self) -> Tuple[int, str]:
        if self.scheduler.pending():
            self.log.line(
                "Cache not flushed because there are pending requests. #queue-req: %d, #running-req: %d"
                % (len(self.scheduler.waiting), len(self.scheduler.active())),
                rank=True,
            )
            return 400, ""
        if not self.failures.get("flush_ignored"):
            self.seen.clear()
            self.last_prompt = []
        self.cumulative = [0, 0]
        self._reset_interval()
        self.effects.new_block()
        self.log.line("Cache flushed successfully!", rank=True)
        return 200, (
            "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
            "the operation will not be performed.)\n"
        )

    def _abort(self, body: Json) -> None:
        for request in self.scheduler.pending():
            if body.get("abort_all") or request.rid == body.get("rid"):
                self._end_early(request)
                if request.sink is not None:
                    request.sink.progress(request, time.monotonic())

    def abort_reply(self, reply: Reply) -> None:
        """The client is gone: SGLang aborts what it asked for."""
        for request in reply.requests:
            request.sink = None
            self._end_early(request)

    def _end_early(self, request: Request) -> None:
        if request.finish is None:
            request.finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        self.scheduler.running = [other for other in self.scheduler.running if other is not request]
        self.scheduler.joining = [other for other in self.scheduler.joining if other is not request]

    def _generation(self, connection: Connection, api: str, body: Json, arrival: float) -> None:
        self.requests_seen += 1
        if self._failing("http_500"):
            raise HttpError(500, b"Internal Server Error", "text/plain; charset=utf-8")
        if api == "generate":
            sampling = dict(body.get("sampling_params") or {})
            unknown = sorted(set(sampling) - _SAMPLING_KEYS)
            if unknown and self.modern:
                raise HttpError(400, {"error": {"message": "Unknown sampling parameter(s): " + ", ".join(unknown)}})
            if unknown:
                raise HttpError(500, b"Internal Server Error", "text/plain; charset=utf-8")
            prompts = self._native_prompts(body)
        else:
            sampling = {key: body[key] for key in _SAMPLING_KEYS if key in body}
            limit = body.get("max_completion_tokens") or body.get("max_tokens")
            sampling["max_new_tokens"] = limit if limit is not None or api == "chat" else 16
            sampling["sampling_seed"] = body.get("seed")
            if api == "chat":
                if not body.get("messages"):
                    raise HttpError(400, {"object": "error", "message": "Messages cannot be empty.", "code": 400})
                prompts = [encode(chat_prompt(body["messages"]))]
            else:
                prompts = self._prompt_ids(body.get("prompt", ""))
        if int(sampling.get("n") or 1) != 1:
            raise HttpError(400, {"error": {"message": "The simulated engine supports n=1 only."}})
        requests = [self._request(ids, sampling, body, arrival) for ids in prompts]
        reply = Reply(self, connection, api, body, requests)
        connection.reply = reply
        for request in requests:
            request.sink = reply
        if self._failing("no_tokens"):
            return
        slow = self.failures.get("slow_first_request")
        if slow and self.requests_seen == 1:
            self.loop.call_later(slow["seconds"] * self.scale, self._submit_all, requests)
            return
        self._submit_all(requests)

    def _submit_all(self, requests: List[Request]) -> None:
        for request in requests:
            self.submit(request)

    def _native_prompts(self, body: Json) -> List[List[int]]:
        ids = body.get("input_ids")
        if ids:
            return [list(item) for item in ids] if isinstance(ids[0], list) else [list(ids)]
        return self._prompt_ids(body.get("text"))

    @staticmethod
    def _prompt_ids(prompt: Any) -> List[List[int]]:
        if isinstance(prompt, str) and prompt:
            return [encode(prompt)]
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return [list(prompt)]
        if isinstance(prompt, list) and prompt:
            return [list(item) if isinstance(item, list) else encode(str(item)) for item in prompt]
        raise HttpError(400, {"error": {"message": "Either text or input_ids should be provided."}})

    def _request(self, ids: List[int], sampling: Json, body: Json, arrival: float) -> Request:
        if len(ids) >= self.args.context_length:
            raise HttpError(
                400,
                {
                    "error": {
                        "message": "The input (%d tokens) is longer than the model's context length (%d tokens)."
                        % (len(ids), self.args.context_length)
                    }
                },
            )
        key, user, answer = split_prompt(ids)
        category = self.categories.get(hashlib.sha1(user.encode("utf-8", "replace")).hexdigest(), "other")
        speculative = bool(self.arm.algorithm)
        temperature = sampling.get("temperature")
        if temperature is None or temperature > 1e-6:
            seed = sampling.get("sampling_seed")
            key += "\0%s" % (self.requests_seen if seed is None else "seed %s" % seed)
        stream = Stream(key, tie=20 + int(unit_hash("tie", key) * 60))
        branch = "main"
        if speculative and self.failures.get("wrong_output"):
            branch = "wrong"
        elif speculative and unit_hash("near tie", key) < float(self.profile.get("near_ties", 0.0)):
            branch = "other"
        start, stream, branch = place_answer(stream, branch, answer)
        limit = sampling.get("max_new_tokens")
        room = self.args.context_length - len(ids)
        limit = min(room, int(limit) if limit is not None else room)
        length = max(1, natural_length(self.profile, user) - start, int(sampling.get("min_new_tokens") or 0))
        natural = not sampling.get("ignore_eos") and length <= limit
        target = length if natural else max(1, limit)
        other = self.failures.get("answer_length")
        if other:  # an arm that ends its answers elsewhere, which no parting at a near-tie explains
            target = max(1, min(limit, int(target * other["factor"])))
        request = Request(
            rid=str(body.get("rid") or uuid.uuid4().hex),
            arrival=arrival,
            prompt_tokens=len(ids),
            cached=self._cached(ids),
            target=target,
            natural=natural,
        )
        request.stream, request.branch, request.start = stream, branch, start
        request.survival = self.arm.survival(category, prompt_exponent(self.profile, category, user))
        request.offset = self.arm.draw_offset(user)
        request.factor = self.effects.request()
        if self.effects.random_acceptance:
            request.rng = random.Random(request.rid)
        self.prompt_tokens_total += len(ids)
        return request

    def _cached(self, ids: List[int]) -> int:
        """Prompt tokens found in the prefix cache: the whole prompt if seen since the last flush, else what it shares
        with the prompt before it; one token is always computed."""
        if self.args.disable_radix_cache:
            return 0
        digest = hashlib.sha1(repr(ids).encode()).digest()
        if digest in self.seen:
            shared = len(ids) - 1
        else:
            shared = 0
            for left, right in zip(ids[:-1], self.last_prompt):
                if left != right:
                    break
                shared += 1
        self.seen.add(digest)
        self.last_prompt = ids
        return shared - shared % int(self.args.page_size)

    def _failing(self, kind: str) -> Optional[Json]:
        """A request failure that is switched on: for every request, only the first ``requests``, or only those that
        come after the first ``after_requests``."""
        spec = self.failures.get(kind)
        if not spec or not spec.get("after_requests", 0) < self.requests_seen <= spec.get("requests", math.inf):
            return None
        return spec

    def spoil(self, reply: Reply, request: Request) -> bool:
        """Failures of a stream; True when the chunk has been dealt with."""
        for kind in ("stall", "reset", "garbage_sse", "truncated_json"):
            spec = self._failing(kind)
            if not spec or request.emitted < spec.get("after_tokens", 1):
                continue
            if kind == "stall":
                request.sink = None  # no further chunk, the connection stays open
            elif kind == "reset":
                reply.connection.transport.abort()
            elif kind == "garbage_sse":
                reply.connection.raw_event(b"data: {\x00\xff garbage\n\nnonsense without a field\n\n")
                return False
            else:
                reply.connection.raw_event(b'data: {"text":"truncated","output_ids":[1,2')
                reply.connection.transport.close()
            return True
        return False

    def logprob_fields(self, request: Request, shown: int, top: int, wanted: Sequence[int]) -> str:
        """Output log-probabilities, enough to judge the first differing token: the likeliest token is the stream's own
        and, where the answer has a near-tie, the other branch's follows within 0.02."""
        assert request.stream is not None
        own, tops, asked = [], [], []
        for position in range(request.start, request.start + shown):
            main = request.stream.token(position, "main")
            ranked = [[-0.12, main, None]]
            if position == request.stream.tie:
                ranked = [[-0.72, main, None], [-0.74, request.stream.token(position, "other"), None]]
            ranked += [[-4.0 - i, filler, None] for i, filler in enumerate(_FILLERS)]
            scores = {item[1]: item[0] for item in reversed(ranked)}
            token = request.stream.token(position, request.branch)
            if request.branch != "main" and request.stream.tie is not None and position > request.stream.tie:
                scores[token] = -0.12
                ranked[0] = [-0.12, token, None]
            own.append([scores.get(token, -12.0), token, None])
            tops.append(ranked[: max(1, top)])
            asked.append([[scores.get(number, -12.0), number, None] for number in wanted])
        fields: Json = {"input_token_logprobs": [], "output_token_logprobs": own}
        if top:
            fields.update(input_top_logprobs=[], output_top_logprobs=tops)
        if wanted:
            fields.update(input_token_ids_logprobs=[], output_token_ids_logprobs=asked)
        return "," + json.dumps(fields, separators=(",", ":"))[1:-1]

    # -- answers about the server

    def _server_info(self) -> Json:
        args = self._resolved_args()
        startup = {
            "load_weight": self.seconds["weights"],
            "kv_cache_allocation": self.seconds["kv_pool"],
            "scheduler_e2e": sum(self.graph_seconds.values()),
            "cuda_graph": self.graph_seconds,
        }
        state = dict(
            args,
            pp_max_micro_batch_size=self.args.max_running_requests,
            max_speculative_num_draft_tokens=self.args.speculative_num_draft_tokens,
            last_gen_throughput=self.last_throughput,
            memory_usage={
                "weight": self.profile["model"]["weights_gb"],
                "kvcache": round(self.kv_gb, 3),
                "startup_available": round(self.available, 3),
                "token_capacity": self.kv_tokens,
                "token_capacity_swa": None,
                "graph": self.graph_gb,
            },
            startup_time=startup,
            effective_max_running_requests_per_dp=self.args.max_running_requests,
        )
        if self.cumulative[1]:
            state["avg_spec_accept_length"] = 1.0 + self.cumulative[0] / self.cumulative[1]
        return dict(
            args,
            status="ready" if self.ready else "starting",
            max_total_num_tokens=self.kv_tokens,
            max_req_input_len=self.args.context_length - 6,
            startup_time=dict(startup, tokenizer_e2e=self.seconds["spawn"]),
            internal_states=[state],
            version=self.version,
            kv_events=None,
            simulated={"profile": self.profile["name"], "time_scale": self.scale},
        )

    def _model_info(self) -> Json:
        return {
            "model_path": self.args.model_path,
            "tokenizer_path": self.args.tokenizer_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": self.profile["model"].get("model_type", "llama"),
            "architectures": [self.profile["model"]["architecture"]],
        }

    def _loads(self) -> Json:
        load = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": len(self.scheduler.active()),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_used_tokens": self.scheduler.kv_used(),
            "max_total_num_tokens": self.kv_tokens,
            "max_running_requests": self.args.max_running_requests,
            "token_usage": self.scheduler.kv_used() / self.kv_tokens,
            "gen_throughput": self.last_throughput,
        }
        if self.arm.algorithm and self.cumulative[1]:
            length = 1.0 + self.cumulative[0] / self.cumulative[1]
            rate = (length - 1.0) / max(1, self.arm.draft_tokens - 1)
            load["speculative"] = {"accept_length": length, "accept_rate": rate}
        return {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "version": self.version,
            "accelerator": self.profile["gpu"]["name"],
            "num_accelerators": self.args.tp_size,
            "loads": [load],
        }

    def _metrics(self) -> str:
        label = '{engine_type="unified",model_name="%s",moe_ep_rank="0",pp_rank="0",tp_rank="0"}' % (
            self.args.served_model_name
        )
        rate = (self.last_accept_length - 1.0) / max(1, self.arm.draft_tokens - 1) if self.arm.algorithm else 0.0
        rows: List[Tuple[str, str, float]] = [
            ("num_running_reqs", "gauge", len(self.scheduler.active())),
            ("num_queue_reqs", "gauge", len(self.scheduler.waiting)),
            ("num_used_tokens", "gauge", self.scheduler.kv_used()),
            ("token_usage", "gauge", self.scheduler.kv_used() / self.kv_tokens),
            ("gen_throughput", "gauge", self.last_throughput),
            ("spec_accept_length", "gauge", self.last_accept_length),
            ("spec_accept_rate", "gauge", max(0.0, rate)),
            ("spec_num_steps", "gauge", self.arm.steps),
            ("spec_num_draft_tokens", "gauge", self.arm.draft_tokens if self.arm.algorithm else 0),
            ("num_retracted_reqs", "gauge", self.scheduler.retracted),
            ("is_cuda_graph", "gauge", float(self.arm.cuda_graph)),
            ("prompt_tokens_total", "counter", self.prompt_tokens_total),
            ("generation_tokens_total", "counter", self.tokens_total),
            ("num_requests_total", "counter", self.requests_seen),
        ]
        return "".join(
            "# HELP sglang:%s %s\n# TYPE sglang:%s %s\nsglang:%s%s %s\n"
            % (name, name, name, kind, name, label, float(v))
            for name, kind, v in rows
        )


_FILLERS = tuple(encode(text)[0] for text in ("zero", "one ", "two ", "more", "less", "east", "west", "blue"))


def place_answer(stream: Stream, branch: str, answer: List[int]) -> Tuple[int, Stream, str]:
    """Where generation goes on when the prompt already holds answer tokens: (position, stream, branch). An answer that
    is none of this prompt's branches starts a stream of its own."""
    count, tie = len(answer), stream.tie
    if not count:
        return 0, stream, branch
    if tie is None or count <= tie:
        if answer == encode(stream.text(0, count, "main")):
            return count, stream, branch
    else:
        for candidate in ("main", "other", "wrong"):
            if answer == encode(stream.text(0, count, candidate)):
                return count, stream, candidate
    return 0, Stream(stream.key + decode(answer)), "main"


# ------------------------------------------------------------------------------------------------ entry


def parse_own(argv: Sequence[str]) -> Tuple[argparse.Namespace, List[str]]:
    """Our own flags and the rest, which are SGLang's."""
    parser = argparse.ArgumentParser(prog="server.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--gpu-state")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--categories")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--host-name", default=socket.gethostname())
    parser.add_argument("--print-version", action="store_true")
    return parser.parse_known_args(argv)


def main(argv: Sequence[str]) -> None:
    own, rest = parse_own(argv)
    profile = json.loads(Path(own.profile).read_text(encoding="utf-8"))
    if own.print_version:
        sys.stdout.write("%s\n" % profile["speaks_as"])
        return
    parser = build_parser(profile["speaks_as"])
    if "--config" in rest and rest.index("--config") + 1 < len(rest):
        rest = config_arguments(rest[rest.index("--config") + 1]) + rest
    args = parser.parse_args(rest)
    server = Server(own, args, profile, Log())
    server.load()
    server.serve()


# ------------------------------------------------------------------------------------------------ flag table

# Server flags of SGLang 0.5.17: flag[=field]:kind[:default]. Kinds: b switch, n on/off switch, i f s one value, several
# with + or *. The default is JSON.
FLAGS = r"""
tokenizer-path:s tokenizer-mode:s:"auto" tokenizer-backend:s:"huggingface" tokenizer-worker-num:i:1
detokenizer-worker-num:i:1 skip-tokenizer-init:b load-format:s:"auto" model-loader-extra-config:s:"{}"
trust-remote-code:b context-length:i is-embedding:b enable-multimodal:b revision:s model-impl:s:"auto"
model-config-parser:s:"auto" json-model-override-args:s:"{}" dtype:s:"auto" quantization:s quantization-param-path:s
kv-cache-dtype:s:"auto" enable-fp32-lm-head:b modelopt-quant:s modelopt-checkpoint-restore-path:s
modelopt-checkpoint-save-path:s modelopt-export-path:s quantize-and-serve:b rl-quant-profile:s enable-tf32-matmul:b
mem-fraction-static:f max-running-requests:i max-queued-requests:i max-total-tokens:i chunked-prefill-size:i
enable-dynamic-chunking:b max-prefill-tokens:i:16384 prefill-max-requests:i schedule-policy:s:"fcfs"
enable-priority-scheduling:b disable-priority-preemption:b default-priority-value:s
abort-on-priority-when-disabled:b schedule-low-priority-values-first:b priority-scheduling-preemption-threshold:i:10
retraction-policy:s:"length" schedule-conservativeness:f:1.0 page-size:i swa-full-tokens-ratio:f:0.8
disable-hybrid-swa-memory:b radix-eviction-policy:s:"lru" prefill-only-disable-kv-cache:b disable-radix-cache:b
enable-page-major-kv-layout:b enable-unified-memory:b disable-chunked-prefix-cache:b disable-overlap-schedule:b
num-continuous-decode-steps:i:1 scheduler-recv-interval:i:1 enable-mixed-chunk:b nccl-port:i dist-timeout:f
dist-init-addr:s nnodes:i:1 node-rank:i:0 tp-size:i:1 dcp-size:i:1 pp-size:i:1 pp-max-micro-batch-size:i
pp-async-batch-depth:i:0 dp-size:i:1 load-balance-method:s:"round_robin" attn-cp-size:i:1 moe-dp-size:i:1
dwdp-size:i:1 dcp-comm-backend:s:"ag_rs" dcp-replicate-q-proj:n enable-prefill-cp:b cp-strategy:s
enable-dsa-cache-layer-split:b enable-cp-decode-attn-tp:b enable-dp-attention:b
enable-dp-attention-local-control-broadcast:b enable-dp-lm-head:b enable-attn-tp-input-scattered:b
disable-attn-tp-gather:b enable-p2p-check:b device:s:"cuda" base-gpu-id:i:0 gpu-id-step:i:1 random-seed:i
watchdog-timeout:i:300 soft-watchdog-timeout:f sleep-on-idle:b use-ray:b numa-node:i+ gc-threshold:i+
host:s:"127.0.0.1" port:i:30000 fastapi-root-path:s:"" smg-grpc-mode:b grpc-mode:b grpc-port:i sidecar:s
sidecar-args:s skip-server-warmup:b warmups:s enable-http2:b ssl-keyfile:s ssl-certfile:s ssl-ca-certs:s
ssl-keyfile-password:s enable-ssl-refresh:b api-key:s admin-api-key:s served-model-name:s weight-version:s:"default"
chat-template:s hf-chat-template-name:s completion-template:s file-storage-path:s:"sglang_storage"
enable-cache-report:b default-chat-template-kwargs:s strip-thinking-cache:b enable-strict-thinking:b tool-server:s
sampling-defaults:s:"model" asr-max-buffer-seconds:i:60 asr-max-concurrent-sessions:i:32 preferred-sampling-params:s
allow-auto-truncate:b stream-interval:i:1 batch-notify-size:i:16 stream-response-default-include-usage:b
incremental-streaming-output:b enable-streaming-session:b enable-session-radix-cache:b log-level:s:"info"
log-level-http:s log-requests:b log-requests-level:i:2 log-requests-format:s:"text" log-requests-target:i+
uvicorn-access-log-exclude-prefixes:s*:[] crash-dump-folder:s show-time-cost:b enable-metrics:b
smg-http-sidecar-port:i enable-mfu-metrics:b enable-metrics-for-all-schedulers:b load-snapshot-publish-interval:i:15
tokenizer-metrics-custom-labels-header:s:"x-custom-labels" tokenizer-metrics-allowed-custom-labels:s+
extra-metric-labels:s bucket-time-to-first-token:f+ bucket-inter-token-latency:f+ bucket-e2e-request-latency:f+
prompt-tokens-buckets:s+ generation-tokens-buckets:s+ gc-warning-threshold-secs:f:0.0 decode-log-interval:i:40
enable-request-time-stats-logging:b kv-events-config:s enable-forward-pass-metrics:b enable-trace:b
trace-modules:s:"request" otlp-traces-endpoint:s:"localhost:4317" export-metrics-to-file:b
export-metrics-to-file-dir:s constrained-json-whitespace-pattern:s constrained-json-disable-any-whitespace:b
attention-backend:s decode-attention-backend:s prefill-attention-backend:s sampling-backend:s grammar-backend:s
radix-cache-backend:s mm-attention-backend:s fp8-gemm-backend:s fp4-gemm-backend:s bf16-gemm-backend:s:"auto"
dsa-prefill-backend:s dsa-decode-backend:s dsa-paged-mqa-logits-backend:s:"auto" dsa-topk-backend:s:"sgl-kernel"
disable-flashinfer-autotune:b flashinfer-autotune-skip-ops:s+ mamba-backend:s:"triton" cuda-graph-config:s
cuda-graph-backend-decode:s cuda-graph-backend-prefill:s cuda-graph-max-bs-decode:i cuda-graph-max-bs-prefill:i
cuda-graph-bs-decode:i+ cuda-graph-bs-prefill:i+ cuda-graph-tc-compiler:s disable-prefill-cuda-graph:b
disable-decode-cuda-graph:b disable-cuda-graph-padding:b enable-profile-cuda-graph:b enable-cudagraph-gc:b
debug-cuda-graph:b enable-layerwise-nvtx-marker:b enable-nccl-nvls:b enable-symm-mem:b
triton-attention-reduce-in-fp32:b triton-attention-num-kv-splits:i:8 triton-attention-split-tile-size:i
flashinfer-mla-disable-ragged:b enable-fused-qk-norm-rope:b enable-precise-embedding-interpolation:b
enable-fused-moe-sum-all-reduce:b enable-deepseek-v4-fp4-indexer:b disable-custom-all-reduce:b enable-mscclpp:b
enable-torch-symm-mem:b enable-scattered-sconv:b pre-warm-nccl:b enable-quant-communications:b
enforce-disable-flashinfer-allreduce-fusion:b flashinfer-allreduce-fusion-backend:s enable-aiter-allreduce-fusion:b
enable-torch-compile:b enable-torch-compile-debug-mode:b torch-compile-max-bs:i:32 torchao-config:s:""
speculative-algorithm:s speculative-draft-model-path:s speculative-draft-model-revision:s
speculative-draft-load-format:s speculative-num-steps:i speculative-eagle-topk:i speculative-num-draft-tokens:i
speculative-dflash-block-size:i speculative-dspark-block-size:i speculative-dspark-sps-table-path:s
speculative-dspark-confidence-sts-path:s speculative-dspark-align-verify-tokens-to-graph-tier:b
speculative-accept-threshold-single:f:1.0 speculative-accept-threshold-acc:f:1.0
speculative-use-rejection-sampling:b speculative-token-map:s speculative-attention-mode:s:"prefill"
speculative-draft-attention-backend:s speculative-draft-window-size:i speculative-moe-runner-backend:s
speculative-moe-a2a-backend:s speculative-draft-model-quantization:s speculative-skip-dp-mlp-sync:b
enable-multi-layer-eagle:b speculative-adaptive:b speculative-adaptive-config:s decoupled-spec-bind-endpoint:s
decoupled-spec-connect-endpoints:s decoupled-spec-rank:i decoupled-spec-role:s:"null" spec-trace-dir:s
speculative-ngram-min-bfs-breadth:i:1 speculative-ngram-max-bfs-breadth:i:10 speculative-ngram-match-type:s:"BFS"
speculative-ngram-max-trie-depth:i:18 speculative-ngram-capacity:i:10000000 speculative-ngram-external-corpus-path:s
speculative-ngram-external-sam-budget:i:0 speculative-ngram-external-corpus-max-tokens:i:10000000 ep-size:i:1
moe-a2a-backend:s:"none" moe-runner-backend:s:"auto" flashinfer-mxfp4-moe-precision:s:"default" deepep-mode:s:"auto"
fuseep-mode:i:2 deepep-dispatcher-output-dtype:s:"auto" ep-num-redundant-experts:i:0 ep-dispatch-algorithm:s
init-expert-location:s:"trivial" enable-eplb:b eplb-algorithm:s:"auto" eplb-rebalance-num-iterations:i:1000
eplb-rebalance-layers-per-chunk:s eplb-min-rebalancing-utilization-threshold:f:1.0
expert-distribution-recorder-mode:s expert-distribution-recorder-buffer-size:i:1000
enable-expert-distribution-metrics:b deepep-config:s moe-dense-tp-size:i elastic-ep-backend:s
enable-elastic-expert-backup:b mooncake-ib-device:s enable-waterfill:b elastic-ep-join-mode:s
elastic-ep-join-rank-offset=ep_join_rank_offset:i:0 elastic-ep-initial-size:i max-ep-size:i
elastic-ep-scale-timeout:i:600 elastic-ep-rejoin:b disable-flashinfer-cutlass-moe-fp4-allgather:b
disable-shared-experts-fusion:b enforce-shared-experts-fusion:b max-mamba-cache-size:i mamba-ssm-dtype:s
mamba-max-states-per-path:i:-1 enable-mamba-cache-stochastic-rounding:b mamba-cache-philox-rounds:i:0
mamba-full-memory-ratio:f:0.9 mamba-radix-cache-strategy:s:"auto" mamba-track-interval:i:256
enable-int8-mamba-checkpoint:b int8-mamba-ckpt-size:i linear-attn-backend:s:"triton" linear-attn-decode-backend:s
linear-attn-prefill-backend:s linear-attn-verify-backend:s enable-linear-replayssm:b linear-replayssm-cache-len:i:16
enable-linear-replayssm-spec:b enable-hierarchical-cache:b hicache-ratio:f:2.0 hicache-size:i:0
hicache-write-policy:s:"write_through" hicache-io-backend:s:"kernel" hicache-mem-layout:s:"page_first"
hicache-storage-backend:s hicache-storage-prefetch-policy:s:"timeout" hicache-storage-backend-extra-config:s
enable-hisparse:b hisparse-config:s enable-broadcast-mm-inputs-process:b enable-prefix-mm-cache:b
mm-enable-dp-encoder:b mm-process-config:s:{} mm-processor-worker-num:i:0 mm-io-worker-num:i:0
limit-mm-data-per-request:s enable-mm-global-cache:b disable-fast-image-processor:b mm-feature-transport:s
keep-mm-feature-on-device:b enable-lora:b enable-lora-overlap-loading:b max-lora-rank:i lora-target-modules:s*
lora-paths:s* max-loaded-loras:i max-loras-per-batch:i:8 lora-eviction-policy:s:"lru" lora-backend:s:"csgmv"
max-lora-chunk-size:i:16 experts-shared-outer-loras:n lora-use-virtual-experts:b lora-strict-loading:n:false
lora-drain-wait-threshold:f:0.0 enable-two-batch-overlap:b enable-single-batch-overlap:b
tbo-token-distribution-threshold:f:0.48 cpu-offload-gb:i:0 offload-group-size:i:-1 offload-num-in-group:i:1
offload-prefetch-step:i:1 offload-mode:s:"cpu" enable-lmcache:b lmcache-config-file:s enable-flexkv:b
flexkv-config-file:s kt-weight-path:s kt-method:s:"AMXINT4" kt-cpuinfer:s kt-threadpool-count:i:2
kt-num-gpu-experts:i kt-max-deferred-experts-per-token:i dllm-algorithm:s dllm-algorithm-config:s dllm-fdfo:n:true
disaggregation-mode:s:"null" disaggregation-transfer-backend:s:"mooncake" disaggregation-bootstrap-port:i:8998
disaggregation-ib-device:s disaggregation-decode-enable-radix-cache:b disaggregation-decode-enable-offload-kvcache:b
num-reserved-decode-tokens:i:512 disaggregation-decode-extra-slots:s disaggregation-decode-polling-interval:i:1
optimistic-prefill-attempts:i:0 encoder-only:b language-only:b encoder-transfer-backend:s:"zmq_to_scheduler"
encoder-urls:s+:[] encoder-bootstrap-port:i:8997 encoder-register-urls:s+:[] enable-adaptive-dispatch-to-encoder:b
enable-pdmux:b pdmux-config-path:s sm-group-num:i:8 custom-weight-loader:s*:[] weight-loader-disable-mmap:b
weight-loader-prefetch-checkpoints:b weight-loader-prefetch-num-threads:i:4 weight-loader-drop-cache-after-load:b
remote-instance-weight-loader-seed-instance-ip:i remote-instance-weight-loader-seed-instance-service-port:i
remote-instance-weight-loader-send-weights-group-ports:i remote-instance-weight-loader-backend:s:"nccl"
remote-instance-weight-loader-start-seed-via-transfer-engine:b engine-info-bootstrap-port:i:6789
modelexpress-config:s download-dir:s model-checksum:s delete-ckpt-after-loading:b decrypted-config-file:s
decrypted-draft-config-file:s checkpoint-engine-wait-weights-before-ready:b enable-prefill-delayer:b
prefill-delayer-max-delay-passes:i:30 prefill-delayer-token-usage-low-watermark:f
prefill-delayer-forward-passes-buckets:s+ prefill-delayer-wait-seconds-buckets:s+ prefill-delayer-queue-min-ratio:f
prefill-delayer-max-delay-ms:f min-free-slots-delay:i enable-deterministic-inference:b rl-on-policy-target:s
kv-canary:s:"none" kv-canary-sweep-interval:i:0 enable-dynamic-batch-tokenizer:b
dynamic-batch-tokenizer-batch-size:i:32 dynamic-batch-tokenizer-batch-timeout:f:0.002
enable-tokenizer-batch-encode:b disable-tokenizer-batch-decode:b debug-tensor-dump-output-folder:s
debug-tensor-dump-layers:s+ debug-tensor-dump-input-file:s enable-memory-saver:b enable-weights-cpu-backup:b
enable-draft-weights-cpu-backup:b enable-custom-logit-processor:b enable-return-hidden-states:b
return-hidden-states-mode:s enable-return-routed-experts:b enable-return-indexer-topk:b
disable-outlines-disk-cache:b enable-mis:b weight-cache-mode:s:"off" weight-cache-socket:s
weight-cache-timeout:i:1800 forward-hooks:s msprobe-dump-config:s reasoning-parser:s tool-call-parser:s
kv-canary-real-data:s:"none" stream-output:b prefill-round-robin-balance:b collect-tokens-histogram:b
nsa-prefill-backend:s nsa-decode-backend:s mamba-scheduler-strategy=mamba_radix_cache_strategy:s:"auto"
cuda-graph-max-bs=cuda_graph_max_bs_decode:i cuda-graph-bs=cuda_graph_bs_decode:i+ disable-cuda-graph:b
enable-breakable-cuda-graph:b disable-piecewise-cuda-graph:b enforce-piecewise-cuda-graph:b
piecewise-cuda-graph-tokens=cuda_graph_bs_prefill:i+ piecewise-cuda-graph-compiler:s
piecewise-cuda-graph-max-tokens=cuda_graph_max_bs_prefill:i enable-dsa-prefill-context-parallel:b
enable-nsa-prefill-context-parallel:b enable-gdn-replayssm-spec:b enable-prefill-context-parallel:b
dsa-prefill-cp-mode:s:"round-robin-split" nsa-prefill-cp-mode:s prefill-cp-mode:s:"in-seq-split"
enable-flashinfer-allreduce-fusion:b
"""

if __name__ == "__main__":
    main(sys.argv[1:])
