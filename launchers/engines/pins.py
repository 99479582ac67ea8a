"""Pins that a fair comparison needs and the user left open.

Unpinned, SGLang chooses several arguments differently when speculation is on, so a baseline and a candidate would not
run the same server: the attention backend by topk, the decode CUDA-graph batch sizes by another list, the number of
running requests reset to 48.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers.engines.flags import table_for
from sweep.model import FlagValue

# SGLang resets max_running_requests to this with speculation, and to nothing of the kind without (0.5.17, 0.5.23).
SPECULATIVE_MAX_RUNNING = 48
_GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)


@dataclass(frozen=True, slots=True)
class Pin:
    """A server argument we add to every arm, and why."""

    flag: str
    value: FlagValue
    why: str


def recommended_pins(
    server_args: Mapping[str, FlagValue], concurrency_levels: Sequence[int], version: str
) -> tuple[Pin, ...]:
    """What to add to the user's pins so that every arm runs the same server but for speculation. Pure.

    Nothing the user pinned is touched. ``concurrency_levels`` are the workload's; graphs are captured for each.
    """
    table, _ = table_for(version)
    given = {name for name, value in table.normalise(server_args).items() if value is not None}
    top = max((1, *concurrency_levels))
    pins: list[Pin] = []
    if not given & {"attention-backend", "prefill-attention-backend", "decode-attention-backend"}:
        pins.append(
            Pin(
                "attention-backend",
                "triton",
                "left open, SGLang chooses by topk (on Hopper fa3 for topk 1, flashinfer above), so that topk 1 and 4 "
                "would run different kernels; triton runs every tree. Pin the backend you serve with to measure it.",
            )
        )
    if "page-size" not in given:
        pins.append(
            Pin(
                "page-size", 1, "some backends raise it, and topk above 1 with pages above 1 is refused by most of them"
            )
        )
    running = max(SPECULATIVE_MAX_RUNNING, top)
    if "max-running-requests" not in given:
        pins.append(
            Pin(
                "max-running-requests",
                running,
                f"left open, speculation is limited to {SPECULATIVE_MAX_RUNNING} running requests and the baseline "
                "is not: above that a candidate would only queue",
            )
        )
    else:
        value = table.normalise(server_args)["max-running-requests"]
        running = value if isinstance(value, int) else running
    if not given & {"cuda-graph-bs-decode", "cuda-graph-config"} and not _graphs_off(table.normalise(server_args)):
        limit = table.normalise(server_args).get("cuda-graph-max-bs-decode")
        limit = limit if isinstance(limit, int) else running
        sizes = sorted({size for size in (*_GRAPH_SIZES, *concurrency_levels, limit) if size <= limit})
        pins.append(
            Pin(
                "cuda-graph-bs-decode",
                tuple(sizes),
                "left open, the list of captured batch sizes differs with speculation, and so does the padding; "
                "fewer sizes also start quicker",
            )
        )
    return tuple(pins)


def _graphs_off(args: Mapping[str, FlagValue]) -> bool:
    return args.get("cuda-graph-backend-decode") == "disabled"
