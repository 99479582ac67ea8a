"""Short requests to a server's control routes (ready, server_info, flush, abort). Load goes through sweep.bench."""

from __future__ import annotations

import http.client
import json as jsonlib
from typing import Any
from urllib.parse import urlsplit


class ServerHttp:
    """``sweep.seams.HttpGet`` with the standard library: (status, body), OSError when there is no answer.

    A connection for each request: a server that closes an idle one at the wrong moment is never met.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float = 60.0) -> None:
        self.base_url = base_url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    def __call__(self, method: str, path: str, json: Any = None) -> tuple[int, bytes]:
        place = urlsplit(self.base_url)
        make = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        headers, body = self._headers, None
        if json is not None:
            headers, body = {**headers, "Content-Type": "application/json"}, jsonlib.dumps(json).encode()
        try:
            connection = make(place.hostname or "", place.port, timeout=self._timeout_s)
            try:
                connection.request(method, place.path.rstrip("/") + path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no port, no host
            raise OSError(f"{method} {path}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing is kept open."""
