"""The HTTP client of the benchmark: httpx over aiohttp's connections, and words for what goes wrong on it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

# Shorter than the 5 s after which uvicorn closes an idle connection: a request must not meet a closing one.
_KEEPALIVE_S = 2.0
_CONNECT_S = 10.0
_SHOWN_CHARS = 200
_RTT_PROBES = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A running server, reachable from this process. ``api_key`` travels as a Bearer token and is never shown."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)


def open_client(target: Target) -> httpx.AsyncClient:
    """A client for one event loop; close it there. Proxies of the environment are not used: they would be measured.

    No read timeout: a request's own deadline is the caller's. Connections are not limited in number.
    """
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    if target.api_key is not None:
        headers["Authorization"] = f"Bearer {target.api_key}"
    return httpx.AsyncClient(
        base_url=target.base_url,
        headers=headers,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        trust_env=False,
        # The session below makes its own (verifying) TLS context; verify=False only spares loading a second one.
        transport=AiohttpTransport(verify=False, client=_session),
    )


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        # Redirects and content types are httpx's business.
        skip_auto_headers=("User-Agent",),
    )


def body_stream(response: httpx.Response) -> httpx.AsyncByteStream:
    """The raw body, one item per read, without httpx's decoding layers (each costs CPU per chunk)."""
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    return stream


async def post_json(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, Any]:
    """(status, parsed JSON or None). Raises ``httpx.TransportError`` where no answer came."""
    response = await client.post(path, json=body)
    try:
        return response.status_code, response.json()
    except ValueError:
        return response.status_code, None


async def round_trip(client: httpx.AsyncClient) -> float | None:
    """Median seconds of a small request on an open connection; any answer will do. None where none came."""
    times = []
    try:
        for _ in range(_RTT_PROBES + 1):
            start = time.perf_counter()
            await client.get("/ready", timeout=5.0)
            times.append(time.perf_counter() - start)
    except httpx.TransportError:
        return None
    return statistics.median(times[1:])  # the first one opened the connection


def transport_words(error: Exception, chunks: int) -> str:
    """What a transport error means. httpx_aiohttp maps several aiohttp errors to misleading names: the cause counts."""
    cause = error.__cause__ or error
    detail = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    if isinstance(cause, aiohttp.ClientConnectorError | httpx.ConnectError):
        return f"cannot connect: {detail}"
    return f"disconnected after {chunks} chunks: {detail}"


def status_words(status: int, body: bytes) -> str:
    """An HTTP error as one line: status and the beginning of the server's words."""
    text = " ".join(body.decode("utf-8", "replace").split())
    return f"http {status}: {text[:_SHOWN_CHARS]}"
