"""A study as pandas frames, for notebooks and scripts::

    from sweep.api import load

    study = load("eagle3", db="sqlite:///sweep.db")
    study.gains[["trial", "metric", "concurrency", "estimate", "low", "high"]]

Gains are fractions (0.084 is 8.4 % faster) and positive is better for every metric. Times of day are Unix seconds,
durations end in ``_s`` and are seconds, latencies of ``blocks`` (``ttft_*``, ``tpot_*``, ``e2e_*``) milliseconds,
throughputs tokens per second. A missing figure is missing (NA), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from storage import frames, queries
from storage.store import Store

if TYPE_CHECKING:
    from storage.records import StudyRow


@dataclass(frozen=True)
class Study:
    """One study, read whole. The frames are copies: changing them changes nothing in the database.

    ``arms``      one row a trial: asked configuration, ``verdict`` with ``reason`` and ``evidence``, ``flags``, one
                  column per objective (named by its key, e.g. ``output_throughput@1``, in the metric's unit)
    ``blocks``    one row a block, references included (``trial`` missing, ``role`` says which), every figure of
                  ``sweep.metrics`` under its name and in its unit
    ``requests``  one row a request; ``sent_s``, ``ttft_s`` and ``end_s`` count from the block's start
    ``gains``     one row a gain: ``estimate``, ``low``, ``high`` over ``reference`` in one ``metric`` at one
                  ``concurrency`` on the prompts of one ``category`` (missing: all of them)
    ``best``      what `sweep best --json` prints
    """

    name: str
    simulated: bool
    arms: pd.DataFrame
    blocks: pd.DataFrame
    requests: pd.DataFrame
    gains: pd.DataFrame
    best: dict[str, Any]


def load(study: str | None = None, *, db: str = "sqlite:///sweep.db") -> Study:
    """The study of that name, the newest where None. Raises StoreError and StudyNotFoundError as the commands do."""
    with Store.open(db, create=False) as store:
        row: StudyRow = store.study(study)
        return Study(
            name=row.name,
            simulated=row.simulated,
            arms=frames.trials(store, row),
            blocks=frames.blocks(store, row),
            requests=frames.requests(store, row),
            gains=frames.gains(store, row),
            best=queries.best(store, row.id, limit=None),
        )
