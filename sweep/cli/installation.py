"""What `sweep doctor` looks at on this machine: the packages, Ray's room, the database's place."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from tempfile import TemporaryFile

from packaging.requirements import Requirement

from sweep.cli.check import Check
from sweep.config import StudySpec, secret_env
from sweep.errors import ConfigError, SweepError
from sweep.ray_address import require_cluster
from sweep.ray_home import BASE

DISTRIBUTION = "specsweep"
PACKAGES = ("sweep", "search_spaces", "launchers", "storage")
EXTRAS = {
    "dashboard": "optuna-dashboard in `sweep ui`",
    "gp": "sampler: gp",
    "parquet": "`sweep export --format parquet`",
    "postgres": "a PostgreSQL database",
}
MISSING = "missing"
MIB = 1 << 20
RAY_SHM_MIB = 100  # our clusters ask for an object store of 80 MiB; with less /dev/shm Ray falls back on the disk
RAY_TEMP_MIB = 200  # its logs and sockets
LOW_DATABASE_MIB = 500  # a study that cannot write ends at once; a long one should not come near


def installation(db_url: str, cluster: str | None = None) -> list[Check]:
    """Is this one installation, of what, with what beside it, and can it keep what a study needs? ``cluster``: the
    address of the Ray cluster that a study would use; None: one of its own."""
    ray = [_ray_room()] if cluster is None else [_ray_cluster(cluster)]
    return [_packages(), *_libraries(), *_extras(), *ray, _ray_auth(cluster), _database(db_url)]


def secrets(spec: StudySpec | None) -> list[Check]:
    """Are the ``${NAME}`` of the search space there to be read, as a start will read them? Never their values."""
    if spec is None:
        return []
    try:
        found = secret_env(spec, os.environ)
    except ConfigError as error:
        return [Check("secrets", "fail", str(error))]
    return [Check("secrets", "ok", ", ".join(found))] if found else []


def _packages() -> Check:
    homes = {name: _home(name) for name in PACKAGES}
    if len(set(homes.values())) == 1 and None not in homes.values():
        return Check("packages", "ok", f"{next(iter(homes.values()))}, Python {sys.version.split()[0]}")
    places = ", ".join(f"{name} from {home or 'nowhere'}" for name, home in homes.items())
    advice = "The four packages belong together; install specsweep into an environment of its own."
    return Check("packages", "fail", places, advice)


def _home(package: str) -> Path | None:
    found = util.find_spec(package)
    return Path(found.origin).parents[1] if found is not None and found.origin else None


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]


def _libraries() -> list[Check]:
    """Every dependency against the versions this package was made for."""
    return [_library(wanted) for wanted in _requirements() if wanted.marker is None or wanted.marker.evaluate()]


def _library(wanted: Requirement) -> Check:
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Check(wanted.name, "fail", MISSING, f"pip install '{wanted.name}{wanted.specifier}'")
    if wanted.specifier.contains(version, prereleases=True):
        return Check(wanted.name, "ok", version)
    return Check(
        wanted.name, "fail", f"{version}, not {wanted.specifier}", f"pip install '{wanted.name}{wanted.specifier}'"
    )


def _extras() -> list[Check]:
    """Optional parts: not having one is no fault, a version that does not fit is."""
    marked = [r for r in _requirements() if r.marker is not None and not r.marker.evaluate()]
    return [_extra(extra, [r for r in marked if r.marker and r.marker.evaluate({"extra": extra})]) for extra in EXTRAS]


def _extra(extra: str, wanted: Sequence[Requirement]) -> Check:
    name = f"extra {extra}"
    parts = [_library(requirement) for requirement in wanted]
    if any(part.value == MISSING for part in parts):
        advice = f"not installed; for {EXTRAS[extra]}: pip install '{DISTRIBUTION}[{extra}]'"
        return Check(name, "ok", advice)
    wrong = next((part for part in parts if part.status == "fail"), None)
    if wrong is not None:
        return Check(name, "warn", f"{wrong.name} {wrong.value}", wrong.advice)
    return Check(name, "ok", ", ".join(f"{part.name} {part.value}" for part in parts))


def _ray_room() -> Check:
    shm = Path("/dev/shm")
    free = {place: shutil.disk_usage(place).free // MIB for place in (shm, BASE) if place.is_dir()}
    said = ", ".join(f"{place} {mib} MiB free" for place, mib in free.items())
    if not os.access(BASE, os.W_OK) or free[BASE] < RAY_TEMP_MIB:
        return Check("room for Ray", "fail", said, f"Ray keeps logs and sockets in {BASE}: make room there.")
    if free.get(shm, RAY_SHM_MIB) < RAY_SHM_MIB:
        advice = "Ray will use the disk instead, which is slower; in a container raise shm_size (--shm-size=512m)."
        return Check("room for Ray", "warn", said, advice)
    return Check("room for Ray", "ok", said)


def _ray_cluster(address: str) -> Check:
    try:
        require_cluster(address)
    except SweepError as error:
        what, _, advice = str(error).partition(". ")
        return Check("Ray cluster", "fail", what, advice)
    return Check("Ray cluster", "ok", f"{address} answers")


def _ray_auth(cluster: str | None) -> Check:
    mode = os.environ.get("RAY_AUTH_MODE")
    if cluster is not None and mode != "token":
        advice = "Whoever reaches the cluster's ports can run code on it: set RAY_AUTH_MODE=token there and here."
        return Check("ray auth", "warn", mode or "not set", advice)
    return Check("ray auth", "ok", mode or "not set; Ray runs on this machine alone")


def _database(url: str) -> Check:
    """Only looked at: nothing is made or migrated."""
    from storage.engine import Database

    try:
        path = Database(url, create=True).path
    except SweepError as error:
        return Check("database", "fail", str(error), "Mend --db or SWEEP_DB.")
    if path is None:
        return Check("database", "ok", "not a file; `sweep ls` asks it")
    folder = path.absolute().parent
    try:
        with TemporaryFile(dir=folder):  # SQLite keeps files beside its own
            pass
        if path.exists():
            path.open("r+b").close()
    except OSError as error:
        advice = "A study writes this file and others beside it: mend permissions, or name another with --db."
        return Check("database", "fail", f"{path} cannot be written: {error.strerror}", advice)
    free = shutil.disk_usage(folder).free // MIB
    what = f"{path.stat().st_size // MIB} MiB" if path.exists() else "not there yet"
    said = f"{path}: {what}, {free} MiB free"
    if free < LOW_DATABASE_MIB:
        return Check("database", "warn", said, "Make room, or `sweep db trim` request rows of old studies.")
    return Check("database", "ok", said)
