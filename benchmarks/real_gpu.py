"""Tables of the studies run on real GPUs, from their stored databases, and what the simulator's profiles say of them.

::

    python benchmarks/real_gpu.py [FOLDER]          (default: benchmarks/data/h200 beside this file)

Prints, per study: output throughput by arm, concurrency and round; accept length; launch phases; accept counters
against token counts; what a chain's histogram says of shallower chains. Then one launch of an adaptive table against
static launches; gains by servers beside each other on one GPU against bracketed ones; where the server's garbage
collections fell (``pauses.csv``, read off the servers' logs); how long graphs took to capture (``graphs.csv``,
likewise); our client against SGLang's (``agree.json``, of ``benchmarks/agree.py``). What the simulator's profiles say
of the same cells: ``benchmarks/refit_studies.py``.
"""

# ruff: noqa: T201 - what a benchmark prints is its product

from __future__ import annotations

import csv
import gzip
import json
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.reading import gains
from storage.records import StudyRow
from storage.store import Store
from sweep.model import ArmConfig, BlockResult, MeasuredLaunch, Stage

FOLDER = Path(__file__).parent / "data" / "h200"
# The adaptive launch's table, batch size -> steps (topk 1); the study of static launches it is held against.
ADAPTIVE = {1: 5, 4: 3, 16: 2, 32: 1, 48: 1}
STATIC = "llama8b-shaped.db.gz"
RESIDENT = "resident.db.gz"
SIDES = ("ours", "theirs")


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


def pairings(resident: Store, bracketed: Store) -> None:
    """Gains in output throughput of the same arms, of the search stage, measured in two ways."""
    print("\n## gains in output throughput (95 %), servers beside each other and bracketed\n")
    found: defaultdict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for store in (resident, bracketed):
        study = store.study(None)
        arms = {trial.number: trial.config.label() for trial in store.trials(study.id)}
        for row in gains(store, study.id):
            gain = row.gain
            asked = (row.metric, row.category, row.reference) == ("output_throughput", None, "baseline")
            if asked and row.trial is not None and gain is not None and gain.stage is Stage.SEARCH:
                words = f"{gain.estimate:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"
                found[arms[row.trial], row.concurrency][gain.basis.value] = words
    for (arm, level), by_basis in found.items():
        if len(by_basis) == 2:
            print(f"{arm} @{level}: " + "; ".join(f"{basis} {words}" for basis, words in by_basis.items()))


@dataclass(frozen=True, slots=True)
class Pause:
    """A garbage collection of a launch's server, and the block that ran in the second in which it ended."""

    launch: MeasuredLaunch
    seconds: float
    objects: int
    block: BlockResult

    @property
    def others(self) -> list[BlockResult]:
        """The launch's other rounds at the same load."""
        return [block for block in cells(self.launch)[self.block.concurrency] if block.round != self.block.round]


def pauses(store: Store, file: Path) -> list[Pause]:
    """``file``: launch, the second of the log in which a collection ended (Unix time), seconds it took, objects."""
    launches = {launch.launch_id: launch for launch in store.measured_launches(store.study(None).id)}
    out = []
    with file.open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows):
            launch, second = launches[int(row["launch"])], int(row["ended_at"])
            (block,) = [b for b in launch.blocks if b.started_at < second + 1 and second < b.started_at + b.elapsed_s]
            out.append(Pause(launch, float(row["seconds"]), int(row["objects"]), block))
    return out


def ttft(block: BlockResult) -> float:
    """Mean time to first token in milliseconds."""
    return 1000 * statistics.fmean(r.ttft_s for r in block.requests if r.ttft_s is not None)


def halts(store: Store, file: Path) -> None:
    arms = {row.key: row.config.label() for row in store.arms(store.study(None).id)}
    print("\n## garbage collections of the servers: block, tok/s and mean TTFT in ms, the same launch's other rounds\n")
    for pause in pauses(store, file):
        block, *others = (f"{speed(b):.0f} tok/s {ttft(b):.0f} ms" for b in (pause.block, *pause.others))
        print(
            f"{pause.launch.launch_id} {arms[pause.launch.arm_key]}: {pause.seconds:.2f} s, {pause.objects} objects, "
            f"in @{pause.block.concurrency} round {pause.block.round}: {block}; others {', '.join(others)}"
        )


def captures(file: Path) -> None:
    """``file``: launches in order of time; seconds to capture the graphs of the prefill, of the target's decode or
    verify step, of the draft's steps and of its extension, for SGLang's ``scheduler_e2e`` (weights and graphs), until
    ready. Printed by what was captured: all graphs together, the scheduler, ready."""
    print("\n## capture of graphs, scheduler's start, to ready (s; launches in turn)\n")
    found: defaultdict[str, list[str]] = defaultdict(list)
    with file.open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows):
            parts = (row[name] for name in ("prefill_s", "target_s", "draft_s", "extend_s"))
            whole = sum(float(part) for part in parts if part)
            what = f"{row['speculation']}, sizes {row['sizes']}, prefill {row['prefill_backend']}"
            found[what].append(f"{whole:.1f}, {row['scheduler_s']}, {row['ready_s']}")
    for what, launches in found.items():
        print(f"{what}: " + "; ".join(launches))


def agreement(folder: Path) -> None:
    """Ours ÷ SGLang's client, and the means of both clients."""
    print("\n## our client against SGLang's: ratio of tok/s (95 %); means, ours and theirs\n")
    for server in json.loads((folder / "agree.json").read_text(encoding="utf-8")):
        for level in server["levels"]:
            found, pairs = level["ratio"], level["pairs"]
            means = [
                f"{words} " + " ".join(f"{scale * statistics.fmean(p[side][key] for p in pairs):.5g}" for side in SIDES)
                for words, key, scale in (("tok/s", "tok_s", 1), ("TPOT ms", "tpot_s", 1e3), ("TTFT ms", "ttft_s", 1e3))
            ]
            print(
                f"{server['name']} @{level['concurrency']}, {level['requests']} requests of {level['max_tokens']} "
                f"tokens, {len(pairs)} pairs: {found['estimate']:.4f} ({found['low']:.4f} to {found['high']:.4f}); "
                + "; ".join(means)
            )


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
    if (folder / RESIDENT).exists():
        with opened(folder / RESIDENT) as resident, opened(folder / STATIC) as static:
            pairings(resident, static)
            halts(resident, folder / "pauses.csv")
    if (folder / "graphs.csv").exists():
        captures(folder / "graphs.csv")
    if (folder / "agree.json").exists():
        agreement(folder)


if __name__ == "__main__":
    main()
