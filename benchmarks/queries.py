"""How quickly `sweep best` and `sweep pareto` answer from a large database.

Generates a finished study (``--trials`` complete trials, each with one launch of two blocks and ``--requests``
requests, its gains in two metrics at two concurrencies over two references, overall and in six categories) in a
temporary SQLite file, then times each command as a user would see it: a fresh process, best and worst of ``--repeats``.
Prints a table; with ``--json`` one object last: {trials, requests, database_mib, generate_s, python_s, best_s,
pareto_s, show_s, limit_s, within_limit}.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table

from storage import codec, schema
from storage.base import insert_many
from storage.store import Store
from sweep.model import (
    ArmConfig,
    ArmGain,
    Basis,
    BlockResult,
    ClientHealth,
    Comparison,
    Effective,
    Gain,
    Objective,
    RequestRecord,
    Role,
    Stage,
    Verdict,
)

LIMIT_S = 1.0
CATEGORIES = ("code", "math", "writing", "question_answering", "summarisation", "translation")
OBJECTIVES = (Objective("output_throughput", 1, True), Objective("ttft_p50", 8, False))
Rows = dict[Table, list[dict[str, Any]]]
CHUNK = 100  # trials a transaction


def generate(url: str, trials: int, requests: int, seed: int) -> None:
    """Fill an empty database through the schema's own tables; the analysis goes through the store."""
    rng = random.Random(seed)
    with Store.open(url) as store:
        study = store.create_study(
            "large",
            engine="simulated",
            spec={"name": "large"},
            yaml="name: large\n",
            space_hash="0" * 12,
            seed=seed,
            tool_version="benchmark",
            objectives=OBJECTIVES,
            simulated=True,
        )
        factors = [rng.gauss(1.0, 0.1) for _ in range(trials)]
        for start in range(0, trials, CHUNK):
            numbers = range(start, min(start + CHUNK, trials))
            rows = _rows(study.id, numbers, factors, requests, rng)
            store.database.write(partial(_insert, rows))
        store.replace_analysis(study.id, _gains(factors), _result(factors))


def _insert(rows: Rows, connection: Connection) -> None:
    for table, values in rows.items():
        insert_many(connection, table, values)


def _config(number: int) -> ArmConfig:
    steps, topk, width = number % 8 + 1, (1, 2, 4, 8)[number // 8 % 4], number // 32 % 64 + 2
    return ArmConfig("EAGLE3", f"drafter-{number // 2048}", steps, topk, width)


def _rows(
    study_id: int, numbers: range, factors: list[float], requests: int, rng: random.Random
) -> dict[Table, list[dict[str, Any]]]:
    """Table -> rows for these trials. Ids are made here (trial n has id n + 1) so that nothing is read back."""
    out: Rows = {table: [] for table in (schema.arms, schema.trials, schema.launches, schema.blocks, schema.requests)}
    for n in numbers:
        config, at = _config(n), 1.7e9 + 300 * n
        effective = codec.effective_out(Effective(config, {"tp_size": 1}))
        arm = {"id": n + 1, "study_id": study_id, "key": config.key, "role": Role.CANDIDATE, "config": config.as_dict()}
        out[schema.arms].append(arm)
        out[schema.trials].append(
            {
                "id": n + 1,
                "study_id": study_id,
                "number": n,
                "arm_id": n + 1,
                "state": "finished",
                "verdict": Verdict.COMPLETE,
                "flags": {"simulated": "measured on the simulated engine"},
                "origin": "sampler",
                "why": "",
                "attempt": 1,
                "host": "gpu-a",
                "effective": effective,
                "effective_key": config.key,
                "params": {},
                "objective_values": {OBJECTIVES[0].key: 90 * factors[n], OBJECTIVES[1].key: 40 / factors[n]},
                "objective_stderr": {},
                "constraint_values": {},
                "created_at": at,
                "started_at": at,
                "finished_at": at + 200,
            }
        )
        out[schema.launches].append(
            {
                "id": n + 1,
                "study_id": study_id,
                "trial_id": n + 1,
                "arm_id": n + 1,
                "host": "gpu-a",
                "stage": Stage.SEARCH,
                "role": Role.CANDIDATE,
                "sequence": n,
                "state": "ended",
                "verdict": Verdict.COMPLETE,
                "argv": ["python3", "-m", "sglang.launch_server"],
                "begun_at": at,
                "started_at": at,
                "phases": {},
                "effective": effective,
                "log_tail": ["The server is fired up and ready to roll!"] * 50,
            }
        )
        for part, concurrency in enumerate((1, 8)):
            block_id = 2 * n + part + 1
            block = _block(concurrency, requests // 2, at, factors[n], rng)
            row = codec.block_out(block, slo=None, num_draft_tokens=config.num_draft_tokens)
            out[schema.blocks].append({"id": block_id, "launch_id": n + 1, **row})
            out[schema.requests] += [{"block_id": block_id, **codec.request_out(r)} for r in block.requests]
    return out


def _block(concurrency: int, count: int, at: float, factor: float, rng: random.Random) -> BlockResult:
    records = []
    for index in range(count):
        seconds = 200 / (90 * factor) * rng.uniform(0.95, 1.05)
        sent = index * seconds
        name = CATEGORIES[index % len(CATEGORIES)]
        plain = RequestRecord(index, f"{name}-{index}", name, sent, 0.04, sent + seconds, 120, 0, 200, "meta", 95, 105)
        records.append(replace(plain, accept_histogram=(20, 45, 30), finish_reason="stop", chunks=95))
    client = ClientHealth(lag_p50_s=0.0002, lag_p99_s=0.001, cpu_share=0.1, chunks=95 * count)
    elapsed = records[-1].end_s if records else 0.0
    return BlockResult(Stage.SEARCH, concurrency, 0, "0" * 12, at, elapsed, tuple(records), client)


def _gains(factors: list[float]) -> Iterator[ArmGain]:
    for number, factor in enumerate(factors):
        for metric in ("output_throughput", "ttft_p50"):
            for concurrency in (1, 8):
                for reference in ("baseline", "engine_default"):
                    for category in (None, *CATEGORIES):
                        low, high = factor - 1.02, factor - 0.98
                        gain = Gain(factor - 1, low, high, Basis.BRACKETED, Stage.SEARCH)
                        word = Comparison.FASTER if low > 0 else Comparison.SLOWER if high < 0 else Comparison.TIE
                        value = 90 * factor if metric == "output_throughput" else 40 / factor
                        yield ArmGain(
                            number,
                            metric,
                            concurrency,
                            category,
                            reference,
                            word,
                            gain,
                            value=value,
                            df=8.0,
                            n_pairs=32,
                            n_launches=1,
                            accept_length=2.1,
                            break_even=2.1 / factor,
                        )


def _result(factors: list[float]) -> dict[str, Any]:
    order = sorted(range(len(factors)), key=lambda n: -factors[n])
    ranking = [{"trial": n, "rank": place // 3 * 3 + 1} for place, n in enumerate(order)]
    return {
        "baseline": {"by_objective": {OBJECTIVES[0].key: 90.0, OBJECTIVES[1].key: 40.0}},
        "ranking": {o.key: ranking for o in OBJECTIVES},
    }


def _time(argv: list[str], repeats: int) -> tuple[float, float]:
    """Wall seconds of a fresh process, best and worst."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return min(seconds), max(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the queries on a generated database.")
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=200, help="per trial")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.db"
        url = f"sqlite:///{path}"
        started = time.perf_counter()
        generate(url, options.trials, options.requests, options.seed)
        generated = time.perf_counter() - started
        size = path.stat().st_size / 2**20
        sweep = [sys.executable, "-m", "sweep"]
        timed = {
            "python": _time([sys.executable, "-c", "pass"], options.repeats),
            "best": _time([*sweep, "best", "--db", url, "--json"], options.repeats),
            "pareto": _time([*sweep, "pareto", "--db", url, "--json"], options.repeats),
            "show": _time([*sweep, "show", "7", "--db", url, "--json"], options.repeats),
        }
    lines = [f"{options.trials} trials x {options.requests} requests, {size:.0f} MiB, generated in {generated:.1f} s"]
    lines += [f"{name:<8} best {low:.2f} s, worst {high:.2f} s" for name, (low, high) in timed.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json:
        answer = {
            "trials": options.trials,
            "requests": options.requests,
            "database_mib": round(size, 1),
            "generate_s": round(generated, 2),
            **{f"{name}_s": round(low, 3) for name, (low, _) in timed.items()},
            "limit_s": LIMIT_S,
            "within_limit": timed["best"][0] <= LIMIT_S and timed["pareto"][0] <= LIMIT_S,
        }
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
