"""Tables of the studies run on real GPUs, from their stored databases, and what the simulator's profiles say of them.

::

    python benchmarks/real_gpu.py [FOLDER]          (default: benchmarks/data/h200 beside this file)

Prints, per study: output throughput by arm, concurrency and round; accept length; launch phases; accept counters
against token counts; what a chain's histogram says of shallower chains. Then one launch of an adaptive table against
static launches, and our client against SGLang's (``agree.json``, of ``benchmarks/agree.py``). What the simulator's
profiles say of the same cells: ``benchmarks/refit_studies.py``.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import gzip
import json
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from storage.records import StudyRow
from storage.store import Store
from sweep.model import ArmConfig, BlockResult, MeasuredLaunch

FOLDER = Path(__file__).parent / "data" / "h200"
# The adaptive launch's table, batch size -> steps (topk 1); the study of static launches it is held against.
ADAPTIVE = {1: 5, 4: 3, 16: 2, 32: 1, 48: 1}
STATIC = "llama8b-shaped.db.gz"


@contextmanager
def opened(file: Path) -> Iterator[Store]:
    """The store of a gzipped SQLite database, unpacked for the time of the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        path.write_bytes(gzip.decompress(file.read_bytes()))
        with Store.open(f"sqlite:///{path}", create=False) as store:
            yield store


def speed(block: BlockResult) -> float:
    """Output tokens per second."""
    return sum(r.output_tokens or 0 for r in block.requests) / block.elapsed_s


def accept(blocks: list[BlockResult]) -> float | None:
    """1 + correct drafts ÷ verify steps over all requests; None without speculation."""
    steps = sum(r.verify_steps or 0 for b in blocks for r in b.requests)
    return 1 + sum(r.correct_drafts or 0 for b in blocks for r in b.requests) / steps if steps else None


def cells(launch: MeasuredLaunch) -> Mapping[int, list[BlockResult]]:
    """Valid blocks by concurrency, in order of rounds."""
    out: defaultdict[int, list[BlockResult]] = defaultdict(list)
    for block in launch.blocks:
        if block.invalid is None:
            out[block.concurrency].append(block)
    return out


def tables(store: Store, study: StudyRow) -> None:
    arms: dict[str, ArmConfig] = {row.key: row.config for row in store.arms(study.id)}
    print(f"\n## {study.name}\n\nlaunch arm: tok/s by concurrency, rounds in order; accept length")
    for launch in store.measured_launches(study.id):
        found = cells(launch)
        figures = "  ".join(f"@{c}: " + " ".join(f"{speed(b):.0f}" for b in blocks) for c, blocks in found.items())
        length = accept([b for blocks in found.values() for b in blocks])
        print(
            f"{launch.launch_id:>2} {arms[launch.arm_key].label()}: {figures}" + (f"  τ {length:.2f}" if length else "")
        )


def phases(store: Store, study: StudyRow) -> None:
    took: defaultdict[str, list[float]] = defaultdict(list)
    for row in store.launches(study.id):
        if row.ready_at is not None:
            kind = "speculative" if row.config.speculative else "baseline"
            for name, seconds in row.phases.items():
                took[f"{kind} {name}"].append(seconds)
            if row.started_at is not None:
                took[f"{kind} to ready"].append(row.ready_at - row.started_at)
    for name, values in took.items():
        print(
            f"{name}: median {statistics.median(values):.1f} s of {len(values)}, {min(values):.1f} to {max(values):.1f}"
        )


def counters(store: Store, study: StudyRow) -> None:
    """Tokens after the prefill's against verify steps + correct drafts: a cut last step may count up to its drafts."""
    beyond = [
        (r.verify_steps or 0) + (r.correct_drafts or 0) - ((r.output_tokens or 0) - 1)
        for launch in store.measured_launches(study.id)
        for block in launch.blocks
        for r in block.requests
        if r.ok and r.verify_steps
    ]
    if beyond:
        exact = sum(b == 0 for b in beyond)
        print(f"counters: {exact} of {len(beyond)} requests exact, the others {max(beyond)} over at most")


def histograms(store: Store, study: StudyRow) -> dict[int, Counter[int]]:
    """Of every chain (topk 1) by its steps: how many verify steps accepted 0, 1, 2, ... drafts."""
    out: defaultdict[int, Counter[int]] = defaultdict(Counter)
    configs = {row.id: row.effective.config for row in store.launches(study.id) if row.effective is not None}
    for launch in store.measured_launches(study.id):
        config = configs[launch.launch_id]
        if config.topk == 1 and config.num_steps:
            for block in launch.blocks:
                for request in block.requests:
                    for drafts, count in enumerate(request.accept_histogram or ()):
                        out[config.num_steps][drafts] += count
    return dict(out)


def shallower(histogram: Counter[int], steps: int) -> float:
    """Accept length of a chain of ``steps`` from a deeper chain's histogram: 1 + mean of min(accepted, steps)."""
    return 1 + sum(min(drafts, steps) * count for drafts, count in histogram.items()) / histogram.total()


def chains(store: Store, study: StudyRow) -> None:
    found = histograms(store, study)
    for deep in sorted(found, reverse=True):
        for steps in sorted(other for other in found if other < deep):
            said, seen = shallower(found[deep], steps), shallower(found[steps], steps)
            print(
                f"chain of {steps} from the histogram of {deep}: {said:.3f}, "
                f"measured {seen:.3f}: {said / seen - 1:+.3f}"
            )


def adaptive(one: Store, static: Store) -> None:
    """Throughput and accept length of one adaptive launch, each level against the static chain of its steps."""
    (launch,) = one.measured_launches(one.study(None).id)
    study = static.study(None)
    configs = {row.id: row.effective.config for row in static.launches(study.id) if row.effective is not None}
    print("\n## one adaptive launch against static launches of its steps (tok/s of both rounds, accept length)\n")
    for level, blocks in cells(launch).items():
        steps = ADAPTIVE[level]
        others = [
            block
            for other in static.measured_launches(study.id)
            if (configs[other.launch_id].topk, configs[other.launch_id].num_steps) == (1, steps)
            for block in cells(other).get(level, ())
        ]
        mine, theirs = ([round(speed(block)) for block in found] for found in (blocks, others))
        ratio = statistics.fmean(mine) / statistics.fmean(theirs) - 1
        print(
            f"@{level} {steps} steps: {mine} τ {accept(blocks):.2f}; static {theirs} "
            f"τ {accept(others):.2f}; {ratio:+.3f}"
        )


def agreement(folder: Path) -> None:
    """Ours ÷ SGLang's client, and both clients' times."""
    print("\n## our client against SGLang's\n")
    for server in json.loads((folder / "agree.json").read_text(encoding="utf-8")):
        for level in server["levels"]:
            found = level["ratio"]
            print(
                f"{server['name']} @{level['concurrency']}, {level['max_tokens']} tokens, {len(level['pairs'])} pairs: "
                f"ours / theirs {found['estimate']:.4f} ({found['low']:.4f} to {found['high']:.4f})"
            )
            for key in ("tok_s", "ttft_s", "tpot_s"):
                for side in ("ours", "theirs"):
                    print(f"  {key} {side}: " + " ".join(f"{pair[side][key]:.5g}" for pair in level["pairs"]))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for file in sorted(folder.glob("*.db.gz")):
        with opened(file) as store:
            for study in store.studies():
                tables(store, study)
                phases(store, study)
                counters(store, study)
                chains(store, study)
    if (folder / "adaptive.db.gz").exists():
        with opened(folder / "adaptive.db.gz") as one, opened(folder / STATIC) as static:
            adaptive(one, static)
    if (folder / "agree.json").exists():
        agreement(folder)


if __name__ == "__main__":
    main()
