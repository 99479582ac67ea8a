"""Does a Ray cluster answer at an address? Asked before ``ray.init``, which tries for 20 s (a wrong token) to minutes
(another service's port, a head that hangs) and cannot be told to give up earlier.

The question is Ray's own ``ray health-check``, in a process of its own: Ray's client has several limits of time one
after another, and a call into it cannot be ended from outside.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

from sweep.errors import HostError

CONNECT_S = 5.0  # the first packet is sent again after 1 s and after 3 s
ANSWER_S = 12.0  # a head that is well takes 0.7 s, Python's own start included

_MEND = (
    "Mend `ray.address` (of a study that is there: `sweep resume STUDY --set ray.address=HOST:PORT`) or RAY_ADDRESS, "
    "or leave both out: this tool then starts a cluster of its own."
)
_TOKEN = "Check the token: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token, as on the cluster."


def configured(address: str | None) -> str | None:
    """The cluster that is meant, ``address`` being the YAML's; None for one of our own."""
    wanted = address or os.environ.get("RAY_ADDRESS")
    return None if wanted in (None, "", "local") else wanted


def require_cluster(address: str) -> None:
    """HostError, within about CONNECT_S + ANSWER_S, where no head answers at ``HOST:PORT``, or refuses our token."""
    if address.startswith("ray://"):
        raise HostError(f"{address} is an address of Ray Client; what is needed is HOST:PORT of the head. {_MEND}")
    if place := re.fullmatch(r"(.+):(\d+)", address):  # else "auto", which Ray resolves
        _require_listener(address, place[1].strip("[]"), int(place[2]))
    # Ray is not imported here: it reads its environment then, which is not complete yet.
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check", "--address"]
    try:
        done = subprocess.run(
            [*command, address], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        raise HostError(
            f"something listens at {address}, but no Ray head answered within {ANSWER_S:.0f} s: it is another "
            f"service's port, or a head that hangs. `ray status --address {address}` asks it by hand. {_MEND}"
        ) from None
    if done.returncode:
        why = _reason(done.stderr)
        mend = _TOKEN if "token" in why.lower() else _MEND
        raise HostError(f"the Ray cluster at {address} cannot be used: {why}. {mend}")


def _require_listener(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = f"no answer in {CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
        raise HostError(
            f"no Ray cluster at {address}: {why or error}. Start one there (`ray start --head`). {_MEND}"
        ) from error


def _reason(stderr: str) -> str:
    """The first sentence of the error in which Ray's traceback ends."""
    if "couldn't find an authentication token" in stderr:  # there is no such error: Ray's client aborts
        return "RAY_AUTH_MODE is token, and there is no token to show"
    lines = [line for line in stderr.splitlines() if line.strip()] or ["it gave no reason"]
    return lines[-1].removeprefix("ray.exceptions.").partition(". ")[0].rstrip(".")
