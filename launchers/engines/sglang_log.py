"""Reads an SGLang server's log while it grows: phase, ready, flags. Knows the words of 0.5.17 and 0.5.23.

Every pattern is anchored at the start of a message, after the ``[date time rank]`` prefix, so that a prompt or a file
name that happens to hold the same words is never taken for the server's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from launchers.logtext import LONGEST, messages
from sweep.model import Flag, Phase
from sweep.seams import LogState

READY = re.compile(r"The server is fired up and ready to roll!")
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"server_args="), Phase.CONFIG),
    (re.compile(r"(?:Init torch distributed|Load weight) begin"), Phase.WEIGHTS),
    (re.compile(r"[\w ]+ is allocated\. dtype|Memory pool end|Post-capture KV sizing"), Phase.KV_POOL),
    (re.compile(r"Capture (?:[\w-]+ )*(?:cuda|CUDA) graph begin"), Phase.GRAPH_CAPTURE),
    (re.compile(r"max_total_num_tokens=|(?:INFO: +)?(?:Started server process|Uvicorn running on)"), Phase.WARMUP),
    (READY, Phase.READY),
)
_ORDER = {phase: i for i, phase in enumerate(Phase)}
# Kernel compilation and autotuning: minutes without a line are normal (DeepGEMM says 10 to 20 itself).
SLOW = re.compile(r"Entering DeepGEMM JIT|Running FlashInfer autotune|DeepGEMM warmup", re.IGNORECASE)
_SERVER_ARGS = re.compile(r"server_args=")
_GRAPHS_OFF = re.compile(
    r"['\"]?decode['\"]?[=:] ?(?:PhaseConfig\(|\{)['\"]?backend['\"]?[=:] ?['\"]disabled"
    r"|['\"]?cuda_graph_backend_decode['\"]?[=:] ?['\"]disabled"
    r"|['\"]?disable_(?:decode_)?cuda_graph['\"]?[=:] ?True"
)
_DECODE_WITHOUT_GRAPH = re.compile(r"Decode batch[,.].*\bcuda graph: False\b")
_RETRACTION = re.compile(r"KV cache pool is full\. (?:Retract|Beam)")
_FLUSHED = re.compile(r"Cache flushed successfully")
# uvicorn binds only after weights and graphs are done; SGLang then hangs with the memory held and ignores TERM.
PORT_TAKEN = re.compile(r"(?:ERROR: +)?\[Errno 98\] error while attempting to bind on address")


def log_reader() -> Callable[[str], LogState]:
    """A fresh reader: feed it every line in order, it returns what is known so far.

    Flags are those since the last flush of the prefix cache, which precedes every block. ``cuda_graph_off`` is raised
    by decode lines only (prefill lines say ``cuda graph: False`` as a matter of course) and only where the server was
    asked for graphs.
    """
    state = LogState()
    graphs_asked = True

    def feed(line: str) -> LogState:
        for text in messages(line):
            take(text)
        return state

    def take(text: str) -> None:
        nonlocal state, graphs_asked
        if _SERVER_ARGS.match(text):
            graphs_asked = _GRAPHS_OFF.search(text) is None
        phase, ready, slow_ok = state.phase, state.ready, state.slow_ok
        for pattern, reached in _PHASES:
            if pattern.match(text):
                slow_ok = False  # the silent step is over
                if _ORDER[reached] > _ORDER[phase]:
                    phase = reached
                ready = ready or reached is Phase.READY
                break
        else:
            slow_ok = slow_ok or SLOW.match(text) is not None
        flags = dict(state.flags)
        if _FLUSHED.match(text):
            flags = {}
        elif graphs_asked and _DECODE_WITHOUT_GRAPH.match(text):
            flags.setdefault(Flag.CUDA_GRAPH_OFF.value, text[:LONGEST])
        elif _RETRACTION.match(text):
            flags.setdefault(Flag.RETRACTIONS.value, text[:LONGEST])
        fatal = state.fatal or (text[:LONGEST] if PORT_TAKEN.match(text) else None)
        state = LogState(phase, ready, slow_ok, flags, fatal)

    return feed
