"""The search through the whole pipeline: does a study end by itself, soon, and with the right configuration?

`python benchmarks/pipeline.py [--seeds 5] [--json]`

For each seed: `sweep start SPACE --simulate` on two drafters that differ, 780 configurations and no budget. The study
must end by its own stop rule. Its winner (the first of `sweep best`) is judged by the simulator's noise-free throughput
(`launchers.simulated.truth`) against the best of the space. Real processes, real Ray, real HTTP; launches differ by
0.8 %, blocks by 1 %. The last line of ``--json`` is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from launchers.simulated import server, truth
from search_spaces.space import SearchSpace
from sweep.bench.workload import BUILTIN, load_prompts
from sweep.config import load_text
from sweep.model import ArmConfig

CATEGORIES = ("code", "math", "writing", "question_answering", "summarisation", "translation")
MAX_TOKENS = 96
# Paths of the drafters -> exponent of their acceptance: the second is right less often at every depth.
DRAFTERS = {"/drafters/first-eagle3": 1.0, "/drafters/second-eagle3": 1.12}
SPACE: dict[str, Any] = {
    "name": "pipeline",
    "model": {"path": "meta-llama/Llama-3.1-8B-Instruct"},
    "server": {
        "args": {
            "attention-backend": "triton",
            "page-size": 1,
            "max-running-requests": 8,
            "cuda-graph-bs-decode": [1, 2, 4, 8],
        }
    },
    "space": {
        "algorithm": ["EAGLE3"],
        "draft_model": [{"name": Path(path).name, "path": path} for path in DRAFTERS],
        "num_steps": list(range(1, 11)),
        "topk": [1, 2, 4, 8],
        "num_draft_tokens": [2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64],
        "cuda_graph": [True, False],
    },
    "workload": {
        "categories": list(CATEGORIES),
        "per_category": 6,  # a prompt is accepted the same way every time: more of them, not more rounds
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream_interval": 4,
        "concurrency": [1],
        "repeats": 1,
    },
    "objectives": ["output_throughput@1"],
    "hosts": [{"name": "gpu", "kind": "local", "gpus": 1}],
    "simulate": {"profile": "h200-llama8b", "time_scale": 0.15},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One study. ``regret``: shortfall of its winner's noise-free throughput from the best of the space (fraction);
    ``launches`` by what they were for; ``gain`` as reported and as it truly is, over no speculation (fractions)."""

    seed: int
    ended: str
    winner: str
    best: str
    regret: float
    launches: dict[str, int]
    reported_gain: float
    true_gain: float
    inside: bool
    seconds: float


def profile() -> dict[str, Any]:
    """The shipped H200 profile with two drafters that differ, quicker launches and noise."""
    known = truth.load("h200-llama8b")
    drafters = [
        {"match": f"*{Path(path).name}*", "architecture": "LlamaForCausalLMEagle3", "exponent": exponent}
        for path, exponent in DRAFTERS.items()
    ]
    return {
        **known,
        "name": "pipeline",
        "drafters": [*drafters, *known["drafters"]],
        "launch_speedup": 60.0,
        "effects": {"launch_cv": 0.008, "block_cv": 0.01},
    }


def true_throughput(config: ArmConfig) -> float:
    """Noise-free output tokens/s at concurrency 1 on this workload's lengths and prompt categories."""
    paths = {Path(path).name: path for path in DRAFTERS}
    named = replace(config, draft_model=paths.get(config.draft_model or ""))
    return truth.throughput(_PROFILE, named, 1, prompt_tokens=_PROMPT_TOKENS, output_tokens=MAX_TOKENS)


def prompt_tokens() -> int:
    """Of the workload's prompts, templated, as the simulated server counts them: their mean."""
    prompts = load_prompts(BUILTIN, CATEGORIES).prompts
    return round(
        statistics.fmean(len(server.encode(server.chat_prompt([dict(m) for m in p.messages]))) for p in prompts)
    )


_PROFILE = profile()
_PROMPT_TOKENS = prompt_tokens()


def run(seed: int, folder: Path, **changes: Any) -> Outcome:
    """One study in this folder. ``changes`` replace keys of :data:`SPACE`. RuntimeError with what it said where it
    failed."""
    space = {**SPACE, **changes, "seed": seed}
    (folder / "space.yaml").write_text(yaml.safe_dump(space))
    (folder / "profile.json").write_text(json.dumps(_PROFILE))
    env = {**os.environ, "HOME": str(folder), "SWEEP_DB": f"sqlite:///{folder / 'sweep.db'}"}
    begun = time.monotonic()
    answer = _sweep(folder, env, "start", "space.yaml", f"--simulate={folder / 'profile.json'}", "--json")
    seconds = time.monotonic() - begun
    first = answer["best"][0]
    status = _sweep(folder, env, "status", "--json")
    winner = ArmConfig.from_dict(first["effective"])
    everything = SearchSpace.from_spec(load_text(yaml.safe_dump(space))).candidates
    values = {config: true_throughput(config) for config in everything}
    best = max(values, key=lambda config: values[config])
    true_gain = true_throughput(winner) / true_throughput(ArmConfig()) - 1.0
    launches = status["launches"]
    return Outcome(
        seed=seed,
        ended=(status["search"]["ended"] or {}).get("reason", "not"),
        winner=winner.label(),
        best=best.label(),
        regret=1.0 - true_throughput(winner) / values[best],
        launches={"search": launches["search"], "total": launches["total"]},
        reported_gain=first["gain"]["estimate"],
        true_gain=true_gain,
        inside=first["gain"]["low"] <= true_gain <= first["gain"]["high"],
        seconds=seconds,
    )


def _sweep(folder: Path, env: dict[str, str], *args: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "sweep", *args], cwd=folder, env=env, capture_output=True, text=True, timeout=1200
    )
    if done.returncode:
        raise RuntimeError(f"sweep {args[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many studies")
    parser.add_argument("--json", action="store_true", help="one JSON document as the last line")
    asked = parser.parse_args()
    count = len(SearchSpace.from_spec(load_text(yaml.safe_dump(SPACE))).candidates)
    say(f"{count} configurations")
    say("seed  ended    search launches  all launches  winner                        true regret  gain reported / true")
    outcomes: list[Outcome] = []
    for seed in range(1, asked.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            found = run(seed, Path(folder))
        outcomes.append(found)
        say(
            f"{seed:>4}  {found.ended:<8} {found.launches['search']:>15}  {found.launches['total']:>12}  "
            f"{found.winner:<28}  {100 * found.regret:>9.2f} %  {100 * found.reported_gain:+.1f} % / "
            f"{100 * found.true_gain:+.1f} %{'' if found.inside else ' (outside its interval)'}"
        )
    if asked.json:
        summary = {
            "configurations": count,
            "decided": all(one.ended == "decided" for one in outcomes),
            "most_search_launches": max(one.launches["search"] for one in outcomes),
            "median_search_launches": statistics.median(one.launches["search"] for one in outcomes),
            "largest_regret": max(one.regret for one in outcomes),
            "studies": [asdict(one) for one in outcomes],
        }
        say(json.dumps(summary, allow_nan=False))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
