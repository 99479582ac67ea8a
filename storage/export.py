"""Write a study to files: a folder of CSV or Parquet tables, or one JSON document. Gains stay fractions."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from storage.frames import FRAMES
from storage.records import StudyRow
from storage.store import Store
from sweep.errors import SweepError, UsageError

FORMATS = ("csv", "json", "parquet")


def export(
    store: Store, study: StudyRow, kind: str, target: Path, say: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """``csv`` and ``parquet`` make the folder ``target`` with one file per table, ``json`` the file ``target``.

    Returns {study, format, path, rows: {table: count}}. Nothing is left behind half written: the target appears when
    it is complete. ``say`` is told what is being done. Raises UsageError where the target exists or pyarrow is missing,
    SweepError where it cannot be written.
    """
    if kind not in FORMATS:
        raise UsageError(f"format {kind!r} is none of {', '.join(FORMATS)}")
    if kind == "parquet" and find_spec("pyarrow") is None:
        raise UsageError("parquet needs pyarrow: pip install 'specsweep[parquet]', or use --format csv")
    if target.exists():
        raise UsageError(f"{target} exists already; name a new one")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"the folder {target.absolute().parent} does not exist")
    frames: dict[str, pd.DataFrame] = {}
    for name, build in FRAMES.items():
        say(f"reading {name}")
        frames[name] = build(store, study)
    write: Callable[[Path], None]
    if kind == "json":
        document = {
            "study": study.name,
            "simulated": study.simulated,
            "spec": study.spec,
            "objectives": [o.key for o in study.objectives],
            "analysis": store.analysis(study.id),
            **{name: _records(frame) for name, frame in frames.items()},
        }
        say("writing")
        text = json.dumps(document, allow_nan=False, indent=1)
        write = _json(text)
    else:
        write = _tables(frames, kind, say)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
        try:
            write(scratch / target.name)
            (scratch / target.name).rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise SweepError(
            f"export to {target} failed: {error.strerror or error}. Check room and permissions."
        ) from error
    return {
        "study": study.name,
        "simulated": study.simulated,
        "format": kind,
        "path": str(target),
        "rows": {name: len(frame) for name, frame in frames.items()},
    }


def _json(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text + "\n", encoding="utf-8")

    return write


def _tables(frames: dict[str, pd.DataFrame], kind: str, say: Callable[[str], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        for name, frame in frames.items():
            say(f"writing {len(frame)} {name}")
            if kind == "csv":
                frame.to_csv(folder / f"{name}.csv", index=False)
            else:
                frame.to_parquet(folder / f"{name}.parquet", index=False)

    return write


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON objects; a missing cell is null."""
    cells = frame.astype(object).where(frame.notna(), None)
    return [dict(zip(cells.columns, row, strict=True)) for row in cells.itertuples(index=False, name=None)]
