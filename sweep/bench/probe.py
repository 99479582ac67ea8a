"""What is asked of a server before it is measured: warm-up, and a quick look at the accept length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sweep.bench.client import run_block
from sweep.bench.http import Target
from sweep.bench.prepare import Prepared
from sweep.model import BlockResult, BlockSpec, Prompt, Stage

_WARM_UP_TOKENS = 64
# A drafter near 1 is looked at for longer: 60 steps of one whose true length was 1.009 gave 1.05 on a real server.
_UNSURE_BELOW = 1.15
_UNSURE_FACTOR = 4


def warm_up(
    target: Target,
    spec: BlockSpec,
    passes: int = 1,
    *,
    prepared: Prepared | None = None,
    cancel: threading.Event | None = None,
    flush: Callable[[], None] | None = None,
) -> tuple[BlockResult, ...]:
    """Pay for what only first requests pay for: one request alone, then ``passes`` at full concurrency.

    ``flush`` empties the prefix cache and is called before each of these passes: the block's prompts are prefilled from
    the start, and a speculating server is slow the first time it prefills so many of them at once (on an H200 the first
    wave waited 0.35 s for its first tokens, later ones 0.06 to 0.09 s). Prompts are the block's own, repeated where
    there are fewer than ``spec.concurrency``; answers are cut at 64 tokens. The results are for looking at, never for
    measuring.
    """
    width = max(1, spec.concurrency)
    crowd = tuple(spec.prompts[i % len(spec.prompts)] for i in range(width)) if spec.prompts else ()
    short = replace(spec, max_tokens=min(spec.max_tokens, _WARM_UP_TOKENS), request_rate=None)
    results = [run_block(target, replace(short, prompts=crowd[:1], concurrency=1), prepared=prepared, cancel=cancel)]
    for _ in range(passes):
        if flush is not None:
            flush()
        results.append(
            run_block(target, replace(short, prompts=crowd, concurrency=width), prepared=prepared, cancel=cancel)
        )
    return tuple(results)


@dataclass(frozen=True, slots=True)
class Probe:
    """A quick look right after ready. ``accept_length`` is None where the server reported no verify steps.

    ``histogram[j]`` counts verify steps that accepted j drafts; ``error`` says why the probe could not be made.
    """

    accept_length: float | None
    verify_steps: int
    histogram: tuple[int, ...]
    output_tokens: int
    seconds: float
    error: str | None = None
    stalled: bool = False


def probe(
    target: Target,
    prompts: Sequence[Prompt],
    min_verify_steps: int = 60,
    *,
    max_tokens: int = 64,
    timeout_s: float = 120.0,
    stall_s: float | None = None,
    prepared: Prepared | None = None,
    cancel: threading.Event | None = None,
) -> Probe:
    """Accept length = 1 + sum(correct drafts) / sum(verify steps), from as few requests as give enough steps.

    Prompts are sent one after another through ``/generate`` at temperature 0 until ``min_verify_steps`` were seen,
    four times as many where some drafts were accepted but fewer than 15 in 100 steps; a server whose first two answers
    carry no counters does not speculate and is asked no more.
    """
    started = time.perf_counter()
    tokens = steps = correct = 0
    histogram: list[int] = []
    error: str | None = "no prompts to probe with"
    stalled = False
    for count, prompt in enumerate(prompts, 1):
        spec = BlockSpec(Stage.SEARCH, 1, 0, (prompt,), max_tokens, timeout_s=timeout_s, stall_s=stall_s)
        block = run_block(target, spec, prepared=prepared, cancel=cancel)
        row, stalled = next(iter(block.requests), None), block.stalled
        error = "cancelled" if row is None else row.error
        if row is None or not row.ok:
            break
        tokens += row.output_tokens or 0
        steps += row.verify_steps or 0
        correct += row.correct_drafts or 0
        for j, n in enumerate(row.accept_histogram or ()):
            histogram += [0] * (j + 1 - len(histogram))
            histogram[j] += n
        unsure = 0 < correct < (_UNSURE_BELOW - 1) * steps
        enough = min_verify_steps * (_UNSURE_FACTOR if unsure else 1)
        if steps >= enough or (count >= 2 and not steps):
            break
    length = 1 + correct / steps if steps else None
    return Probe(length, steps, tuple(histogram), tokens, time.perf_counter() - started, error, stalled)
