"""The two recorded tables as measured launches."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from sweep.model import (
    BASELINE,
    ArmConfig,
    BlockResult,
    ClientHealth,
    MeasuredLaunch,
    RequestRecord,
    Role,
    Stage,
)

DATA = Path(__file__).parents[1] / "data"
TREES = {
    1: ArmConfig("EAGLE3", "drafter", 3, 1, 4),
    2: ArmConfig("EAGLE3", "drafter", 3, 4, 8),
    3: ArmConfig("EAGLE3", "drafter", 5, 4, 16),
}
_NAMES = {"baseline": 0, "s3k1d4": 1, "s3k4d8": 2, "s5k4d16": 3}
HALF_SPEED = {("s3k4d8", "4", "0"), ("s5k4d16", "4", "0"), ("s5k4d16", "16", "7")}
START = 1_750_000_000.0


def _request(
    index: int, prompt: str, category: str, end: float, tokens: int, steps: int | None, ttft: float | None = None
) -> RequestRecord:
    return RequestRecord(
        index=index,
        prompt_id=prompt,
        category=category,
        sent_s=0.0,
        ttft_s=ttft,
        end_s=end,
        output_tokens=tokens,
        token_source="meta",
        verify_steps=steps,
        correct_drafts=tokens - steps if steps else None,
        finish_reason="stop",
    )


def llama8b(*, without_half_speed: bool = False) -> tuple[list[MeasuredLaunch], dict[str, ArmConfig]]:
    """Four servers alive together, 8 rounds of every concurrency; trial numbers as in ``TREES``."""
    blocks: defaultdict[int, list[BlockResult]] = defaultdict(list)
    with (DATA / "llama8b_shaped.csv").open() as file:
        for line, row in enumerate(csv.DictReader(file)):
            if without_half_speed and (row["arm"], row["concurrency"], row["round"]) in HALF_SPEED:
                continue
            level, elapsed = int(row["concurrency"]), float(row["elapsed_s"])
            tokens = int(row["output_tokens"]) // level
            accept = row["spec_accept_length"]
            steps = round(tokens / float(accept)) if accept else None
            requests = tuple(_request(k, f"p{k}", "any", elapsed, tokens, steps) for k in range(level))
            client = ClientHealth(0.0, 0.0, 0.0, level)
            blocks[_NAMES[row["arm"]]].append(
                BlockResult(
                    Stage.SEARCH, level, int(row["round"]), "set", START + 1.5 * line, elapsed, requests, client
                )
            )
    configs = {0: BASELINE, **TREES}
    launches = [
        MeasuredLaunch(
            launch_id=number + 1,
            arm_key=configs[number].key,
            role=Role.CANDIDATE if number else Role.BASELINE,
            trial=number or None,
            host="h200",
            stage=Stage.SEARCH,
            sequence=number,
            started_at=START,
            blocks=tuple(found),
            pair=1,
        )
        for number, found in sorted(blocks.items())
    ]
    return launches, {config.key: config for config in configs.values()}


def smollm2() -> tuple[list[MeasuredLaunch], dict[str, ArmConfig], dict[int, ArmConfig]]:
    """One server after another on a host that varies; 10 prompts twice. Also trial -> configuration."""
    rows: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
    with (DATA / "smollm2_eagle3.csv").open() as file:
        for row in csv.DictReader(file):
            rows[int(row["run_order"])].append(row)
    trials: dict[ArmConfig, int] = {}
    launches = []
    for order, found in sorted(rows.items()):
        config = _config(found[0])
        baseline = config == BASELINE
        started = START + 150.0 * order
        blocks = []
        for repeat in sorted({row["repeat"] for row in found}):
            mine = [row for row in found if row["repeat"] == repeat]
            requests = tuple(
                _request(
                    k,
                    row["prompt_id"],
                    row["category"],
                    float(row["elapsed_s"]),
                    int(row["output_tokens"]),
                    int(float(row["spec_verify_ct"])) if row["spec_verify_ct"] else None,
                    float(row["ttft_s"]),
                )
                for k, row in enumerate(mine)
            )
            elapsed = sum(r.end_s for r in requests)
            client = ClientHealth(0.0, 0.0, 0.0, sum(r.output_tokens or 0 for r in requests))
            blocks.append(BlockResult(Stage.SEARCH, 1, int(repeat), "set", started + 60, elapsed, requests, client))
        launches.append(
            MeasuredLaunch(
                launch_id=order + 1,
                arm_key=config.key,
                role=Role.BASELINE if baseline else Role.CANDIDATE,
                trial=None if baseline else trials.setdefault(config, len(trials)),
                host="h200",
                stage=Stage.SEARCH,
                sequence=order,
                started_at=started,
                blocks=tuple(blocks),
            )
        )
    arms = {config.key: config for config in (BASELINE, *trials)}
    return launches, arms, {number: config for config, number in trials.items()}


def _config(row: dict[str, str]) -> ArmConfig:
    def number(name: str) -> int | None:
        return int(float(row[name])) if row[name] else None

    algorithm = None if row["algorithm"] == "NONE" else row["algorithm"]
    return ArmConfig(
        algorithm=algorithm,
        draft_model="drafter" if algorithm == "EAGLE3" else None,
        num_steps=number("num_steps"),
        topk=number("topk"),
        num_draft_tokens=number("num_draft_tokens"),
        cuda_graph=row["cuda_graph"] == "on",
    )
