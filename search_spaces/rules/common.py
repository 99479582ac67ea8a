"""What SGLang makes of the speculative flags, as a pure function over a table per version.

Nothing here starts a server or reads a model. Where SGLang accepts a configuration that its worker then dies on (a tree
with more draft tokens than candidates, an incomplete triple, a backend that cannot draft), we refuse it beforehand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

TREE_CAP = 1024  # draft tokens; the tree kernel's own limit
SPECULATIVE_MAX_RUNNING = 48  # SGLang's reset of an unpinned --max-running-requests with speculation
NGRAM_BREADTH = 10  # default of --speculative-ngram-max-bfs-breadth
NGRAM_DRAFT_TOKENS = 12

EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
ALIASES = {"NEXTN": "EAGLE"}
NEEDS_DRAFTER = frozenset({"EAGLE3", "STANDALONE", "DFLASH"})
TAKES_NO_DRAFTER = frozenset({"NGRAM"})

# Architectures whose automatic choice is (5, 4, 8) instead of (3, 1, 4) steps, topk, draft tokens.
WIDE_DEFAULT_ARCHS = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM"})
# Multi-head latent attention: their flashinfer backend is another one, which drafts chains only.
MLA_ARCHS = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
    }
)

_COMPUTE_CAPABILITY = (  # product name in nvidia-smi's words -> compute capability; the first match counts
    (r"\b(H100|H200|H20|H800|GH200)\b", "sm90"),
    (r"\b(B200|B100|GB200)\b", "sm100"),
    (r"\b(B300|GB300)\b", "sm103"),
    (r"\b(L4|L40|L40S|RTX 40\d\d|RTX 6000 Ada)\b", "sm89"),
    (r"\b(RTX 50\d\d|RTX PRO \d000)\b", "sm120"),
    (r"\b(A100|A800|A30)\b", "sm80"),
    (r"\b(A10|A10G|A40|RTX A\d000|RTX 30\d\d)\b", "sm86"),
)


@dataclass(frozen=True, slots=True)
class VersionRules:
    """What differs between versions. Backends are names of ``--attention-backend``."""

    version: str
    algorithms: frozenset[str]
    chains_only: frozenset[str]  # backends that refuse topk > 1
    paged_trees: frozenset[str]  # backends that take topk > 1 together with page size > 1
    no_speculation: frozenset[str]  # backends without any speculation
    cannot_draft: frozenset[str]  # backends the EAGLE family's draft worker does not know
    needs_gpu: dict[str, frozenset[str]] = field(default_factory=dict, hash=False)  # backend -> GPU kinds


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the server will run. Numbers that only the server knows (an automatic choice by architecture) are None.

    ``rewrites`` names SGLang's own changes: ``alias``, ``topk1_draft_tokens``, ``auto_choice``,
    ``max_running_requests``, ``ngram``, ``block_algorithm``.
    """

    algorithm: str | None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    max_running_requests: int | None = None
    page_size: int | None = None
    rewrites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why a configuration cannot be served. ``rule`` is a stable word, ``reason`` is for people."""

    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to the rules; hashable, so that large spaces ask each only once."""

    algorithm: str | None
    num_steps: int | None
    topk: int | None
    num_draft_tokens: int | None
    attention_backend: str | None
    page_size: int | None
    gpu_kind: str | None
    model_arch: str | None
    max_running_requests: int | None
    ngram_breadth: int


def gpu_kind(name: str | None) -> str | None:
    """``NVIDIA H200`` -> ``sm90``; None where the product is not known (nothing is refused then)."""
    for pattern, kind in _COMPUTE_CAPABILITY:
        if name and re.search(pattern, name):
            return kind
    return None


def max_draft_tokens(num_steps: int, topk: int) -> int:
    """Largest draft tree including its root: 1 + topk + (num_steps - 1) * topk^2.

    The first step offers topk candidates, every later one topk of each of the topk kept; SGLang then selects
    num_draft_tokens - 1 of them (``torch.topk`` fails when there are fewer). topk 1: the chain, num_steps + 1.
    """
    return 1 + topk + (num_steps - 1) * topk * topk


@lru_cache(maxsize=200_000)
def answer(rules: VersionRules, ask: Ask) -> Resolved | Infeasible:
    """The whole decision for one configuration."""
    name = (ask.algorithm or "NONE").upper()
    if name == "NONE":
        return Resolved(None, max_running_requests=ask.max_running_requests, page_size=ask.page_size or 1)
    algorithm = ALIASES.get(name, name)
    if algorithm not in rules.algorithms:
        return Infeasible(
            f"{ask.algorithm} is no speculative algorithm of SGLang {rules.version} "
            f"(it has {', '.join(sorted(rules.algorithms | set(ALIASES)))})",
            "unknown_algorithm",
        )
    refused = _backend(rules, ask, algorithm)
    if refused is not None:
        return refused
    if algorithm in EAGLE_FAMILY:
        numbers = _eagle(rules, ask, algorithm)
    elif algorithm == "NGRAM":
        numbers = _ngram(ask)
    elif algorithm in ("DFLASH", "DSPARK"):
        numbers = _block(ask, algorithm)
    else:
        return Infeasible(_UNSUPPORTED[algorithm], "unsupported_algorithm")
    if isinstance(numbers, Infeasible):
        return numbers
    steps, topk, draft_tokens, rewrites = numbers
    if algorithm != name:
        rewrites = ("alias", *rewrites)
    if ask.max_running_requests is None:
        rewrites = (*rewrites, "max_running_requests")
    return Resolved(
        algorithm,
        steps,
        topk,
        draft_tokens,
        ask.max_running_requests or SPECULATIVE_MAX_RUNNING,
        ask.page_size or 1,
        rewrites,
    )


_UNSUPPORTED = {
    "UNO": "UNO needs a LoRA path and a tree of its own; it is not supported here",
    "FROZEN_KV_MTP": "FROZEN_KV_MTP is chosen by SGLang itself for a Gemma 4 assistant; ask for EAGLE",
}

Numbers = tuple[int | None, int | None, int | None, tuple[str, ...]]


def _backend(rules: VersionRules, ask: Ask, algorithm: str) -> Infeasible | None:
    backend = ask.attention_backend
    if backend is None:
        return None
    if backend in rules.no_speculation:
        return Infeasible(f"speculation is not supported with attention backend {backend}", "backend_no_speculation")
    if algorithm in EAGLE_FAMILY and backend in rules.cannot_draft:
        return Infeasible(
            f"{algorithm} is not supported with attention backend {backend} (its draft worker dies after the weights "
            "are loaded)",
            "backend_cannot_draft",
        )
    kinds = rules.needs_gpu.get(backend)
    if kinds is not None and ask.gpu_kind is not None and ask.gpu_kind not in kinds:
        return Infeasible(
            f"attention backend {backend} requires Hopper or newer ({', '.join(sorted(kinds))}), "
            f"this GPU is {ask.gpu_kind}",
            "backend_needs_gpu",
        )
    return None


def _eagle(rules: VersionRules, ask: Ask, algorithm: str) -> Numbers | Infeasible:
    steps, topk, draft_tokens = ask.num_steps, ask.topk, ask.num_draft_tokens
    if steps is None and topk is None and draft_tokens is None:
        return _automatic(ask, algorithm)
    if steps is None or topk is None or (draft_tokens is None and topk != 1):
        missing = [
            name
            for name, value in (("num_steps", steps), ("topk", topk), ("num_draft_tokens", draft_tokens))
            if value is None
        ]
        return Infeasible(
            f"{' and '.join(missing)} not given: num_steps, topk and num_draft_tokens go together, all three or none "
            "(topk 1 may leave num_draft_tokens out)",
            "incomplete_triple",
        )
    if steps < 1 or topk < 1 or (draft_tokens is not None and draft_tokens < 2 and topk > 1):
        return Infeasible(
            f"steps {steps}, topk {topk}, draft tokens {draft_tokens}: there is nothing to draft", "nothing_to_draft"
        )
    refused = _wide(rules, ask) if topk > 1 else None
    if refused is not None:
        return refused
    rewrites: tuple[str, ...] = ()
    if topk == 1:
        if draft_tokens != steps + 1:
            rewrites = ("topk1_draft_tokens",)
        draft_tokens = steps + 1
    assert draft_tokens is not None
    largest = min(max_draft_tokens(steps, topk), TREE_CAP)
    if draft_tokens > largest:
        return Infeasible(
            f"{draft_tokens} draft tokens are more than the tree of {steps} steps with topk {topk} holds: at most "
            f"{largest} (1 + topk + (num_steps - 1) x topk^2, never above {TREE_CAP})",
            "oversize_tree",
        )
    if draft_tokens <= steps:  # never of a chain, whose draft tokens are steps + 1
        # Seen on 0.5.17 with 5/4/4: verification moves steps + 1 tokens to the front of draft_tokens places, and the
        # scheduler dies on the first request; 3/4/4 runs. The code of later versions is the same.
        return Infeasible(
            f"{draft_tokens} draft tokens are too few for {steps} steps with topk {topk}: at least {steps + 1} "
            "(num_steps + 1, one path from the root to the deepest step)",
            "undersize_tree",
        )
    return steps, topk, draft_tokens, rewrites


def _automatic(ask: Ask, algorithm: str) -> Numbers:
    """SGLang's own choice when none of the three is given; by architecture, so None where that is unknown."""
    rewrites = ("auto_choice",)
    if algorithm != "STANDALONE" and ask.model_arch is None:
        return None, None, None, rewrites
    wide = algorithm != "STANDALONE" and ask.model_arch in WIDE_DEFAULT_ARCHS
    return (5, 4, 8, rewrites) if wide else (3, 1, 4, rewrites)


def _wide(rules: VersionRules, ask: Ask) -> Infeasible | None:
    """What a tree (topk > 1) may not be combined with."""
    backend, page_size = ask.attention_backend, ask.page_size or 1
    mla_flashinfer = backend == "flashinfer" and ask.model_arch in MLA_ARCHS
    if backend in rules.chains_only or mla_flashinfer:
        model = " for this model's attention" if mla_flashinfer else ""
        return Infeasible(
            f"attention backend {backend} takes topk 1 only{model}, not {ask.topk}", "backend_chains_only"
        )
    if page_size > 1 and backend is not None and backend not in rules.paged_trees:
        return Infeasible(
            f"topk {ask.topk} with page size {page_size} works only on {', '.join(sorted(rules.paged_trees))}, "
            f"not on {backend}; use page size 1 or topk 1",
            "paged_tree",
        )
    return None


def _ngram(ask: Ask) -> Numbers | Infeasible:
    """topk becomes the breadth, draft tokens 12 where left out, steps draft tokens // breadth where left out."""
    if ask.ngram_breadth > 1 and (ask.page_size or 1) > 1 and ask.attention_backend not in (None, "flashinfer"):
        return Infeasible(
            f"NGRAM with a breadth of {ask.ngram_breadth} and page size {ask.page_size} needs attention backend "
            f"flashinfer, not {ask.attention_backend}; use page size 1",
            "paged_tree",
        )
    draft_tokens = ask.num_draft_tokens or NGRAM_DRAFT_TOKENS
    if not 2 <= draft_tokens <= TREE_CAP:
        return Infeasible(f"NGRAM takes 2 to {TREE_CAP} draft tokens, not {draft_tokens}", "nothing_to_draft")
    steps = draft_tokens // ask.ngram_breadth if ask.num_steps is None else ask.num_steps
    return steps, ask.ngram_breadth, draft_tokens, ("ngram",)


def _block(ask: Ask, algorithm: str) -> Numbers | Infeasible:
    """DFLASH and DSPARK draft a whole block at once: steps and topk are always 1."""
    draft_tokens = ask.num_draft_tokens
    if draft_tokens is None:
        return 1, 1, None, ("auto_choice", "block_algorithm")  # the block size stands in the drafter's own config
    if not 2 <= draft_tokens <= TREE_CAP:
        return Infeasible(f"{algorithm} takes 2 to {TREE_CAP} draft tokens, not {draft_tokens}", "nothing_to_draft")
    changed = ask.num_steps not in (None, 1) or ask.topk not in (None, 1)
    return 1, 1, draft_tokens, ("block_algorithm",) if changed else ()
