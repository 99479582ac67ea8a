"""Gates: what makes a measured launch remarkable or unusable, each with the numbers or the line that say so.

Accept length about 1 is a verdict of the probe before the measurement, asked against effective is read back from the
server, and lost requests, a late client and a narrow path make a block invalid where it is measured
(``sweep.bench.health``); :func:`impossible` is asked there too. The gates here see valid blocks alone and compare them
with baseline launches of the same host, stage and concurrency.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from sweep.analysis.figures import BlockConduct, LaunchFigures, partners
from sweep.analysis.types import AnalysisSettings, Finding
from sweep.model import ArmConfig, ArmGain, BlockResult, Flag, GpuTelemetry, Role

# nvidia-smi's active reasons that do not slow a busy GPU down by themselves.
_HARMLESS = frozenset({"none", "not_active", "gpu_idle", "idle", "applications_clocks_setting", "sync_boost"})
# The power limit is touched for moments by any burst: on an H200 blocks showed it whose median clock was the full
# 1,980 MHz. It counts where the median clock gave way too, by more than one of the GPU's steps (15 MHz).
_MOMENTARY = frozenset({"sw_power_cap"})
_CLOCK_STEP = 0.01
# Accept length (share) above what a verify step can emit that rounding in a server's counters may explain.
_COUNTER_SLACK = 0.01


def impossible(block: BlockResult, arm: ArmConfig) -> str | None:
    """Why a block's figures cannot be what happened, with them; None where they can. Such a block is invalid.

    A verify step emits the drafts accepted along one path of the tree and one token of the target's own: at most
    ``num_steps`` + 1, and never more than were verified (``num_draft_tokens``).
    """
    rows = [row for row in block.requests if row.ok]
    steps, correct = sum(row.verify_steps or 0 for row in rows), sum(row.correct_drafts or 0 for row in rows)
    bounds = [n for n in (arm.num_steps and arm.num_steps + 1, arm.num_draft_tokens) if n]
    if steps and bounds and 1 + correct / steps > min(bounds) * (1 + _COUNTER_SLACK):
        return (
            f"impossible accept length {1 + correct / steps:.2f}: {correct} drafts accepted in {steps} verify steps, "
            f"but {arm.label()} emits at most {min(bounds)} tokens a step"
        )
    for row in rows:
        if row.prompt_tokens is not None and (row.cached_tokens or 0) > row.prompt_tokens:
            return (
                f"impossible cache: {row.cached_tokens} cached tokens of prompt {row.prompt_id}, which has "
                f"{row.prompt_tokens}"
            )
    return None


def gates(
    figures: Sequence[LaunchFigures], arms: Mapping[str, ArmConfig], settings: AnalysisSettings
) -> dict[int, tuple[Finding, ...]]:
    """Trial -> findings of its launches, in order of launch."""
    blocks_of: dict[tuple[str, int, bool], list[BlockConduct]] = {}
    for figure in figures:
        if figure.role is Role.BASELINE:
            for block in figure.conduct:
                blocks_of.setdefault((figure.host, block.concurrency, figure.confirm), []).append(block)
    baselines = {key: Usual(found) for key, found in blocks_of.items()}
    around = _around(figures)
    out: dict[int, list[Finding]] = {}
    for index, figure in enumerate(figures):
        if figure.trial is None:
            continue
        arm = arms.get(figure.arm_key)
        for level in sorted({block.concurrency for block in figure.conduct}):
            where = f"concurrency {level}"
            blocks = _at(figure, level)
            base = baselines.get((figure.host, level, figure.confirm))
            beside = {name: _at(figures[i], level) for name, i in around[index].items()}
            found = [
                _cached(blocks, base, where, settings),
                _either(Flag.RETRACTIONS, _retractions, blocks, beside, where),
                _either(Flag.CUDA_GRAPH_OFF, _graphs, blocks if arm is None or arm.cuda_graph else (), beside, where),
                _lengths(blocks, base, where, settings),
                _throttled(blocks, beside, where, settings),
            ]
            out.setdefault(figure.trial, []).extend(
                Finding(f[0], f[1], figure.launch_id) for f in found if f is not None
            )
    return {trial: tuple(found) for trial, found in out.items() if found}


def _at(figure: LaunchFigures, level: int) -> list[BlockConduct]:
    return [block for block in figure.conduct if block.concurrency == level]


def _around(figures: Sequence[LaunchFigures]) -> list[dict[str, int]]:
    """For each launch the baselines it is compared through, by name: the one alive beside it, else the last before
    and the first after it on the same host in the same stage."""
    baselines: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    for index, figure in enumerate(figures):
        if figure.role is Role.BASELINE:
            baselines[figure.host, figure.confirm].append(index)
    for group in baselines.values():
        group.sort(key=lambda i: figures[i].at)
    out: list[dict[str, int]] = []
    for figure, partner in zip(figures, partners(figures), strict=True):
        if partner is not None:
            out.append({"the baseline beside it": partner})
            continue
        same = baselines[figure.host, figure.confirm]
        place = bisect_right(same, figure.at, key=lambda i: figures[i].at)
        around = {"the baseline before it": place - 1, "the baseline after it": place}
        out.append({name: same[k] for name, k in around.items() if 0 <= k < len(same)})
    return out


Found = tuple[Flag, str]
Beside = Mapping[str, Sequence[BlockConduct]]  # blocks of the baselines a launch is compared through, by name


class Usual:
    """What the baseline's blocks on one host, at one concurrency and in one stage are like; worked out once."""

    def __init__(self, blocks: Sequence[BlockConduct]) -> None:
        # The middle one: a baseline whose cache was not flushed must not hide a candidate's.
        self.cached_tokens = statistics.median_high(b.cached_tokens for b in blocks)
        by_prompt: dict[str, list[int]] = {}
        for block in blocks:
            for prompt, length in block.lengths.items():
                by_prompt.setdefault(prompt, []).append(length)
        self.lengths = {prompt: sum(found) / len(found) for prompt, found in by_prompt.items()}
        means = [sum(b.lengths.values()) / len(b.lengths) for b in blocks if b.lengths]
        self.length_spread = (max(means) - min(means)) / statistics.fmean(means) if len(means) > 1 else 0.0


class Gpu:
    """Medians and active reasons of one GPU over the blocks of one launch at one concurrency."""

    def __init__(self, found: Sequence[GpuTelemetry]) -> None:
        self.reasons = {reason for gpu in found for reason in gpu.throttle_reasons} - _HARMLESS
        self.clock = _median([gpu.sm_clock_mhz for gpu in found])
        self.heat = _median([gpu.temperature_c for gpu in found])

    def slowed_beside(self, other: Gpu) -> set[str]:
        """The active reasons, without those that were momentary: the clock did not give way beside the other's."""
        kept_up = self.clock and other.clock and self.clock >= other.clock * (1 - _CLOCK_STEP)
        return self.reasons - _MOMENTARY if kept_up else self.reasons


def _gpus(blocks: Sequence[BlockConduct]) -> dict[str, Gpu]:
    uuids = sorted({gpu.gpu_uuid for block in blocks for gpu in block.gpus})
    return {uuid: Gpu([g for b in blocks for g in b.gpus if g.gpu_uuid == uuid]) for uuid in uuids}


def _cached(blocks: Sequence[BlockConduct], base: Usual | None, where: str, settings: AnalysisSettings) -> Found | None:
    """The cache is flushed before a block, so only what all prompts share (the chat template's head) may be cached."""
    allowed = settings.shared_prefix_tokens
    if allowed is None:
        if base is None:
            return None  # what the prompts share is not known
        allowed = base.cached_tokens
    most = max(b.cached_tokens for b in blocks)
    if most <= allowed:
        return None
    return (
        Flag.CACHED_TOKENS,
        f"{where}: a request had {most} cached tokens, the shared prefix explains {allowed}",
    )


def _either(
    flag: Flag,
    seen: Callable[[Sequence[BlockConduct]], str | None],
    mine: Sequence[BlockConduct],
    beside: Beside,
    where: str,
) -> Found | None:
    """What was ``seen`` of the launch, else of a baseline it is compared through: either makes the gain wrong."""
    if (words := seen(mine)) is not None:
        return flag, f"{where}: {words}"
    for name, blocks in beside.items():
        if (words := seen(blocks)) is not None:
            return flag, f"{where}: {name}: {words}"
    return None


def _retractions(blocks: Sequence[BlockConduct]) -> str | None:
    count = sum(b.retractions for b in blocks)
    return f"{count} retractions" if count else _line(blocks, "retractions")


def _graphs(blocks: Sequence[BlockConduct]) -> str | None:
    return _line(blocks, "cuda_graph_off")


def _line(blocks: Sequence[BlockConduct], name: str) -> str | None:
    return next((b.log_flags[name] for b in blocks if name in b.log_flags), None)


def _lengths(
    blocks: Sequence[BlockConduct], base: Usual | None, where: str, settings: AnalysisSettings
) -> Found | None:
    """Under ignore_eos any difference; else a mean that lies further from the baseline's than the baseline's blocks
    lie from each other, plus three standard errors of greedy texts that part at ties of the two best logits."""
    if base is None:
        return None
    pairs = [
        (length, base.lengths[prompt])
        for block in blocks
        for prompt, length in block.lengths.items()
        if prompt in base.lengths
    ]
    if not pairs:
        return None
    ratio = sum(a for a, _ in pairs) / sum(b for _, b in pairs) - 1
    if settings.ignore_eos:
        wrong = sum(a != b for a, b in pairs)
        if not wrong:
            return None
        return Flag.LENGTHS_DIFFER, f"{where}: {wrong} of {len(pairs)} answers differ in length under ignore_eos"
    mean = sum(b for _, b in pairs) / len(pairs)
    scatter = float(np.std([a - b for a, b in pairs])) / mean
    allowed = base.length_spread + max(0.02, 3 * scatter / len(pairs) ** 0.5)
    if abs(ratio) <= allowed:
        return None
    return (
        Flag.LENGTHS_DIFFER,
        f"{where}: answers are {ratio:+.1%} long against the baseline's, {allowed:.1%} is explained by its own spread "
        "and by the texts that part",
    )


def _throttled(blocks: Sequence[BlockConduct], beside: Beside, where: str, settings: AnalysisSettings) -> Found | None:
    """Active reasons, clock and temperature, GPU by GPU, against the baselines the launch is compared through.

    A reason that only one of the two shows makes the level between them wrong, so each counts; clock and temperature
    move steadily and are interpolated as the level is.
    """
    mine = _gpus(blocks)
    theirs = {name: _gpus(found) for name, found in beside.items()}
    for uuid, gpu in mine.items():
        usual = {name: found[uuid] for name, found in theirs.items() if uuid in found}
        for name, other in usual.items():
            reasons = gpu.slowed_beside(other), other.slowed_beside(gpu)
            if reasons[0] != reasons[1]:
                names = [", ".join(sorted(s)) or "none" for s in reasons]
                return Flag.THROTTLED, f"{where}, {uuid}: throttle reasons {names[0]}, {name} {names[1]}"
        clock, heat = _mean(u.clock for u in usual.values()), _mean(u.heat for u in usual.values())
        if gpu.clock and clock and abs(gpu.clock / clock - 1) > settings.clock_tolerance:
            return Flag.THROTTLED, f"{where}, {uuid}: SM clock {gpu.clock:.0f} MHz, its baselines' {clock:.0f}"
        if gpu.heat and heat and abs(gpu.heat - heat) > settings.temperature_tolerance_c:
            return Flag.THROTTLED, f"{where}, {uuid}: {gpu.heat:.0f} °C, its baselines' {heat:.0f}"
    return None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def above_accept_length(row: ArmGain, launch_id: int, tie_band: float) -> Finding | None:
    """A verify step costs no less than a plain decode step of the same batch, so the throughput ratio cannot exceed
    the accept length; beyond the tie band the baseline was measured too slow and is due again."""
    if row.gain is None or not row.accept_length or 1 + row.gain.estimate <= row.accept_length * (1 + tie_band):
        return None
    return Finding(
        Flag.ABOVE_ACCEPT_LENGTH,
        f"concurrency {row.concurrency}: {1 + row.gain.estimate:.3f} times the baseline with an accept length of "
        f"{row.accept_length:.3f}; measure the baseline again",
        launch_id,
    )
