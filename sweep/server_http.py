"""Short requests to a server's control routes (ready, server_info, flush, abort). Load goes through sweep.bench."""

from __future__ import annotations

from typing import Any

import httpx


class ServerHttp:
    """``sweep.seams.HttpGet`` over httpx: returns (status, body), raises OSError when there is no answer."""

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float = 60.0) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url, headers=headers, timeout=timeout_s, trust_env=False)

    def __call__(self, method: str, path: str, json: Any = None) -> tuple[int, bytes]:
        try:
            answer = self._client.request(method, path, json=json)
        except httpx.HTTPError as error:
            raise OSError(f"{method} {path}: {type(error).__name__}: {error}") from error
        return answer.status_code, answer.content

    def close(self) -> None:
        self._client.close()
