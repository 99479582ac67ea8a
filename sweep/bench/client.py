"""The benchmark worker: sends one block of prompts to a running server and records what came back, when.

It runs an event loop of its own, so that it can be called from any thread. While a block is measured nothing is
parsed and nothing is computed: requests are built before, answers are read after.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sweep.bench.health import Sampler, no_collection
from sweep.bench.http import Target, body_stream, open_client, round_trip, status_words, transport_words
from sweep.bench.parts import Part, Seat, nothing, stall_words, whole
from sweep.bench.prepare import Prepared, count_tokens, prepare_async
from sweep.bench.tape import CHAT, Tape
from sweep.bench.wire import PATHS, Answer, chat_body, check_count, generate_body, read_answer
from sweep.errors import HostError
from sweep.model import BlockResult, BlockSpec, Prompt, RequestRecord


@dataclass(slots=True)
class _Sent:
    """One request on its way: clock readings of ``time.perf_counter``."""

    index: int
    prompt: Prompt
    request: httpx.Request
    tape: Tape
    sent_at: float = 0.0
    ended_at: float = 0.0
    error: str | None = None


def run_block(
    target: Target,
    spec: BlockSpec,
    *,
    prepared: Prepared | None = None,
    path_capacity: float | None = None,
    cancel: threading.Event | None = None,
    on_request: Callable[[int], None] | None = None,
    processes: int = 1,
) -> BlockResult:
    """Measure one block. Never raises for what a server does: failures are in the rows and in ``invalid``.

    Closed loop: ``spec.concurrency`` requests in flight, prompts taken in the given order. With ``spec.request_rate``
    the loop is open: arrivals are Poisson with ``spec.seed``, nothing waits for a free slot, and ``concurrency`` is
    only the block's label.

    ``prepared`` spares tokenizing the same prompts again; ``path_capacity`` (chunks/s, as measured by the transport)
    is carried and judged; ``cancel`` ends the block early and makes it invalid; ``on_request`` is told the number of
    requests done so far, in the loop's thread, and must return at once. With ``processes`` above 1 the same load
    comes from so many processes (:mod:`sweep.bench.crew`); ``on_request`` is for one process only.
    """

    async def run() -> BlockResult:
        async with open_client(target) as client:
            try:
                ready = prepared or await prepare_async(client, spec.prompts, spec.endpoint, spec.chat_template_args)
            except HostError as error:
                return nothing(spec, str(error), path_capacity, processes)
            lost = None
            if processes > 1:
                from sweep.bench.crew import run_crew

                started_at, parts, lost = await run_crew(target, spec, ready, processes, cancel)
            else:
                started_at, part = await _alone(client, spec, ready, cancel, on_request)
                parts = [part]
        return whole(
            spec,
            parts,
            started_at=started_at,
            prompt_format=ready.prompt_format,
            path_capacity=path_capacity,
            processes=processes,
            lost=lost,
        )

    if processes > 1 and on_request is not None:
        raise ValueError("on_request is told by one process only")
    return asyncio.run(run())


async def _alone(
    client: httpx.AsyncClient,
    spec: BlockSpec,
    prepared: Prepared,
    cancel: threading.Event | None,
    on_request: Callable[[int], None] | None,
) -> tuple[float, Part]:
    started_at = 0.0

    async def begin() -> float:
        nonlocal started_at
        started_at = time.time()
        return time.perf_counter()

    def hangs(moved: float, waiting: bool) -> bool:
        return waiting and spec.stall_s is not None and time.perf_counter() - moved > spec.stall_s

    seat = Seat(0, 1, begin, iter(range(len(spec.prompts))), hangs)
    part = await run_part(client, spec, prepared, seat, cancel, on_request)
    return started_at, part


async def run_part(
    client: httpx.AsyncClient,
    spec: BlockSpec,
    prepared: Prepared,
    seat: Seat,
    cancel: threading.Event | None,
    on_request: Callable[[int], None] | None = None,
) -> Part:
    """What falls to this process of a block, from its requests to its rows."""
    return await _Running(client, spec, prepared, seat, cancel, on_request).run()


class _Running:
    """One run of :func:`run_part`."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        spec: BlockSpec,
        prepared: Prepared,
        seat: Seat,
        cancel: threading.Event | None,
        on_request: Callable[[int], None] | None,
    ) -> None:
        self.client = client
        self.spec = spec
        self.prepared = prepared
        self.seat = seat
        self.sampler = Sampler(cancel)
        self.on_request = on_request
        self.sent: list[_Sent] = []
        self.done = 0
        self.stalled = False

    async def run(self) -> Part:
        waiting = [self._build(i, prompt) for i, prompt in enumerate(self.spec.prompts)]
        rtt = await round_trip(self.client)
        origin = await self.seat.begin()
        late = max(0.0, time.perf_counter() - origin)
        self.sampler.start()
        try:
            with no_collection():
                await self._drive(waiting, origin)
        finally:
            lag_p50, lag_p99, cpu = self.sampler.stop()
        rows = [await self._record(sent, origin) for sent in self.sent]
        return Part(
            rows=tuple(rows),
            lag_p50_s=lag_p50,
            lag_p99_s=max(lag_p99, late),
            cpu_share=cpu,
            rtt_s=rtt,
            stalled=self.stalled,
            cancelled=self.sampler.cancelled.is_set(),
        )

    def _build(self, index: int, prompt: Prompt) -> _Sent:
        if self.spec.endpoint == CHAT:
            body = chat_body(prompt, self.spec, index, self.prepared.model)
        else:
            body = generate_body(self.prepared.sources[prompt.id], self.spec, index)
        request = self.client.build_request("POST", PATHS[self.spec.endpoint], content=json.dumps(body).encode())
        return _Sent(index, prompt, request, Tape(self.spec.endpoint))

    async def _drive(self, waiting: list[_Sent], origin: float) -> None:
        """Send everything; returns when all have ended or the block was cancelled."""
        if self.spec.request_rate is None:
            slots = range(self.seat.number, min(self.spec.concurrency, len(waiting)), self.seat.of)
            jobs = [self._worker(waiting) for _ in slots]
        else:
            jobs = [self._open_loop(waiting, origin, self.spec.request_rate)]
        work = asyncio.gather(*jobs)
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.sampler.cancelled.wait())]
        if self.spec.stall_s is not None:
            ends.append(asyncio.ensure_future(self._stall(self.spec.stall_s)))
        await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not work.done():
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not self.sampler.cancelled.is_set() and not self.stalled:
            work.result()  # a defect of ours must not look like a finished block

    async def _stall(self, limit_s: float) -> None:
        """Returns when requests are on their way and no stream has moved for ``limit_s``: the server hangs."""
        while not self.stalled:
            await asyncio.sleep(min(1.0, limit_s / 4))
            moved = max((max(s.sent_at, s.tape.last_at, s.ended_at) for s in self.sent), default=0.0)
            waiting = any(not s.ended_at for s in self.sent)
            self.stalled = self.seat.hangs(moved, waiting)

    async def _worker(self, waiting: list[_Sent]) -> None:
        for index in self.seat.queue:
            await self._request(waiting[index])

    async def _open_loop(self, waiting: list[_Sent], origin: float, rate: float) -> None:
        """All processes draw the same arrivals; each keeps every ``of``-th of them."""
        arrivals = random.Random(self.spec.seed or 0)
        due = origin
        async with asyncio.TaskGroup() as group:
            for sent in waiting:
                due += arrivals.expovariate(rate)
                if sent.index % self.seat.of != self.seat.number:
                    continue
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self._request(sent))

    async def _request(self, sent: _Sent) -> None:
        self.sent.append(sent)
        clock, feed = time.perf_counter, sent.tape.feed
        sent.sent_at = clock()
        try:
            async with asyncio.timeout(self.spec.timeout_s):
                response = await self.client.send(sent.request, stream=True)
                try:
                    if response.status_code != 200:
                        sent.error = status_words(response.status_code, await response.aread())
                    else:
                        async for data in body_stream(response):
                            feed(clock(), data)
                finally:
                    await response.aclose()
        except TimeoutError:
            chunks = sent.tape.count()
            sent.error = f"stalled: no end within {self.spec.timeout_s:g} s, {chunks} chunks came"
        except httpx.TransportError as error:
            sent.error = transport_words(error, sent.tape.count())
        except asyncio.CancelledError:
            chunks = sent.tape.count()
            sent.error = f"{stall_words(self.spec)}, {chunks} chunks came before" if self.stalled else "cancelled"
            raise
        finally:
            sent.ended_at = clock()
        self.done += 1
        if self.on_request is not None:
            self.on_request(self.done)

    async def _record(self, sent: _Sent, origin: float) -> RequestRecord:
        if sent.error is not None:
            sent.tape.count()
            answer = Answer(sent.ended_at, error=sent.error)
        else:
            answer = read_answer(sent.tape, self.spec.endpoint, self.spec.max_tokens)
            if answer.error is None and answer.output_tokens is None:
                tokens = await count_tokens(self.client, answer.text or "")
                if tokens is None:
                    answer = Answer(answer.end_at, error="the server sent no token count and cannot tokenize")
                else:
                    counted = replace(answer, output_tokens=tokens, token_source="tokenized", text=None)
                    answer = check_count(counted, self.spec.max_tokens)
        first = sent.tape.first_at
        return RequestRecord(
            index=sent.index,
            prompt_id=sent.prompt.id,
            category=sent.prompt.category,
            sent_s=sent.sent_at - origin,
            ttft_s=None if first is None else first - sent.sent_at,
            end_s=(answer.end_at or sent.ended_at) - origin,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            token_source=answer.token_source,
            verify_steps=answer.verify_steps,
            correct_drafts=answer.correct_drafts,
            accept_histogram=answer.accept_histogram,
            finish_reason=answer.finish_reason,
            retractions=answer.retractions,
            chunks=sent.tape.chunks,
            error=answer.error,
            output_ids=answer.output_ids,
        )
