"""The Optuna study of a sweep, rebuilt from its rows for a file or a dashboard. Our rows stay the truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.space import SearchSpace
from storage.records import StudyRow, TrialState
from storage.store import Store
from sweep.exports.serving import read_spec
from sweep.model import ArmConfig
from sweep.search.view import SpaceView
from sweep.told import told

if TYPE_CHECKING:
    import optuna


def rebuild(store: Store, study: StudyRow) -> optuna.Study:
    """Every trial that was begun, with Optuna's state for its verdict and its constraints; configuration, verdict
    and standard errors are user attributes."""
    from sweep.search.files import OBJECTIVES
    from sweep.search.study import build

    space = SearchSpace.from_spec(read_spec(study))

    def canonical(params: Mapping[str, Any]) -> ArmConfig | None:
        found = space.canonical(params)
        return found if isinstance(found, ArmConfig) else None

    trials = [trial for trial in store.trials(study.id) if trial.state is not TrialState.QUEUED]
    ran = [trial.effective.config if trial.effective else trial.config for trial in trials]
    # What ran belongs to the picture also where the space, as it is now, has not got it.
    candidates = tuple(dict.fromkeys([*space.candidates, *ran]))
    view = SpaceView(candidates=candidates, axes=space.axes, canonical=canonical)
    made = build(told(trials, {}), view, study.objectives, name=study.name)
    made.set_user_attr(OBJECTIVES, [objective.key for objective in study.objectives])
    made.set_user_attr("simulated", study.simulated)
    made.set_user_attr("specsweep", study.tool_version)
    return made


def write(store: Store, study: StudyRow, path: Path) -> int:
    """An Optuna storage file at ``path``; how many trials are in it."""
    from sweep.search.files import write as to_file

    made = rebuild(store, study)
    to_file(made, path)
    return len(made.get_trials(deepcopy=False))
