"""A simulated server's clock may run faster or slower than ours; what is recorded is in its own seconds."""

from __future__ import annotations

from dataclasses import replace

from sweep.model import BlockResult, BlockSpec


def in_real_time(spec: BlockSpec, time_scale: float) -> BlockSpec:
    """A block whose arrivals are meant in the engine's clock, as this client must send them."""
    return spec if spec.request_rate is None else replace(spec, request_rate=spec.request_rate / time_scale)


def in_engine_time(block: BlockResult, time_scale: float) -> BlockResult:
    """A block's times in seconds of the engine's clock; ``time_scale`` is real seconds for one of those, 1 for a real
    engine. When the block was valid and how late the client was are judged before, in real time."""
    if time_scale == 1.0:
        return block
    rate = 1.0 / time_scale
    requests = tuple(
        replace(
            request,
            sent_s=request.sent_s * rate,
            end_s=request.end_s * rate,
            ttft_s=None if request.ttft_s is None else request.ttft_s * rate,
        )
        for request in block.requests
    )
    return replace(block, elapsed_s=block.elapsed_s * rate, requests=requests)
