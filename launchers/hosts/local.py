"""The machine we are on, behind the same seam as a host reached over SSH."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.hosts.entry import HostEntry
from sweep.errors import HostError
from sweep.seams import Completed

# What Ray sets in its workers for its own purposes; a server started with them would be slower than one started by
# hand (OMP_NUM_THREADS=1) or see no GPU. A login over SSH has none of them either: pins belong into the YAML.
_NOT_INHERITED = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class LocalSettings:
    """``python`` runs the supervisor and stands for ``@PYTHON@``; ``activate`` is a shell command run before it.

    ``gpus`` are the indices that may be used, None for all of them.
    """

    name: str
    python: str = sys.executable
    activate: str | None = None
    base_dir: str = "~/.specsweep"
    gpus: tuple[int, ...] | None = None


def settings_of(entry: HostEntry) -> LocalSettings:
    """Settings from a host's entry in a search space."""
    return LocalSettings(
        name=entry.name,
        python=entry.python or LocalSettings.python,
        activate=entry.activate,
        base_dir=entry.base_dir or LocalSettings.base_dir,
        gpus=entry.gpus,
    )


def local_environment() -> dict[str, str]:
    """The environment that commands on this machine get."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k not in _NOT_INHERITED}


class LocalTransport:
    """Implements ``sweep.seams.Transport`` for the machine we are on."""

    kind = "local"
    losses = 0  # there is nothing between that could break

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.name = settings.name

    def connect(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def rtt_s(self) -> float:
        return 0.0

    def ping_s(self) -> float:
        return 0.0

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", idempotent: bool = False
    ) -> Completed:
        """Run a short command in a session of its own; it starts in the home folder, as over SSH."""
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
                env=local_environment(),
                cwd=Path.home(),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            return Completed(127, b"", f"{argv[0]}: {error.strerror}\n".encode())
        except PermissionError as error:
            # A folder of PATH that may not be searched gives this for a name that is nowhere; a shell passes over it.
            nowhere = os.sep not in argv[0] and shutil.which(argv[0]) is None
            code, why = (127, os.strerror(errno.ENOENT)) if nowhere else (126, error.strerror)
            return Completed(code, b"", f"{argv[0]}: {why}\n".encode())
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{self.name}: `{argv[0]}` gave no answer in {timeout_s:g} s") from error
        except OSError as error:
            raise HostError(f"{self.name}: cannot run `{argv[0]}`: {error}") from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def put(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        target = Path(path).expanduser()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            for folder in reversed([f for f in target.parents if not f.exists()]):
                folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(content)
            temporary.chmod(mode)  # whatever the umask is
            temporary.replace(target)
        except OSError as error:
            raise HostError(f"{self.name}: cannot write {path}: {error.strerror}") from error

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        try:
            with Path(path).expanduser().open("rb") as handle:
                if offset:
                    handle.seek(offset)
                return handle.read(-1 if limit is None else limit)
        except (FileNotFoundError, ProcessLookupError) as error:  # the latter: a file of /proc whose process went
            raise FileNotFoundError(path) from error
        except OSError as error:
            raise HostError(f"{self.name}: cannot read {path}: {error.strerror}") from error

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[str]:
        yield f"http://127.0.0.1:{port}"
