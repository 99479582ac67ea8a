"""What the controller costs per trial beside launching and measuring, on simulated servers and a real Ray.

Runs one study of ``--trials`` trials on the `tiny` profile, in a folder and a home of its own. The time between the
first launch and the end of the last stop, less the time in which an owner was at work for it (launch, probe, warm-up,
blocks, questions, stop), is what proposing, rows, analysis and events cost; it is divided by the trials. Prints a
line; with ``--json`` one object: {trials, launches, wall_s, owner_s, per_trial_s, worst_s, ray_call_s, limit_s,
within_limit}. ``worst_s`` is the longest pause between two calls; ``ray_call_s`` the mean time of an empty call, which
the owners' share contains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

from storage.records import TrialState
from storage.store import Store
from sweep import session
from sweep.cli.progress import PlainProgress
from sweep.config import Overrides, load_text
from sweep.pool import RayPool

LIMIT_S = 0.3
WORK = {"launch", "probe", "warm_up", "measure", "next_tokens", "stop"}
SPACE = """
name: overhead
engine: simulated
model: {path: org/model}
server: {args: {tp-size: 1, attention-backend: triton, page-size: 1, max-running-requests: 8}}
space:
  algorithm: [EAGLE3]
  draft_model: [{name: head, path: org/head}]
  num_steps: [1, 2, 3, 4, 5, 6, 7, 8]
  topk: [1, 2, 4, 8]
  num_draft_tokens: [4, 8, 16, 32]
workload: {prompts: builtin, per_category: 2, max_tokens: 16, concurrency: [1], repeats: 1}
objectives: [output_throughput@1]
budget: {trials: 30}
measurement: {calibrate_launches: 1, engine_default: false, confirm_top: 0, tolerance: 0.3}
hosts: [{name: here, kind: local, gpus: [0]}]
simulate: {profile: tiny, time_scale: 0.5}
"""


class TimedPool(RayPool):
    """Notes when the controller waited for an owner's work. One host, so that calls follow each other."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[float, float]] = []
        self.heartbeats: list[float] = []

    async def call(self, host: str, method: str, *args: Any) -> Any:
        begun = time.perf_counter()
        answer = await super().call(host, method, *args)
        ended = time.perf_counter()
        if method in WORK:
            self.spans.append((begun, ended))
        elif method == "heartbeat":
            self.heartbeats.append(ended - begun)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sweep-overhead-") as folder:
        os.environ["HOME"] = folder
        spec = load_text(SPACE, Overrides(trials=options.trials))
        with Store.open(f"sqlite:///{folder}/overhead.db") as store:
            study = session.create(store, spec, SPACE)
            pool = TimedPool()
            state = session.run(store, study, spec, lambda *_: PlainProgress(lambda line: None), pool)
            finished = sum(trial.state is TrialState.FINISHED for trial in store.trials(study.id))
            launches = len(store.launches(study.id))
    if state != "finished" or finished != options.trials:
        sys.exit(f"the study is {state} with {finished} of {options.trials} trials")
    wall = pool.spans[-1][1] - pool.spans[0][0]
    owner = sum(end - begin for begin, end in pool.spans)
    pauses = [after[0] - before[1] for before, after in zip(pool.spans, pool.spans[1:], strict=False)]
    answer = {
        "trials": finished,
        "launches": launches,
        "wall_s": round(wall, 3),
        "owner_s": round(owner, 3),
        "per_trial_s": round((wall - owner) / finished, 4),
        "worst_s": round(max(pauses), 4),
        "ray_call_s": round(sum(pool.heartbeats) / max(1, len(pool.heartbeats)), 4),
        "limit_s": LIMIT_S,
        "within_limit": (wall - owner) / finished <= LIMIT_S,
    }
    words = f"{answer['per_trial_s']:.3f} s per trial beside launch and measurement (limit {LIMIT_S} s)"
    sys.stdout.write((json.dumps(answer) if options.json else words) + "\n")


if __name__ == "__main__":
    main()
