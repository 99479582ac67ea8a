"""Recording one server-sent-event stream at the least cost.

While a stream runs, :class:`Tape` keeps only when each read arrived and the newest bytes. ``/generate`` events are
cumulative, so the last one says everything; chat events are deltas, so all of them are kept. JSON is parsed when the
stream is over, except for the events up to the first one that carries output, whose arrival is the first-token time.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

GENERATE = "generate"
CHAT = "chat"
DONE = b"[DONE]"

# Bytes held before old events are dropped, and how many of the newest events stay: the last one with output, and
# after it an error and the end mark.
_WINDOW_BYTES = 256 * 1024
_KEPT_EVENTS = 4
_DATA = b"\ndata:"
_ERROR = b'\ndata: {"error"'


class Tape:
    """Records one stream. :meth:`feed` is the hot path; everything else runs once a window or once a request.

    ``chunks`` counts data events without the end mark (complete after :meth:`events`); ``first_at`` is when the first
    event with output was complete, in the clock of the caller, None so far without one.
    """

    __slots__ = ("_endpoint", "_errors", "_limit", "_reads", "_scanned", "_size", "chunks", "first_at")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._limit = _WINDOW_BYTES
        self._reads: list[tuple[float, bytes]] = [(0.0, b"\n")]  # so that the first line follows a line end, too
        self._size = 1
        self._scanned = 0  # index in the joined reads of the last line end that was looked at
        self._errors: list[bytes] = []
        self.chunks = 0
        self.first_at: float | None = None

    def feed(self, at: float, data: bytes) -> None:
        """One read of any size, cut anywhere, and when it arrived."""
        self._reads.append((at, data))
        self._size += len(data)
        if self.first_at is None:
            self._look_for_first(at)
        elif self._size > self._limit and self._endpoint == GENERATE:
            self._trim()

    @property
    def last_at(self) -> float:
        """When the newest read arrived, in the clock of the caller; 0 before the first."""
        return self._reads[-1][0]

    def errors(self) -> list[bytes]:
        """Error events that were seen anywhere in the stream, also those no longer kept (after :meth:`events`)."""
        return self._errors

    def count(self) -> int:
        """``chunks`` so far, brought up to date: for a stream that was cut and will not be parsed."""
        self._scan(self._join())
        return self.chunks

    def events(self) -> list[tuple[float, bytes]]:
        """The kept events, oldest first, as (arrival of the last byte, payload after ``data:``). Call once, at the end.

        Bytes of a line that never ended are given as a last event, so that a cut is seen as broken JSON.
        """
        joined = self._join()
        self._scan(joined)
        ends = list(accumulate(len(data) for _, data in self._reads))
        out = []
        for end, payload in _data_lines(joined, partial=True):
            out.append((self._reads[bisect_left(ends, min(end + 1, len(joined)))][0], payload))
        if out and out[-1][1] == DONE:
            self.chunks -= 1
        return out

    def _join(self) -> bytes:
        return b"".join(data for _, data in self._reads)

    def _look_for_first(self, at: float) -> None:
        has_output = _generate_has_output if self._endpoint == GENERATE else _chat_has_output
        for _, payload in _data_lines(self._join()):
            value = json_object(payload)
            if value is not None and has_output(value):
                self.first_at = at
                return

    def _scan(self, joined: bytes) -> None:
        """Count the events that became complete since the last scan, and note errors among them."""
        last = joined.rfind(b"\n")
        self.chunks += joined.count(_DATA, self._scanned, last)
        if joined.find(_ERROR, self._scanned, last) >= 0:
            fresh = joined[self._scanned : last + 1]
            self._errors += [payload for _, payload in _data_lines(fresh) if payload.startswith(b'{"error"')]
        self._scanned = last

    def _trim(self) -> None:
        joined = self._join()
        self._scan(joined)
        keep = self._scanned
        for _ in range(_KEPT_EVENTS):
            keep = max(joined.rfind(_DATA, 0, keep), 0)
        reads = dropped = 0
        while dropped + len(self._reads[reads][1]) <= keep:
            dropped += len(self._reads[reads][1])
            reads += 1
        del self._reads[:reads]
        self._scanned -= dropped
        self._size -= dropped
        self._limit = max(_WINDOW_BYTES, 4 * self._size)


def _data_lines(raw: bytes, *, partial: bool = False) -> Iterator[tuple[int, bytes]]:
    """(index of the line's end in ``raw``, payload) of every ``data:`` line; line ends are LF or CRLF.

    Comments, other fields and blank lines are skipped; a line without an end is left out unless ``partial``.
    """
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        if end < 0:
            if not partial:
                return
            end = len(raw)
        if raw.startswith(b"data:", start):
            yield end, raw[start + 5 : end].strip()
        start = end + 1


def json_object(payload: bytes) -> dict[str, Any] | None:
    """The JSON object of an event, None for anything else."""
    try:
        value = json.loads(payload)
    except ValueError:  # also UnicodeDecodeError
        return None
    return value if isinstance(value, dict) else None


def _generate_has_output(value: dict[str, Any]) -> bool:
    meta = value.get("meta_info")
    count = meta.get("completion_tokens") if isinstance(meta, dict) else None
    return bool(count or value.get("text") or value.get("output_ids"))


def _chat_has_output(value: dict[str, Any]) -> bool:
    return bool(delta_text(value))


def delta_text(value: dict[str, Any]) -> str:
    """New text of a chat event: reasoning counts as output, an empty role event does not."""
    choices = value.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return ""
    delta = choices[0].get("delta")
    if not isinstance(delta, dict):
        return ""
    return "".join(t for t in (delta.get("reasoning_content"), delta.get("content")) if isinstance(t, str))
