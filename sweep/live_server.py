"""A server of a host's owner while it lives: its process, its log, its connection, its prepared prompts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launchers.redact import Redactor
from launchers.servers import RunningServer
from sweep.model import BlockResult, BlockSpec, Diagnosis, Effective
from sweep.readiness import LogFollower
from sweep.reports import LaunchReport, LaunchRequest, Stopped
from sweep.server_http import ServerHttp

# The benchmark client is imported when a server is measured: a host's owner is a third smaller until then.
if TYPE_CHECKING:
    from sweep.bench.http import Target
    from sweep.bench.prepare import Prepared as PreparedPrompts

LOG_TAIL = 60  # lines kept with a launch
LONGEST_LINE = 1 << 16  # characters kept of each; a server_args= line has about 20,000


@dataclass(slots=True)
class LiveServer:
    """A live server of this owner."""

    running: RunningServer
    request: LaunchRequest
    log: LogFollower
    http: ServerHttp | None = None
    prepared: dict[str, PreparedPrompts] = field(default_factory=dict)
    warm: dict[int, BlockResult] = field(default_factory=dict)  # the last warm-up by concurrency
    settled: bool = False  # after its warm-up, before its first block

    def tail(self) -> tuple[str, ...]:
        """The last lines of the log, secrets masked, each LONGEST_LINE characters at most."""
        secrets = [self.running.api_key or "", *self.request.secret_env.values()]
        redactor = Redactor(secret for secret in secrets if secret)
        # Cut behind the end of what is kept first: a secret that is cut there is not seen.
        lines = [line[: LONGEST_LINE + 4096] for line in list(self.log.lines)[-LOG_TAIL:]]
        return tuple(redactor.text(line)[:LONGEST_LINE] for line in lines)

    def require_http(self) -> ServerHttp:
        assert self.http is not None, "asked before the server was ready"
        return self.http

    def target(self) -> Target:
        from sweep.bench.http import Target

        http = self.require_http()
        return Target(http.base_url, self.running.api_key)

    def prepared_for(self, spec: BlockSpec) -> PreparedPrompts:
        """The block's prompts as token ids, made once per launch. Raises HostError where the server does not answer."""
        from sweep.bench.prepare import prepare

        if spec.prompts_hash not in self.prepared:
            distinct = tuple({prompt.id: prompt for prompt in spec.prompts}.values())
            self.prepared[spec.prompts_hash] = prepare(
                self.target(), distinct, endpoint=spec.endpoint, chat_template_args=spec.chat_template_args
            )
        return self.prepared[spec.prompts_hash]


def report_of(
    server: LiveServer | None,
    argv: tuple[str, ...],
    started_at: float,
    phases: Mapping[str, float],
    *,
    ready: bool = False,
    effective: Effective | None = None,
    info: Mapping[str, Any] | None = None,
    diagnosis: Diagnosis | None = None,
    stop: Stopped | None = None,
) -> LaunchReport:
    """What is known of a launch, ready or not; ``server`` None where nothing was started."""
    running = None if server is None else server.running
    return LaunchReport(
        argv,
        ready,
        started_at,
        ready_s=time.time() - started_at if ready else None,
        phases=phases,
        pid=running.pid if running else None,
        port=running.port if running else None,
        marker=running.marker if running else None,
        run_dir=running.run_dir if running else None,
        log_path=running.log_path if running else None,
        effective=effective,
        server_info=info or {},
        diagnosis=diagnosis,
        stop=stop,
    )
