"""What every launch of a study measures: prompts, blocks, and what may be said of them. Pure."""

from __future__ import annotations

import math

from sweep.bench.workload import PromptSet, load_prompts
from sweep.config import StudySpec
from sweep.launching import LaunchPlan
from sweep.metrics import Slo
from sweep.model import BlockSpec, Prompt, Stage

PROBE_PROMPTS = 4


def slo(spec: StudySpec) -> Slo | None:
    return spec.workload.slo.noun if spec.workload.slo is not None else None


def outputs_comparable(spec: StudySpec) -> bool:
    """Greedy answers with their token ids, one request at a time."""
    workload = spec.workload
    return workload.temperature == 0 and workload.endpoint == "generate" and 1 in workload.concurrency


def prompts_of(spec: StudySpec) -> PromptSet:
    workload = spec.workload
    return load_prompts(workload.prompts, workload.categories, format=workload.format)


def make_plan(spec: StudySpec, stage: Stage, prompts: PromptSet | None = None) -> LaunchPlan:
    """Rounds of all concurrency levels; a linear drift within a launch then meets every level alike."""
    seed = spec.workload.seed if spec.workload.seed is not None else spec.seed
    chosen = (prompts or prompts_of(spec)).for_stage(stage, seed, spec.workload.per_category)
    blocks = tuple(
        _block(spec, chosen, stage, level, turn)
        for turn in range(spec.workload.repeats)
        for level in spec.workload.concurrency
    )
    return LaunchPlan(probe_prompts=chosen[:PROBE_PROMPTS], warm=_warm(blocks), blocks=blocks)


def _warm(blocks: tuple[BlockSpec, ...]) -> tuple[BlockSpec, ...]:
    """One block of every concurrency above 1 (each warm-up begins with a request alone), the widest first.

    A batch size that a speculating server has not run yet costs it half a second and more the first time, which the
    baseline does not pay: on an H200 the first round at concurrency 4 gave 740 tok/s, the second 1,195, although the
    widest level had been warmed up.
    """
    first = {block.concurrency: block for block in reversed(blocks)}
    levels = [level for level in sorted(first, reverse=True) if level > 1] or [1]
    return tuple(first[level] for level in levels)


def _block(spec: StudySpec, chosen: tuple[Prompt, ...], stage: Stage, level: int, turn: int) -> BlockSpec:
    workload = spec.workload
    return BlockSpec(
        stage=stage,
        concurrency=level,
        round=turn,
        prompts=_enough(chosen, level, workload.requests_per_level, open_loop=workload.request_rate is not None),
        max_tokens=workload.max_tokens,
        temperature=workload.temperature,
        seed=workload.seed if workload.seed is not None else spec.seed,
        ignore_eos=workload.ignore_eos,
        endpoint=workload.endpoint,
        stream_interval=workload.stream_interval,
        request_rate=workload.request_rate,
        timeout_s=workload.timeout_s,
        stall_s=spec.measurement.stall_timeout_s,
        chat_template_args=workload.chat_template_args,
        client_processes=None if workload.client_processes == "auto" else workload.client_processes,
    )


def _enough(chosen: tuple[Prompt, ...], level: int, wanted: int | None, *, open_loop: bool) -> tuple[Prompt, ...]:
    """Each prompt once at concurrency 1; above, whole waves: at least two, each prompt at least once. An open loop has
    no waves: as many as wanted."""
    if open_loop:
        return tuple(chosen[i % len(chosen)] for i in range(wanted or 2 * len(chosen)))
    if level == 1:
        return chosen
    count = wanted or max(len(chosen), 2 * level)
    count = math.ceil(count / level) * level
    return tuple(chosen[i % len(chosen)] for i in range(count))
