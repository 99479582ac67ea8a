"""Fit the simulated engine's profiles to measured tables and print predicted against measured, cell by cell.

::

    python benchmarks/fit_profiles.py --llama8b llama8b_shaped.csv --smollm2 h200_smollm2_eagle3.csv --kimi [--write]

``--llama8b`` wants columns arm, concurrency, tok_s (one row per block); ``--smollm2`` wants one row per request:
algorithm, num_steps, topk, num_draft_tokens, cuda_graph, concurrency, category, output_tokens, elapsed_s, ttft_s,
spec_verify_ct, config. ``--kimi`` needs no file: its targets are the five measured rows that the profile retells.
Without ``--write`` nothing is changed. Exit 1 when a stated tolerance is missed.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from launchers.simulated import truth
from sweep.model import BASELINE, ArmConfig

Profile = dict[str, Any]
Cell = tuple[str, float, float]  # label, predicted, measured

# Accept lengths served by the recorded drafter, (steps, topk, draft tokens) -> tokens per verify step.
TREES = ((1, 1, 2), (2, 1, 3), (3, 1, 4), (5, 1, 6), (1, 4, 4), (3, 4, 4), (2, 4, 8), (3, 4, 8), (5, 4, 8), (3, 4, 16),
         (5, 4, 16))  # fmt: skip
# The recorded prompts' categories in the words of the built-in prompt sets.
CATEGORY = {
    "code": "code", "math": "math", "story": "writing", "essay": "writing", "list": "writing",
    "explanation": "question_answering", "dialogue": "question_answering", "summarisation": "summarisation",
    "translation": "translation",
}  # fmt: skip


def eagle3(steps: int, topk: int, draft_tokens: int, drafter: str = "drafter", graphs: bool = True) -> ArmConfig:
    return ArmConfig("EAGLE3", drafter, steps, topk, draft_tokens, graphs)


def fit(profile: Profile, put: Callable[[Profile, Sequence[float]], None], start: Sequence[float],
        cells: Callable[[Profile], list[Cell]], loss: str = "linear") -> list[Cell]:  # fmt: skip
    """Least squares on log ratios of predicted to measured; positive parameters, searched on a log scale."""

    def residuals(x: Any) -> list[float]:
        put(profile, [float(v) for v in np.exp(x - 1.0)])
        return [math.log(predicted / measured) for _, predicted, measured in cells(profile)]

    # one is added so that no coordinate starts at zero, where a relative difference step has no length
    best = least_squares(residuals, np.log(start) + 1.0, loss=loss, f_scale=0.05, max_nfev=400, diff_step=1e-3)
    put(profile, [round(float(v), 5) for v in np.exp(best.x - 1.0)])
    return cells(profile)


def report(title: str, cells: Sequence[Cell], worst_allowed: float, median_allowed: float) -> bool:
    """Print a table; False when a tolerance (fractions) is missed."""
    errors = [abs(predicted / measured - 1.0) for _, predicted, measured in cells]
    print(f"\n{title}")
    for (label, predicted, measured), error in zip(cells, errors, strict=True):
        print(f"  {label:34} predicted {predicted:9.3f}  measured {measured:9.3f}  {100 * error:5.2f} %")
    print(f"  median error {100 * statistics.median(errors):.2f} %, worst {100 * max(errors):.2f} %")
    return max(errors) <= worst_allowed and statistics.median(errors) <= median_allowed


# ---------------------------------------------------------------------------------------------- acceptance


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def accept_lengths(rows: Sequence[dict[str, str]]) -> dict[tuple[int, int, int], dict[str, float]]:
    """Per tree: output tokens over verify steps, for every category (built-in words) and for ``all``."""
    sums: dict[tuple[int, int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        if row["algorithm"] == "EAGLE3" and row["concurrency"] == "1":
            tree = (int(row["num_steps"]), int(row["topk"]), int(row["num_draft_tokens"]))
            for name in (CATEGORY[row["category"]], "all"):
                sums[tree][name][0] += int(row["output_tokens"])
                sums[tree][name][1] += int(row["spec_verify_ct"])
    return {tree: {name: n / s for name, (n, s) in names.items()} for tree, names in sums.items()}


def fit_acceptance(profile: Profile, measured: dict[tuple[int, int, int], dict[str, float]]) -> list[Cell]:
    """Depth probabilities, width gain and depth decay, so that the equally weighted categories give the list."""

    def put(target: Profile, x: Sequence[float]) -> None:
        depth = [1.0 / (1.0 + v) for v in x[:5]]
        target["acceptance"].update(
            depth=[round(v, 5) for v in depth], width_gain=round(x[5], 5), depth_decay=round(x[6], 5)
        )

    def cells(target: Profile) -> list[Cell]:
        return [
            (f"accept length {tree}", truth.accept_length(target, eagle3(*tree)), measured[tree]["all"])
            for tree in TREES
        ]

    return fit(profile, put, [0.7, 0.8, 0.5, 0.5, 0.5, 0.5, 0.7], cells)


def fit_categories(profile: Profile, measured: dict[tuple[int, int, int], dict[str, float]]) -> list[Cell]:
    """Exponents of the categories from every recorded tree. Their geometric mean is one, as ``other`` is: the level
    belongs to the depth probabilities alone."""
    names = truth.main_categories(profile)

    def put(target: Profile, x: Sequence[float]) -> None:
        level = math.exp(sum(math.log(v) for v in x) / len(x))
        target["categories"].update(zip(names, [round(v / level, 4) for v in x], strict=True))

    def cells(target: Profile) -> list[Cell]:
        return [
            (f"{name} {tree}", truth.accept_length(target, eagle3(*tree), name), measured[tree][name])
            for tree in TREES
            for name in names
        ]

    return fit(profile, put, [1.0] * len(names), cells, loss="soft_l1")


# ---------------------------------------------------------------------------------------------- step times


def put_spec(profile: Profile, x: Sequence[float]) -> None:
    names = ("base", "step", "tree_step", "request", "token", "request_step", "token_square")
    profile["timing"]["spec"].update(zip(names, x, strict=True))


def fit_llama8b(profile: Profile, path: Path) -> list[Cell]:
    """Baseline step times at the five loads exactly, then seven step-cost parameters over the 15 speculative cells."""
    blocks: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in read_rows(path):
        blocks[row["arm"], int(row["concurrency"])].append(float(row["tok_s"]))
    median = {key: statistics.median(values) for key, values in blocks.items()}
    loads = sorted({load for _, load in median})
    nominal = profile["nominal"]
    n, prompt = int(nominal["output_tokens"]), int(nominal["prompt_tokens"])
    table = []
    for load in loads:
        prefill = truth.arm_model(profile, BASELINE).prefill_s(load * prompt)
        table.append([load, round((load * n / median["baseline", load] - prefill) / (n - 1) * 1000, 4)])
    profile["timing"]["decode_ms"] = table
    arms = {"s3k1d4": eagle3(3, 1, 4), "s3k4d8": eagle3(3, 4, 8), "s5k4d16": eagle3(5, 4, 16)}

    def cells(target: Profile, names: Sequence[str] = tuple(arms)) -> list[Cell]:
        return [
            (f"{name} at {load}", truth.throughput(target, arms.get(name, BASELINE), load), median[name, load])
            for name in names
            for load in loads
        ]

    fit(profile, put_spec, [0.5, 0.4, 0.05, 0.05, 0.02, 0.01, 0.1], cells)
    return cells(profile, ("baseline", *arms))


def fit_smollm2(profile: Profile, rows: Sequence[dict[str, str]]) -> list[Cell]:
    """Time per request at concurrency 1 by launch; the repeats of slow launches are left out (robust loss)."""
    speeds: dict[tuple[str, str, str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["concurrency"] == "1":
            seconds = float(row["elapsed_s"]) - float(row["ttft_s"])
            steps = int(row["spec_verify_ct"] or 0) or int(row["output_tokens"]) - 1
            key = (row["algorithm"], row["num_steps"], row["topk"], row["num_draft_tokens"], row["cuda_graph"],
                   row["config"])  # fmt: skip
            speeds[key].append(1000 * seconds / steps)
    measured: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
    for key, values in speeds.items():
        measured[key[:5]].append(statistics.median(values))
    best = {key: statistics.median(values) for key, values in measured.items()}

    def config(key: tuple[str, str, str, str, str]) -> ArmConfig:
        if key[0] == "NONE":
            return ArmConfig(cuda_graph=key[4] == "on")
        steps, topk, tokens = (int(v) if v else None for v in key[1:4])
        return ArmConfig(key[0], "drafter" if key[0] == "EAGLE3" else None, steps, topk, tokens)

    def cells(target: Profile) -> list[Cell]:
        return [
            (f"ms per step {config(key).label()}", 1000 * truth.step_time(target, config(key), 1), value)
            for key, value in best.items()
        ]

    def put(target: Profile, x: Sequence[float]) -> None:
        old = dict(target["timing"]["spec"])
        put_spec(target, [x[0], x[1], x[2], old["request"], x[3], old["request_step"], old["token_square"]])
        target["timing"]["spec"]["ngram_base"] = x[4]

    plain = best["NONE", "", "", "", "on"]
    shape = profile["timing"]["decode_ms"]
    profile["timing"]["decode_ms"] = [[b, round(v * plain / shape[0][1], 4)] for b, v in shape]
    profile["timing"]["graph_off_factor"] = round(best["NONE", "", "", "", "off"] / plain, 3)
    return fit(profile, put, [1.5, 0.05, 0.02, 0.01, 1.3], cells, loss="soft_l1")


# ---------------------------------------------------------------------------------------------- Kimi-K2.5

KIMI_BASELINE = 90.0
# Speeds of the five prompts on the winning row, the sixth category so that the paired gain is -8.6 %.
KIMI_SPEEDS = {"code": 101.7, "math": 79.4, "writing": 75.6, "question_answering": 76.5, "summarisation": 82.4}
KIMI_GAIN, KIMI_ACCEPT = -0.086, 2.1


def fit_kimi(profile: Profile) -> list[Cell]:
    """Step costs, graph factor, drafter quality and category exponents from the five rows of the story."""
    row5 = eagle3(3, 4, 5, "k25-custom")
    row4 = eagle3(3, 4, 16, "k25-custom")
    row3 = eagle3(3, 4, 16, "aq-medai", graphs=False)
    row2 = eagle3(3, 4, 16, "k25-custom", graphs=False)
    ratios = {name: speed / KIMI_BASELINE for name, speed in KIMI_SPEEDS.items()}
    log_sum = len(truth.main_categories(profile)) * math.log(1 + KIMI_GAIN)
    ratios["translation"] = math.exp(log_sum - sum(math.log(r) for r in ratios.values()))
    plain = profile["nominal"]
    n = int(plain["output_tokens"])
    prefill = truth.arm_model(profile, BASELINE).prefill_s(int(plain["prompt_tokens"]))
    step = (n / KIMI_BASELINE - prefill) / (n - 1) * 1000
    profile["timing"]["decode_ms"] = [[b, round(step * f, 4)] for b, f in ((1, 1.0), (4, 1.09), (16, 1.3), (32, 1.6),
                                                                           (64, 2.2))]  # fmt: skip
    names = list(ratios)

    def put(target: Profile, x: Sequence[float]) -> None:
        spec = target["timing"]["spec"]
        spec["base"], spec["token"] = round(x[0], 5), round(x[1], 5)
        target["timing"]["graph_off_factor"] = round(x[2], 5)
        for entry in target["drafters"]:
            if "aq-medai" in entry["match"]:
                entry["exponent"] = round(x[3], 5)
        target["categories"].update(zip(names, [round(v, 5) for v in x[4:]], strict=True))

    def cells(target: Profile) -> list[Cell]:
        out = [("accept length row 5", truth.accept_length(target, row5), KIMI_ACCEPT)]
        for label, config, speed in (("row 2", row2, 53.2), ("row 3", row3, 50.5), ("row 4", row4, 74.9)):
            out.append((f"tok/s {label}", truth.throughput(target, config, 1), speed))
        out.append(("tok/s row 5", truth.throughput(target, row5, 1), KIMI_BASELINE * (1 + KIMI_GAIN)))
        out += [(f"1 + gain {name}", 1 + truth.gain(target, row5, 1, name), ratios[name]) for name in names]
        return out

    result = fit(profile, put, [9.0, 0.3, 1.4, 1.1, *([1.0] * len(names))], cells)
    return [("tok/s baseline", truth.throughput(profile, BASELINE, 1), KIMI_BASELINE), *result]


# ---------------------------------------------------------------------------------------------- command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama8b", type=Path)
    parser.add_argument("--smollm2", type=Path)
    parser.add_argument("--kimi", action="store_true")
    parser.add_argument("--write", action="store_true", help="store the fitted numbers in the profiles")
    options = parser.parse_args()
    good = True
    changed: dict[str, Profile] = {}
    if options.smollm2:
        rows = read_rows(options.smollm2)
        lengths = accept_lengths(rows)
        small = changed["h200-smollm2"] = truth.load("h200-smollm2")
        small["categories"] = dict.fromkeys(small["categories"], 1.0)
        overall = fit_acceptance(small, lengths)
        for _ in range(6):  # in turn: the exponents need a level, the level a mix
            by_category = fit_categories(small, lengths)
            overall = fit_acceptance(small, lengths)
        report("h200-smollm2: accept length by category (about two prompts each)", by_category, 1.0, 1.0)
        good &= report("h200-smollm2: accept length", overall, 0.07, 0.03)
        good &= report("h200-smollm2: step time", fit_smollm2(small, rows), 0.25, 0.06)
        big = changed["h200-llama8b"] = truth.load("h200-llama8b")
        good &= report("h200-llama8b: accept length", fit_acceptance(big, lengths), 0.06, 0.03)
    if options.llama8b:
        big = changed.setdefault("h200-llama8b", truth.load("h200-llama8b"))
        good &= report("h200-llama8b: tok/s", fit_llama8b(big, options.llama8b), 0.08, 0.03)
    if options.kimi:
        kimi = changed["kimi-k25-8xgpu"] = truth.load("kimi-k25-8xgpu")
        good &= report("kimi-k25-8xgpu", fit_kimi(kimi), 0.01, 0.005)
    if options.write:
        for name, profile in changed.items():
            text = json.dumps(copy.deepcopy(profile), indent=1)
            truth.profile_path(name).write_text(text + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
