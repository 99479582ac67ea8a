"""Stands for docker: keeps its calls, and runs "containers" through a daemon, so that they outlive `docker run`.

``python docker_standin.py STATE daemon`` is the daemon; ``... STATE run|ps|stop|rm|top ...`` a call. STATE holds
calls.jsonl, and one folder per container with its labels, variables, pid, exit status and output. As with the real one,
a container is no child of the call that started it, sees only the variables it was given, and gets TERM through it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OPTIONS = {"--network", "--label", "--gpus", "--volume", "-v", "--env", "--shm-size", "--filter", "--time"}


def parse(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """(options with their values, the words after them)."""
    options: dict[str, list[str]] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        takes = words[at] in OPTIONS
        options.setdefault(words[at], []).append(words[at + 1] if takes else "")
        at += 1 + takes
    return options, words[at:]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def put(path: Path, text: str) -> None:
    """Write a file at once: whoever sees it sees all of it."""
    new = path.with_name(f"new-{path.name}")
    new.write_text(text)
    new.rename(path)


def daemon(state: Path) -> None:
    """Starts what is asked for, and notes how it ended, until the file `end` appears."""
    running: dict[Path, subprocess.Popen[bytes]] = {}
    (state / "up").touch()
    while not (state / "end").exists():
        for wish in state.glob("*/wish.json"):
            asked = json.loads(wish.read_text())
            wish.unlink()
            with (wish.parent / "output").open("wb") as out:
                process = subprocess.Popen(
                    asked["argv"], env=asked["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
            running[wish.parent] = process
            put(wish.parent / "pid", str(process.pid))
        for folder, process in list(running.items()):
            if process.poll() is not None:
                del running[folder]
                if folder.exists():
                    put(folder / "status", str(process.returncode))
        time.sleep(0.01)
    for process in running.values():
        process.kill()
        process.wait()


def run(state: Path, words: list[str]) -> int:
    options, (_, *argv) = parse(words)
    folder = state / f"c{os.getpid()}"
    folder.mkdir()
    labels = dict(label.split("=", 1) for label in options.get("--label", []))
    put(folder / "labels.json", json.dumps(labels))
    env = {"PATH": os.environ["PATH"]} | {n: os.environ[n] for n in options.get("--env", []) if n in os.environ}
    (folder / "env.json").write_text(json.dumps(env))
    put(folder / "wish.json", json.dumps({"argv": argv, "env": env}))
    while not (folder / "pid").exists():
        time.sleep(0.01)
    pid = int((folder / "pid").read_text())
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    with (folder / "output").open("rb") as output:
        while True:
            over = not folder.exists() or (folder / "status").exists()
            while data := output.read(65536):
                os.write(1, data)
            if over:
                break
            time.sleep(0.01)
    status = int((folder / "status").read_text()) if (folder / "status").exists() else -9
    remove(folder)  # --rm
    return 128 - status if status < 0 else status


def remove(folder: Path) -> None:
    for path in sorted(folder.glob("*")):
        path.unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()


def main(state: Path, command: str, *words: str) -> int:
    if command == "daemon":
        daemon(state)
        return 0
    with (state / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([command, *words]) + "\n")
    if command == "run":
        return run(state, list(words))
    options, names = parse(list(words))
    if command == "ps":
        key, value = options["--filter"][0].removeprefix("label=").split("=", 1)
        for path in state.glob("c*/labels.json"):
            if json.loads(path.read_text()).get(key) == value:
                sys.stdout.write(f"{path.parent.name}\n")
        return 0
    for name in names if command != "top" else [words[0]]:
        pid = int((state / name / "pid").read_text())
        if command == "top":
            sys.stdout.write(f"PID\n{pid}\n")
            continue
        deadline = time.monotonic() + (float(options.get("--time", ["0"])[0]) if command == "stop" else 0.0)
        if alive(pid) and command == "stop":
            os.kill(pid, signal.SIGTERM)
        while alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if command == "rm":
            remove(state / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
