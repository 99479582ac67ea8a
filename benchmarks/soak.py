"""A long study in which a third of the trials meet a fault: what is left running, lost, or scored wrongly?

Longer than 300 lines because it is one experiment: what is planned, done, and counted belongs on one page.

``--trials`` configurations of the simulated profile `tiny` on two local hosts, every one of them tried once. A seeded
third is struck: by a failure of the server itself that stays (``oom_at_capture``, ``http_500``, ...), that happens once
(a crash that is chance), or that must not matter (a server that ignores TERM, a child that moves away); or from
outside, in the middle of the trial: SIGKILL for the server, one of its children, its supervisor or the controller
(which is resumed at once), or a server that is frozen.

Counted at the end: ``orphans``, processes with our marker; ``lost_rows``, blocks that were stored before a controller
was killed and are missing or changed; ``wrong_scored``, trials that failed and have a value, completed without one, or
ended otherwise than their fault demands; ``optimum_found``: the best trial's true speed is at least OPTIMUM of the
best there is among the arms that were launched and can run. Prints a table; with ``--json`` one object last: {trials,
faults, orphans, lost_rows, wrong_scored, optimum_found, ...}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchers.simulated.truth import TruePrompt, load, simulate_block
from storage.store import Store
from sweep import session
from sweep.bench import health
from sweep.config import Overrides, StudySpec, load_text
from sweep.errors import SweepError, UsageError
from sweep.model import ArmConfig, Stage
from sweep.planning import make_plan
from sweep.pool import InlinePool

OPTIMUM = 0.95
STALL_S = 8.0
TIME_SCALE = 5.0
DRAFTER = "some/eagle3-head"
# Failures of the server, and how a trial must end that meets them on every launch.
STAYING = {
    "oom_at_capture": "launch_oom",
    "exit_at_start": "crashed",
    "crash_after_tokens": "crashed",
    "hang_at_capture": "launch_timeout",
    "stall": "hung",
    "http_500": "measurement_invalid",
    "truncated_json": "measurement_invalid",
}
ONCE = ("crash_after_tokens", "exit_at_start", "reset")
HARMLESS = ("ignore_term", "fork_away", "escape_session", "close_stdout")
OUTSIDE = ("kill_server", "kill_child", "kill_supervisor", "kill_controller", "freeze_server")
Numbers = tuple[int, int, int]  # num_steps, topk, num_draft_tokens


def arms(wanted: int) -> list[Numbers]:
    """That many configurations that can be served (the deepest path fits): chains and trees, fewer steps first."""
    found: list[Numbers] = []
    for steps in range(1, 33):
        for topk in (1, 2, 4, 8):
            largest = 1 + topk + (steps - 1) * topk * topk
            sizes = [steps + 1] if topk == 1 else [n for n in (2, 4, 8, 12, 16, 24, 32, 48) if steps < n <= largest]
            found += [(steps, topk, size) for size in sizes]
        if len(found) >= wanted:
            break
    return found[:wanted]


@dataclass
class Plan:
    """Who is struck by what. ``fault``: arm -> (way, kind)."""

    arms: list[Numbers]
    fault: dict[Numbers, tuple[str, str]]

    @classmethod
    def draw(cls, wanted: int, seed: int) -> Plan:
        rng = random.Random(seed)
        chosen = arms(wanted)
        fault = {}
        for arm in rng.sample(chosen, len(chosen) // 3):
            way = rng.choice(("staying", "once", "harmless", "outside", "outside"))
            kinds = {"staying": tuple(STAYING), "once": ONCE, "harmless": HARMLESS, "outside": OUTSIDE}[way]
            fault[arm] = (way, rng.choice(kinds))
        return cls(chosen, fault)

    def expected(self, arm: Numbers) -> str:
        way, kind = self.fault.get(arm, ("", ""))
        return STAYING[kind] if way == "staying" else "complete"

    def failures(self) -> list[dict[str, Any]]:
        """The server's own, for SPECSWEEP_SIM."""
        out = []
        for (steps, topk, size), (way, kind) in self.fault.items():
            if way != "outside":
                when = {"num_steps": steps, "topk": topk, "num_draft_tokens": size}
                out.append({"kind": kind, "when": when, "tokens": 20, "after_tokens": 5, "requests": 10**9})
                if way == "once":
                    out[-1]["times"] = 1
        return out

    @staticmethod
    def truths(folder: Path, wanted: Iterable[Numbers]) -> dict[Numbers, float]:
        """Tokens per second of these arms' blocks, without any noise: the very prompts, the server's own draws."""
        spec = load_text((folder / "space.yaml").read_text(), Overrides(), source="space.yaml")
        block = make_plan(spec, Stage.SEARCH).blocks[0]
        prompts = [TruePrompt(p.messages[-1]["content"], p.category, 40) for p in block.prompts]
        found = {}
        for steps, topk, size in wanted:
            config = ArmConfig("EAGLE3", DRAFTER, steps, topk, size)
            true = simulate_block(load("tiny"), config, prompts, 1, block.max_tokens, ignore_eos=block.ignore_eos)
            found[(steps, topk, size)] = true.throughput
        return found

    def space(self, folder: Path) -> dict[str, Any]:
        return {
            "name": "soak",
            "engine": "simulated",
            "model": {"path": "meta-llama/Llama-3.1-8B-Instruct"},
            "server": {
                "args": {
                    "attention-backend": "triton",
                    "page-size": 1,
                    "max-running-requests": 8,
                    "cuda-graph-bs-decode": [1, 2, 4, 8],
                },
                "env": {"SPECSWEEP_SIM": json.dumps({"failures": self.failures()})},
            },
            "space": {
                "algorithm": ["EAGLE3"],
                "draft_model": [{"name": "head", "path": DRAFTER}],
                "num_steps": sorted({arm[0] for arm in self.arms}),
                "topk": sorted({arm[1] for arm in self.arms}),
                "num_draft_tokens": sorted({arm[2] for arm in self.arms}),
            },
            "workload": {
                "categories": ["code", "writing"],
                "per_category": 1,
                "max_tokens": 60,
                "concurrency": [1],
                "repeats": 1,
                "ignore_eos": True,
            },
            "objectives": ["output_throughput@1"],
            "budget": {"trials": len(self.arms)},
            "sampler": "tpe",  # takes all that is known to be good first, and does not end before
            "known_good": [
                {"algorithm": "EAGLE3", "num_steps": steps, "topk": topk, "num_draft_tokens": size}
                for steps, topk, size in self.arms
            ],
            "measurement": {
                "calibrate_launches": 1,
                "baseline_every": 8,
                "engine_default": False,
                "confirm_top": 0,
                "max_attempts": 4,
                "pairing": "bracketed",
                "tolerance": 0.99,
                "screening": False,
                "stall_timeout_s": STALL_S,
            },
            # Slow enough that a busy machine changes little of what is measured.
            "simulate": {"profile": "tiny", "time_scale": TIME_SCALE},
            "hosts": [
                {"name": name, "kind": "local", "gpus": 1, "base_dir": str(folder / name), "python": sys.executable}
                for name in ("gpu-a", "gpu-b")
            ],
        }


# ---------------------------------------------------------------------------------------------- the controller


class Silent:
    """A listener that says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_event(self, event: Any) -> None:
        return None


def controller(folder: Path) -> int:
    """Start or carry on the study, owners in this process."""
    health.LAG_P50_LIMIT_S = health.LAG_P99_LIMIT_S = 60.0  # whether this machine is busy is no question here
    health.CPU_SHARE_LIMIT = 10.0
    try:
        with Store.open(f"sqlite:///{folder / 'soak.db'}") as store:
            if store.studies():
                study = store.study("soak")
                spec = StudySpec.parse(study.spec)
            else:
                text = (folder / "space.yaml").read_text()
                spec = load_text(text, Overrides(), source="space.yaml")
                study = session.create(store, spec, text)
            return 0 if session.run(store, study, spec, lambda *_: Silent(), InlinePool()) == "finished" else 130
    except SweepError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


# ---------------------------------------------------------------------------------------------- the faults


@dataclass
class Soak:
    """One run: strikes from outside, resumes, and counts."""

    folder: Path
    plan: Plan
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    struck: set[Numbers] = field(default_factory=set)
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # blocks stored when a controller died
    due: dict[int, float] = field(default_factory=dict)  # launch -> when it is struck
    resumes: int = 0
    process: subprocess.Popen[bytes] | None = None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        path = self.folder / "soak.db"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []  # its tables are being made

    def blocks(self) -> dict[int, tuple[Any, ...]]:
        rows = self.query(
            "SELECT b.id, b.launch_id, b.elapsed_s, b.output_tokens, b.invalid, count(r.id), sum(r.end_s) "
            "FROM blocks b LEFT JOIN requests r ON r.block_id = b.id GROUP BY b.id"
        )
        return {row[0]: row[1:] for row in rows}

    def spawn(self) -> None:
        command = [sys.executable, __file__, "--controller", str(self.folder)]
        environment = {**os.environ, "HOME": str(self.folder)}
        with (self.folder / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def run(self, limit_s: float) -> None:
        """Until the study is finished."""
        deadline = time.monotonic() + limit_s
        self.spawn()
        assert self.process is not None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                if self.process.returncode == 0:
                    return
                if self.process.returncode == UsageError.exit_code:
                    raise SystemExit((self.folder / "controller.log").read_text())
                self.seen |= self.blocks()
                self.resumes += 1
                self.spawn()
            for launch, config in self.open_launches():
                arm = (config["num_steps"], config["topk"], config["num_draft_tokens"])
                way, kind = self.plan.fault.get(arm, ("", ""))
                if way != "outside" or arm in self.struck:
                    continue
                due = self.due.setdefault(launch, time.monotonic() + self.rng.uniform(0.0, 2.0))
                # Where its process is not there yet it is struck at the next look.
                if time.monotonic() >= due and self.strike(kind, launch):
                    self.struck.add(arm)
                    self.done[kind] += 1
            time.sleep(0.05)  # the rows of another process are seen by looking
        self.process.kill()
        raise SystemExit(f"not finished in {limit_s:g} s: {(self.folder / 'controller.log').read_text()[-2000:]}")

    def open_launches(self) -> list[tuple[int, dict[str, Any]]]:
        rows = self.query(
            "SELECT l.id, a.config FROM launches l JOIN arms a ON a.id = l.arm_id "
            "WHERE l.state != 'ended' AND l.trial_id NOT NULL"
        )
        return [(row[0], json.loads(row[1])) for row in rows]

    def strike(self, kind: str, launch: int) -> bool:
        """Do it; False where the launch has no process any more (or yet)."""
        assert self.process is not None
        if kind == "kill_controller":
            self.process.kill()
            self.process.wait()
            return True
        for path in self.folder.glob(f"gpu-?/*/runs/*-{launch}.*/state.json"):
            with contextlib.suppress(OSError, ValueError):
                state = json.loads(path.read_text())
                children = [p["pid"] for p in state["processes"] if p["pid"] != state["server"]["pid"]]
                pid = {
                    "kill_server": state["server"]["pid"],
                    "freeze_server": state["server"]["pid"],
                    "kill_supervisor": state["supervisor"]["pid"],
                    "kill_child": children[0] if children else 0,
                }[kind]
                if pid and not state["finished"]:
                    os.kill(pid, signal.SIGSTOP if kind == "freeze_server" else signal.SIGKILL)
                    return True
        return False

    def marked(self) -> list[int]:
        """Live processes with our marker and a base folder of this run."""
        wanted = f"SPECSWEEP_BASE={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def count(self) -> dict[str, Any]:
        now = self.blocks()
        lost = sum(now.get(number) != row for number, row in self.seen.items())
        wrong, values = [], {}
        rows = self.query(
            "SELECT a.config, t.verdict, t.objective_values, t.reason FROM trials t JOIN arms a ON a.id = t.arm_id"
        )
        for text, verdict, figures, reason in rows:
            config = json.loads(text)
            arm = (config["num_steps"], config["topk"], config["num_draft_tokens"])
            value = json.loads(figures or "{}").get("output_throughput@1")
            if verdict != self.plan.expected(arm) or (value is None) == (verdict == "complete"):
                wrong.append(f"{arm}: {verdict} ({reason}), fault {self.plan.fault.get(arm)}")
            if value is not None:
                values[arm] = value
        launched = {(c["num_steps"], c["topk"], c["num_draft_tokens"]) for c in (json.loads(row[0]) for row in rows)}
        inside = [arm for arm, (way, _) in self.plan.fault.items() if way != "outside" and arm in launched]
        able = [arm for arm in launched if self.plan.expected(arm) == "complete"]
        # Where an out-of-memory rules out planned arms, the sampler fills the budget with others of the space.
        truths = self.plan.truths(self.folder, launched)
        top = max(values, key=lambda arm: values[arm]) if values else None
        return {
            "trials": len(rows),
            "faults": len(inside) + len(self.struck),  # those that were met; a short trial may end before its strike
            "faults_planned": len(self.plan.fault),
            "orphans": len(self.marked()),
            "lost_rows": lost,
            "wrong_scored": len(wrong),
            "optimum_found": top is not None and truths[top] >= OPTIMUM * max(truths[arm] for arm in able),
            "top": [(arm, round(values[arm]), round(truths[arm])) for arm in sorted(values, key=values.get)[-3:]],
            "best_truth": max((round(truths[arm]), arm) for arm in able),
            "wrong": wrong,
            "blocks_checked": len(self.seen),
            "resumes": self.resumes,
            "struck_from_outside": dict(self.done),
            "launches": self.query("SELECT count(*) FROM launches")[0][0],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=7200.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--controller", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.controller is not None:
        sys.exit(controller(args.controller))
    plan = Plan.draw(args.trials, args.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "space.yaml").write_text(json.dumps(plan.space(folder)))
        begun = time.monotonic()
        soak = Soak(folder, plan, random.Random(args.seed))
        soak.run(args.limit_s)
        result = soak.count() | {"seconds": round(time.monotonic() - begun)}
        for pid in soak.marked():
            os.kill(pid, signal.SIGKILL)
    kinds = Counter(f"{way}: {kind}" for way, kind in plan.fault.values())
    lines = [f"{kind:36}{n:4}" for kind, n in sorted(kinds.items())]
    lines += [f"{key:20}{value}" for key, value in result.items()]
    sys.stdout.write("\n".join([*lines, *([json.dumps(result)] if args.json else [])]) + "\n")
    sys.exit(0 if not (result["orphans"] or result["lost_rows"] or result["wrong_scored"]) else 1)


if __name__ == "__main__":
    main()
