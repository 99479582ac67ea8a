"""From the rows of a launch to the log figures that are paired. Nothing that failed gets past this module.

At concurrency 1 the unit is the prompt (for figures of one request: its speed, TTFT, TPOT, end-to-end time); above it,
and for tail percentiles, the unit is the round: one block. Every figure is a logarithm with positive meaning better,
so that latencies are inverted once, here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.metrics import METRICS, Slo, block_summary, e2e_ms, tpot_ms, ttft_ms
from sweep.metrics.figures import statistic
from sweep.model import BlockResult, GpuTelemetry, MeasuredLaunch, RequestRecord, Role, Stage

Unit = tuple[str, str]  # (how it was measured, prompt id or round): pairs are only made between equal ones
CellKey = tuple[str, int, str | None]  # metric, concurrency, category


@dataclass(frozen=True, slots=True)
class BlockConduct:
    """How a valid block went, for the validity gates. ``lengths`` is prompt id -> output tokens of one request."""

    concurrency: int
    cached_tokens: int
    retractions: int
    log_flags: Mapping[str, str]
    gpus: tuple[GpuTelemetry, ...]
    lengths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """One launch, reduced to what the analysis needs; small enough to keep for every launch of a study.

    ``cells``: log figures by round. ``prompts``: log figures by prompt, concurrency 1, all categories together;
    ``categories`` gives a prompt unit's category. ``levels``: the metric itself, in its unit. ``accept``: accept
    length by (concurrency, category). ``busy``: achieved concurrency. ``at``: Unix time of the launch's middle block.
    """

    launch_id: int
    arm_key: str
    role: Role
    trial: int | None
    host: str
    confirm: bool
    sequence: int
    pair: int | None
    at: float
    span: tuple[float, float]
    cells: Mapping[CellKey, Mapping[Unit, float]]
    prompts: Mapping[tuple[str, int], Mapping[Unit, float]]
    categories: Mapping[Unit, str]
    levels: Mapping[tuple[str, int], float]
    accept: Mapping[tuple[int, str | None], float]
    busy: Mapping[int, float]
    conduct: tuple[BlockConduct, ...]


def partners(figures: Sequence[LaunchFigures]) -> list[int | None]:
    """For each launch the place of the baseline of its ``pair`` that ran during it (resident pairing), None without."""
    baselines: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index, figure in enumerate(figures):
        if figure.role is Role.BASELINE and figure.pair is not None:
            baselines[figure.host, figure.pair].append(index)
    out: list[int | None] = [None] * len(figures)
    for index, figure in enumerate(figures):
        if figure.role is Role.BASELINE or figure.pair is None:
            continue
        length = figure.span[1] - figure.span[0]
        for other in baselines[figure.host, figure.pair]:
            span = figures[other].span
            shared = min(figure.span[1], span[1]) - max(figure.span[0], span[0])
            if length > 0 and shared > 0.5 * length:
                out[index] = other
                break
    return out


def _speed(request: RequestRecord) -> float | None:
    return request.speed


def _user_speed(request: RequestRecord) -> float | None:
    tpot = tpot_ms(request)
    return 1000.0 / tpot if tpot else None


_OF_ONE_REQUEST: dict[str, Callable[[RequestRecord], float | None]] = {
    "output_throughput": _speed,
    "per_user_speed_p50": _user_speed,
}
_LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}
for _stem, _figure in _LATENCIES.items():
    for _suffix in ("mean", "p50"):
        _OF_ONE_REQUEST[f"{_stem}_{_suffix}"] = _figure


def prompt_is_unit(metric: str, concurrency: int) -> bool:
    """True where pairs are made prompt by prompt (given more than one prompt), False where round by round."""
    return concurrency == 1 and metric in _OF_ONE_REQUEST


def extract(launch: MeasuredLaunch, metrics: Iterable[str], slo: Slo | None = None) -> LaunchFigures:
    """Reduce one launch. Pure; a launch's rows never change once finished, so callers may keep the result by id.

    Blocks marked invalid and failed requests give nothing. ``slo`` is what goodput needs.
    """
    wanted = tuple(dict.fromkeys(("output_throughput", *metrics)))
    cells: defaultdict[CellKey, dict[Unit, float]] = defaultdict(dict)
    prompts: defaultdict[tuple[str, int], defaultdict[Unit, list[float]]] = defaultdict(lambda: defaultdict(list))
    categories: dict[Unit, str] = {}
    levels: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    busy: defaultdict[int, list[float]] = defaultdict(list)
    steps: defaultdict[tuple[int, str | None], list[int]] = defaultdict(lambda: [0, 0])
    without: set[tuple[str, int]] = set()
    good = [block for block in launch.blocks if block.invalid is None and block.elapsed_s > 0]
    for block in good:
        rows = [request for request in block.requests if request.ok]
        if not rows:
            continue
        level, measured_as = block.concurrency, _measured_as(block)
        unit = (measured_as, str(block.round))
        busy[level].append(sum(r.end_s - r.sent_s for r in rows) / block.elapsed_s)
        for metric, figure in _block_figures(block, wanted, slo).items():
            if figure > 0:
                levels[metric, level].append(math.log(figure))
                cells[metric, level, None][unit] = _goodness(metric, figure)
            else:
                without.add((metric, level))
        of_category = _sums(rows)
        for category, (tokens, seconds, verify, correct) in of_category.items():
            for key in ((level, category), (level, None)):
                steps[key][0] += verify
                steps[key][1] += correct
            # Throughput of a category within a mixed block: its tokens per busy second (sweep.metrics.by_category,
            # there times the achieved concurrency, which is the same for all categories of the block).
            if level > 1 and len(of_category) > 1 and seconds > 0:
                cells["output_throughput", level, category][unit] = math.log(tokens / seconds)
        if level > 1 and len(of_category) > 1:
            for metric, category, figure in _latencies(rows, wanted):
                cells[metric, level, category][unit] = _goodness(metric, figure)
        if level == 1:
            _add_prompts(measured_as, rows, wanted, prompts, categories)
    # A round without any (no request was good enough) is no ratio, and the mean of the other rounds would hide it.
    for metric, level in without:
        levels.pop((metric, level), None)
        cells.pop((metric, level, None), None)
    starts = [block.started_at for block in good] or [launch.started_at]
    ends = [block.started_at + block.elapsed_s for block in good] or [launch.started_at]
    return LaunchFigures(
        launch_id=launch.launch_id,
        arm_key=launch.arm_key,
        role=launch.role,
        trial=launch.trial,
        host=launch.host,
        confirm=launch.stage is Stage.CONFIRM,
        sequence=launch.sequence,
        pair=launch.pair,
        at=(min(starts) + max(ends)) / 2,
        span=(min(starts), max(ends)),
        cells=dict(cells),
        prompts={key: {unit: sum(logs) / len(logs) for unit, logs in units.items()} for key, units in prompts.items()},
        categories=categories,
        levels={key: math.exp(sum(logs) / len(logs)) for key, logs in levels.items()},
        accept={key: 1 + correct / verify for key, (verify, correct) in steps.items() if verify},
        busy={level: sum(values) / len(values) for level, values in busy.items()},
        conduct=tuple(_conduct(block) for block in launch.blocks if block.invalid is None),
    )


def _block_figures(block: BlockResult, metrics: tuple[str, ...], slo: Slo | None) -> dict[str, float]:
    """The metrics of a block that it has. Throughput alone avoids the percentiles of the summary."""
    out: dict[str, float | None] = {"output_throughput": block.output_tokens / block.elapsed_s}
    if len(metrics) > 1:
        summary = block_summary(block, slo=slo)
        out.update({metric: summary[metric] for metric in metrics if metric != "output_throughput"})
    return {metric: figure for metric, figure in out.items() if figure is not None}


def _latencies(rows: Sequence[RequestRecord], metrics: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    """(metric, category, milliseconds) of those metrics that are statistics of the requests' latencies."""
    for metric in metrics:
        stem, _, suffix = metric.rpartition("_")
        if (figure := _LATENCIES.get(stem)) is None:
            continue
        samples: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            if (found := figure(row)) is not None:
                samples[row.category].append(found)
        for category, sample in samples.items():
            whole = statistic(np.array(sample), suffix)
            if whole is not None and whole > 0:
                yield metric, category, whole


def _goodness(metric: str, figure: float) -> float:
    return math.log(figure) if METRICS[metric].better == "higher" else -math.log(figure)


def _sums(rows: list[RequestRecord]) -> dict[str, tuple[int, float, int, int]]:
    """Category -> output tokens, busy seconds, verify steps, correct drafts."""
    out: dict[str, tuple[int, float, int, int]] = {}
    for row in rows:
        tokens, seconds, verify, correct = out.get(row.category, (0, 0.0, 0, 0))
        counted = bool(row.verify_steps)
        out[row.category] = (
            tokens + (row.output_tokens or 0),
            seconds + row.end_s - row.sent_s,
            verify + (row.verify_steps or 0),
            correct + ((row.correct_drafts or 0) if counted else 0),
        )
    return out


def _measured_as(block: BlockResult) -> str:
    """What two blocks must share to be paired: the prompt list, and the number of client processes, so that the
    client costs both arms alike."""
    processes = block.client.processes
    return block.prompts_hash if processes == 1 else f"{block.prompts_hash} by {processes} processes"


def _add_prompts(
    measured_as: str,
    rows: list[RequestRecord],
    metrics: tuple[str, ...],
    prompts: Mapping[tuple[str, int], defaultdict[Unit, list[float]]],
    categories: dict[Unit, str],
) -> None:
    for metric in metrics:
        figure = _OF_ONE_REQUEST.get(metric)
        if figure is None:
            continue
        units = prompts[metric, 1]
        for row in rows:
            found = figure(row)
            if found is not None and found > 0:
                unit = (measured_as, row.prompt_id)
                units[unit].append(_goodness(metric, found))
                categories[unit] = row.category


def _conduct(block: BlockResult) -> BlockConduct:
    good = [row for row in block.requests if row.ok]
    return BlockConduct(
        concurrency=block.concurrency,
        cached_tokens=max((row.cached_tokens or 0 for row in good), default=0),
        retractions=sum(row.retractions or 0 for row in good),
        log_flags=dict(block.log_flags),
        gpus=block.gpus,
        lengths={row.prompt_id: row.output_tokens or 0 for row in good},
    )
