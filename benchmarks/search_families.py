"""Families of search problems: noise-free truths over configurations, and what one launch of each shows.

``product`` has the cost model's own form; the rest are shaped differently on purpose. ``tables`` is fitted to two
tables measured on an H200 (data/llama8b_blocks.csv, data/smollm2_launches.csv), ``specbundle`` is a published table.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares, nnls
from search_problem import AXES, Problem, depths, grid, parts, powered, width

from sweep.model import ArmConfig
from sweep.search.view import SpaceView

DATA = Path(__file__).parent / "data"


def product(rng: np.random.Generator) -> Problem:
    """The family the cost model was built on."""
    chances, step = parts(rng, as_given=True)
    return Problem(grid(), (1,), step, chances)


def saturating(rng: np.random.Generator) -> Problem:
    """Acceptance falls hyperbolically with depth and gains a bounded bonus from width; drafting costs grow slower, and
    verification faster, than linearly; graphs speed up the drafting only."""
    p0, fall, bonus = rng.uniform(0.55, 0.85), rng.uniform(0.0, 0.12), rng.uniform(0.2, 0.6)
    p = {"first": p0, "second": p0 + rng.uniform(-0.06, 0.06)}
    c_d, c_v, c_g = rng.uniform(0.05, 0.2), rng.uniform(0.0008, 0.006), rng.uniform(1.5, 3.0)

    def chances(config: ArmConfig) -> np.ndarray:
        q = p[config.draft_model] / (1.0 + fall * depths(config))
        return q + (1.0 - q) * bonus * (1.0 - 1.0 / width(config)) * 0.9

    def step(config: ArmConfig, level: int) -> float:
        drafting = (
            c_d * config.num_steps**0.8 * (1.0 if config.cuda_graph else c_g) * (1.0 + 0.05 * np.sqrt(config.topk))
        )
        return 1.0 + drafting + c_v * (config.num_draft_tokens - 1) ** 1.3 + (0.0 if config.cuda_graph else 0.1)

    return Problem(grid(), (1,), step, chances)


def graph_cliff(rng: np.random.Generator) -> Problem:
    """Verified tokens are padded to the next captured graph size, and past the largest there is no graph."""
    chances, _ = parts(rng)
    c_d, c_v, c_g = rng.uniform(0.03, 0.12), rng.uniform(0.002, 0.015), rng.uniform(1.3, 1.8)
    largest, late = int(rng.choice([16, 32, 64])), rng.uniform(1.1, 1.3)

    def step(config: ArmConfig, level: int) -> float:
        draft = config.num_draft_tokens
        padded = next((s for s in (4, 8, 16, 32, 64) if s >= draft), draft) if config.cuda_graph else draft
        cost = 1.0 + c_d * config.num_steps * (1.0 + 0.02 * config.topk) + c_v * (padded - 1)
        return cost * ((late if draft > largest else 1.0) if config.cuda_graph else c_g)

    return Problem(grid(), (1,), step, chances)


def shallow_drafter(rng: np.random.Generator) -> Problem:
    """One drafter is right about the first token only, the other is ordinary."""
    first, later, ordinary = rng.uniform(0.75, 0.92), rng.uniform(0.2, 0.5), rng.uniform(0.5, 0.72)
    decay, gamma = rng.uniform(0.92, 1.0), rng.uniform(0.3, 0.7)
    shallow = str(rng.choice(["first", "second"]))

    def chances(config: ArmConfig) -> np.ndarray:
        p = ordinary * decay ** depths(config)
        if config.draft_model == shallow:
            p = np.where(depths(config) == 0, first, later)
        return np.minimum(0.97, 1.0 - (1.0 - p) ** (width(config) ** gamma))

    _, step = parts(rng)
    return Problem(grid(), (1,), step, chances)


def memory_cliff(rng: np.random.Generator) -> Problem:
    """Large trees do not fit: out of memory above a product of draft tokens, topk and depth (10-50 % of all)."""
    chances, step = parts(rng)
    a, b = rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.5)

    def size(config: ArmConfig) -> float:
        return float(config.num_draft_tokens * config.topk**a * config.num_steps**b)

    limit = float(np.quantile([size(c) for c in grid().candidates], rng.uniform(0.5, 0.9)))
    return Problem(grid(), (1,), step, chances, fails=lambda config: size(config) > limit)


def two_loads(rng: np.random.Generator) -> Problem:
    """Concurrency 1 and 32: verification is free up to a ridge of tokens in flight and linear beyond (a roofline)."""
    chances, _ = parts(rng)
    ridge, c_d, c_g = rng.uniform(48, 256), rng.uniform(0.03, 0.12), rng.uniform(1.2, 1.8)
    slope, busy = rng.uniform(0.6, 1.0), rng.uniform(0.001, 0.006)

    def step(config: ArmConfig, level: int) -> float:
        tokens = level * config.num_draft_tokens
        cost = 1.0 + slope * max(0.0, tokens / ridge - 1.0) + busy * level
        drafting = (
            c_d * config.num_steps * (1.0 + 0.3 * level * config.topk / ridge) * (1.0 if config.cuda_graph else c_g)
        )
        return cost + drafting + (0.0 if config.cuda_graph else 0.15)

    return Problem(grid(), (1, 32), step, chances)


@cache
def measured_steps() -> dict[int, np.ndarray]:
    """Milliseconds per step of the 8B-shaped target at concurrency 1, 16, 48: (fixed, per step, per verified token),
    non-negative least squares on the medians of the three trees (3,1,4), (3,4,8), (5,4,16)."""
    blocks: dict[tuple[str, int], list[float]] = {}
    with (DATA / "llama8b_blocks.csv").open() as file:
        for row in csv.DictReader(file):
            if row["forced_accept_length"]:
                ms = 1000.0 * float(row["forced_accept_length"]) * int(row["concurrency"]) / float(row["tok_s"])
                blocks.setdefault((row["arm"], int(row["concurrency"])), []).append(ms)
    trees = {"s3k1d4": (3, 3), "s3k4d8": (3, 7), "s5k4d16": (5, 15)}
    design = np.array([[1.0, s, v] for s, v in trees.values()])
    return {b: nnls(design, np.array([np.median(blocks[t, b]) for t in trees]))[0] for b in (1, 16, 48)}


@cache
def measured_acceptance() -> tuple[float, float, float]:
    """(p0, decay, gamma) of the real EAGLE-3 head, least squares on the accept lengths of its eleven trees."""
    rows = []
    with (DATA / "smollm2_launches.csv").open() as file:
        for row in csv.DictReader(file):
            if row["algorithm"] == "EAGLE3":
                numbers = (int(row[n]) for n in ("num_steps", "topk", "num_draft_tokens"))
                rows.append((ArmConfig("EAGLE3", "first", *numbers), float(row["accept_length"])))

    def off(x: np.ndarray) -> list[float]:
        chances = powered({"first": x[0]}, x[1], x[2])
        return [1.0 + float(np.cumprod(chances(c)).sum()) - length for c, length in rows]

    p0, decay, gamma = least_squares(off, [0.6, 0.9, 0.5], bounds=([0.1, 0.5, 0.0], [0.97, 1.1, 1.0])).x
    return float(p0), float(decay), float(gamma)


def tables(rng: np.random.Generator) -> Problem:
    """Both real tables: the step times of the one, the acceptance of the other, each parameter varied by some per cent
    from problem to problem; concurrency 1, 16 and 48."""
    p0, decay, gamma = measured_acceptance()
    p0 *= float(np.exp(rng.normal(0, 0.08)))
    p = {"first": p0, "second": p0 * float(np.exp(rng.normal(0, 0.05)))}
    chances = powered(
        p, min(decay * float(np.exp(rng.normal(0, 0.02))), 1.0), gamma * float(np.exp(rng.normal(0, 0.15)))
    )
    vary = np.exp(rng.normal(0, 0.15, size=3))
    ms = {b: part * vary for b, part in measured_steps().items()}
    c_g = rng.uniform(1.3, 3.0)

    def step(config: ArmConfig, level: int) -> float:
        fixed, per_step, per_token = ms[level]
        graphs = 1.0 if config.cuda_graph else c_g
        return float(fixed * graphs + per_step * config.num_steps * graphs + per_token * (config.num_draft_tokens - 1))

    return Problem(grid(), (1, 16, 48), step, chances)


@cache
def published() -> list[tuple[SpaceView, int, dict[ArmConfig, float], dict[ArmConfig, float]]]:
    """Per (target, prompt set): its 5 to 10 configurations with tokens/s and accept length."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    with (DATA / "specbundle.csv").open() as file:
        for row in csv.DictReader(file):
            groups.setdefault((row["target"], row["dataset"]), []).append(row)
    out = []
    for rows in groups.values():
        keys = [
            ArmConfig("EAGLE3", r["draft"], int(r["steps"]), int(r["topk"]), int(r["num_draft_tokens"])) for r in rows
        ]
        axes: dict[str, tuple[Any, ...]] = {
            name: tuple(dict.fromkeys(c.as_dict()[name] for c in keys)) for name in AXES
        }
        space = SpaceView(tuple(keys), axes, lambda params, keys=tuple(keys): _listed(params, keys))
        speeds = {k: float(r["spec_tok_s"]) for k, r in zip(keys, rows, strict=True)}
        lengths = {k: float(r["accept_length"]) for k, r in zip(keys, rows, strict=True)}
        out.append((space, int(rows[0]["batch_size"]), speeds, lengths))
    return out


def _listed(params: Mapping[str, Any], keys: Sequence[ArmConfig]) -> ArmConfig | None:
    config = ArmConfig.from_dict(params)
    return config if config in keys else None


def specbundle(rng: np.random.Generator) -> Problem:
    """One published group, its figures taken as the truth."""
    groups = published()
    space, batch, speeds, lengths = groups[rng.integers(len(groups))]
    return Problem(space, (batch,), lambda config, level: level * lengths[config] / speeds[config], lengths=lengths)


FAMILIES: dict[str, Callable[[np.random.Generator], Problem]] = {
    f.__name__: f
    for f in (product, saturating, graph_cliff, shallow_drafter, memory_cliff, two_loads, tables, specbundle)
}
