"""Does every launch compile the engine's Python modules anew?

Most of a launch is Python importing the engine, in several processes. Some images leave packages uncompiled and set
PYTHONDONTWRITEBYTECODE, so that what one process compiles is lost with it: on an H200 host that took 22 of 54 s.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sweep.cli.check import Check

if TYPE_CHECKING:
    from launchers.servers import HostServers

NAME = "byte code"
COST = "Every launch compiles them anew, which was measured at 22 of 54 s."
UNCOMPILED = 0.05  # of the modules: a few that no Python of this version can compile lie in most environments

# Run by the environment's own python, imports nothing of the engine; stops after five seconds of a slow disk.
_LOOK = """
import importlib.util, json, os, sys, time
until = time.monotonic() + 5
folders, modules, missing = [], 0, 0
for name in sys.argv[1:]:
    found = importlib.util.find_spec(name)
    for top in found.submodule_search_locations or () if found else ():
        if os.path.dirname(top) not in folders:
            folders.append(os.path.dirname(top))
        for folder, below, files in os.walk(top):
            if time.monotonic() > until:
                break
            for file in files:
                if file.endswith(".py"):
                    modules += 1
                    missing += not os.path.exists(importlib.util.cache_from_source(os.path.join(folder, file)))
print(json.dumps({
    "python": sys.executable, "folders": folders, "modules": modules, "missing": missing,
    "unwritten": sys.dont_write_bytecode, "writable": all(os.access(folder, os.W_OK) for folder in folders),
}))
"""


def byte_code(
    servers: HostServers, python: str, packages: Sequence[str], env: Mapping[str, str], *, container: bool
) -> list[Check]:
    """One check; none where nothing of ``packages`` is found. ``env``: the variables that a launch adds."""
    if not packages:
        return []
    pythons = [f"{key}={value}" for key, value in env.items() if key.startswith("PYTHON")]
    answer = servers.in_environment(["env", *pythons, python, "-c", _LOOK, *packages])
    try:
        found = json.loads(answer.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        missing, modules = found["missing"], found["modules"]
    except (ValueError, LookupError, TypeError):
        return []  # what is wrong with this python, the check of the engine has said
    if not modules:
        return []
    said = f"{modules - missing} of {modules} modules of {', '.join(packages)} are compiled"
    if missing <= UNCOMPILED * modules:
        return [Check(NAME, "ok", said)]
    if found["unwritten"]:
        why = "PYTHONDONTWRITEBYTECODE is set"
    elif container:
        why = "a container keeps nothing"
    elif not found["writable"]:
        why = "their folder may not be written to"
    else:
        return [Check(NAME, "ok", f"{said}, the others with the first launch")]
    command = shlex.join([found["python"], "-m", "compileall", "-q", "-j", "0", *found["folders"]])
    advice = f"{COST} {'Build it into the image' if container else 'Run once there'}: {command}"
    if found["unwritten"] and not container:
        advice += "; and unset PYTHONDONTWRITEBYTECODE in `activate`, for what is installed later"
    return [Check(NAME, "warn", f"{said}, and {why}", advice)]
