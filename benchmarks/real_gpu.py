"""Tables of the studies run on real GPUs, from their stored databases, and what the simulator's profiles say of them.

::

    python benchmarks/real_gpu.py [FOLDER]          (default: benchmarks/data/h200 beside this file)

Prints, per study: output throughput by arm, concurrency and round; accept length; launch phases; accept counters
against token counts; predicted against measured output throughput (tok/s) of the simulation profile, last rounds only.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from launchers.simulated import truth
from storage.records import StudyRow
from storage.store import Store
from sweep.model import ArmConfig, BlockResult, MeasuredLaunch

FOLDER = Path(__file__).parent / "data" / "h200"
PROFILES = {"smollm2": "h200-smollm2", "llama8b-shaped": "h200-llama8b"}


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


def tables(store: Store, study: StudyRow, profile: str | None) -> None:
    arms: dict[str, ArmConfig] = {row.key: row.config for row in store.arms(study.id)}
    effective = {row.id: row.effective.config for row in store.launches(study.id) if row.effective is not None}
    print(f"\n## {study.name}\n\nlaunch arm: tok/s by concurrency, rounds in order; accept length")
    errors: list[tuple[float, str]] = []
    for launch in store.measured_launches(study.id):
        found = cells(launch)
        figures = "  ".join(f"@{c}: " + " ".join(f"{speed(b):.0f}" for b in blocks) for c, blocks in found.items())
        length = accept([b for blocks in found.values() for b in blocks])
        print(
            f"{launch.launch_id:>2} {arms[launch.arm_key].label()}: {figures}" + (f"  τ {length:.2f}" if length else "")
        )
        if profile is not None:
            config = effective.get(launch.launch_id, arms[launch.arm_key])
            for level, blocks in found.items():
                predicted = truth.throughput(truth.load(profile), config, level)
                error = predicted / speed(blocks[-1]) - 1
                errors.append((error, f"{config.label()} @{level}: {predicted:.0f} for {speed(blocks[-1]):.0f}"))
    if errors:
        worst = max(errors, key=lambda item: abs(item[0]))
        print(f"profile {profile}: median |error| {statistics.median(abs(e) for e, _ in errors):.3f}, worst {worst}")


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


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for file in sorted(folder.glob("*.db.gz")):
        with opened(file) as store:
            for study in store.studies():
                tables(store, study, PROFILES.get(file.name.removesuffix(".db.gz")))
                phases(store, study)
                counters(store, study)


if __name__ == "__main__":
    main()
