"""Gates: what makes a measured launch remarkable or unusable, each with the numbers or the line that say so.

Accept length about 1 is a verdict of the probe before the measurement, and asked against effective is read back from
the server; both stand elsewhere. Comparisons are made with the baseline launches of the same host and concurrency.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from sweep.analysis.figures import BlockConduct, LaunchFigures
from sweep.analysis.types import AnalysisSettings, ArmGain, Finding
from sweep.model import ArmConfig, Flag, GpuTelemetry, Role

# nvidia-smi's active reasons that do not slow a busy GPU down by themselves.
_HARMLESS = frozenset({"none", "not_active", "gpu_idle", "idle", "applications_clocks_setting", "sync_boost"})


def gates(
    figures: Sequence[LaunchFigures], arms: Mapping[str, ArmConfig], settings: AnalysisSettings
) -> dict[int, tuple[Finding, ...]]:
    """Trial -> findings of its launches, in order of launch."""
    blocks_of: dict[tuple[str, int, bool], list[BlockConduct]] = {}
    for figure in figures:
        if figure.role is Role.BASELINE:
            for block in figure.conduct:
                if block.invalid is None:
                    blocks_of.setdefault((figure.host, block.concurrency, figure.confirm), []).append(block)
    baselines = {key: Usual(found) for key, found in blocks_of.items()}
    out: dict[int, list[Finding]] = {}
    for figure in figures:
        if figure.trial is None:
            continue
        arm = arms.get(figure.arm_key)
        levels = sorted({block.concurrency for block in figure.conduct})
        for level in levels:
            blocks = [block for block in figure.conduct if block.concurrency == level]
            base = baselines.get((figure.host, level, figure.confirm))
            found = _block_gates(blocks, base, level, arm is None or arm.cuda_graph, settings)
            out.setdefault(figure.trial, []).extend(
                Finding(flag, evidence, figure.launch_id, invalid) for flag, evidence, invalid in found
            )
    return {trial: tuple(found) for trial, found in out.items() if found}


Found = tuple[Flag | None, str, bool]


class Usual:
    """What the baseline's blocks on one host, at one concurrency and in one stage are like; worked out once."""

    def __init__(self, blocks: Sequence[BlockConduct]) -> None:
        self.cached_tokens = max(b.cached_tokens for b in blocks)
        by_prompt: dict[str, list[int]] = {}
        for block in blocks:
            for prompt, length in block.lengths.items():
                by_prompt.setdefault(prompt, []).append(length)
        self.lengths = {prompt: sum(found) / len(found) for prompt, found in by_prompt.items()}
        means = [sum(b.lengths.values()) / len(b.lengths) for b in blocks if b.lengths]
        self.length_spread = (max(means) - min(means)) / statistics.fmean(means) if len(means) > 1 else 0.0
        self.gpus = {uuid: Gpus([g for b in blocks for g in b.gpus if g.gpu_uuid == uuid]) for uuid in _uuids(blocks)}


class Gpus:
    """Medians and active reasons of one GPU over some blocks."""

    def __init__(self, found: Sequence[GpuTelemetry]) -> None:
        self.reasons = {reason for gpu in found for reason in gpu.throttle_reasons} - _HARMLESS
        self.clock = _median([gpu.sm_clock_mhz for gpu in found])
        self.heat = _median([gpu.temperature_c for gpu in found])


def _uuids(blocks: Sequence[BlockConduct]) -> list[str]:
    return sorted({gpu.gpu_uuid for block in blocks for gpu in block.gpus})


def _block_gates(
    blocks: Sequence[BlockConduct],
    base: Usual | None,
    level: int,
    graphs_asked: bool,
    settings: AnalysisSettings,
) -> list[Found]:
    where = f"concurrency {level}"
    found = [
        *_usable(blocks, where, settings),
        _cached(blocks, base, where, settings),
        _retractions(blocks, where),
        _graphs(blocks, where) if graphs_asked else None,
        _lengths(blocks, base, where, settings),
        _throttled(blocks, base, where, settings),
    ]
    return [f for f in found if f is not None]


def _usable(blocks: Sequence[BlockConduct], where: str, settings: AnalysisSettings) -> list[Found]:
    out: list[Found] = []
    sent, good = sum(b.requests for b in blocks), sum(b.successes for b in blocks)
    if sent and good / sent < settings.min_success:
        out.append((None, f"{where}: {good} of {sent} requests succeeded, {settings.min_success:.0%} are needed", True))
    lag = max(b.lag_p99_s for b in blocks)
    slow = [
        b for b in blocks if b.path_capacity is not None and b.path_capacity < settings.path_margin * b.chunks_per_s
    ]
    if lag > settings.max_lag_p99_s:
        allowed = settings.max_lag_p99_s * 1000
        words = f"{where}: the client's event loop woke {lag * 1000:.0f} ms late (p99; {allowed:.0f} allowed)"
        out.append((Flag.CLIENT_LIMITED, words, True))
    elif slow:
        worst = slow[0]
        words = (
            f"{where}: the token path carries {worst.path_capacity:.0f} chunks/s, under {settings.path_margin:g} times "
            f"the {worst.chunks_per_s:.0f} chunks/s of the load"
        )
        out.append((Flag.CLIENT_LIMITED, words, True))
    out += [(None, f"{where}: {b.invalid}", True) for b in blocks if b.invalid is not None]
    return out


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
        False,
    )


def _retractions(blocks: Sequence[BlockConduct], where: str) -> Found | None:
    count = sum(b.retractions for b in blocks)
    line = next((b.log_flags["retractions"] for b in blocks if "retractions" in b.log_flags), None)
    if not count and line is None:
        return None
    words = f"{where}: {count} retractions" if count else f"{where}: {line}"
    return Flag.RETRACTIONS, words, False


def _graphs(blocks: Sequence[BlockConduct], where: str) -> Found | None:
    line = next((b.log_flags["cuda_graph_off"] for b in blocks if "cuda_graph_off" in b.log_flags), None)
    return None if line is None else (Flag.CUDA_GRAPH_OFF, f"{where}: {line}", False)


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
        return Flag.LENGTHS_DIFFER, f"{where}: {wrong} of {len(pairs)} answers differ in length under ignore_eos", False
    mean = sum(b for _, b in pairs) / len(pairs)
    scatter = float(np.std([a - b for a, b in pairs])) / mean
    allowed = base.length_spread + max(0.02, 3 * scatter / len(pairs) ** 0.5)
    if abs(ratio) <= allowed:
        return None
    return (
        Flag.LENGTHS_DIFFER,
        f"{where}: answers are {ratio:+.1%} long against the baseline's, {allowed:.1%} is explained by its own spread "
        "and by the texts that part",
        False,
    )


def _throttled(
    blocks: Sequence[BlockConduct], base: Usual | None, where: str, settings: AnalysisSettings
) -> Found | None:
    """Clock, temperature and active reasons, GPU by GPU, against the baseline's median on the same GPU."""
    for uuid in _uuids(blocks):
        if base is None or uuid not in base.gpus:
            continue
        mine, usual = Gpus([g for b in blocks for g in b.gpus if g.gpu_uuid == uuid]), base.gpus[uuid]
        if mine.reasons != usual.reasons:
            names = [", ".join(sorted(s)) or "none" for s in (mine.reasons, usual.reasons)]
            return Flag.THROTTLED, f"{where}, {uuid}: throttle reasons {names[0]}, the baseline's {names[1]}", False
        if mine.clock and usual.clock and abs(mine.clock / usual.clock - 1) > settings.clock_tolerance:
            words = f"{where}, {uuid}: SM clock {mine.clock:.0f} MHz, the baseline's {usual.clock:.0f}"
            return Flag.THROTTLED, words, False
        if mine.heat and usual.heat and abs(mine.heat - usual.heat) > settings.temperature_tolerance_c:
            return Flag.THROTTLED, f"{where}, {uuid}: {mine.heat:.0f} °C, the baseline's {usual.heat:.0f}", False
    return None


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
