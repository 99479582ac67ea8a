"""A rebuilt study for other tools: an Optuna storage file, and optuna-dashboard's web application over it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage

from sweep.errors import UsageError

OBJECTIVES = "objectives"  # user attribute: the names of the objectives, in their order


def write(study: optuna.Study, path: Path) -> None:
    """A SQLite file in Optuna's own schema that ``optuna.load_study(storage="sqlite:///PATH")`` opens."""
    storage = RDBStorage(f"sqlite:///{path}")
    try:
        _copy(study, storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def dashboard(study: optuna.Study) -> Callable[..., Any]:
    """optuna-dashboard's WSGI application. UsageError where it is not installed."""
    try:
        from optuna_dashboard import wsgi  # type: ignore[import-untyped]  # it ships no types
    except ImportError as error:
        raise UsageError("optuna-dashboard is not installed; pip install 'specsweep[dashboard]'") from error
    storage = InMemoryStorage()
    _copy(study, storage)
    application: Callable[..., Any] = wsgi(storage)
    return application


def _copy(study: optuna.Study, storage: BaseStorage) -> None:
    copy = optuna.create_study(study_name=study.study_name, storage=storage, directions=study.directions)
    for key, value in study.user_attrs.items():
        copy.set_user_attr(key, value)
    if names := study.user_attrs.get(OBJECTIVES):
        with warnings.catch_warnings():
            # Experimental since Optuna 3.2; what it writes is an attribute that dashboards show.
            warnings.filterwarnings("ignore", message=".*set_metric_names is experimental")
            copy.set_metric_names(names)
    copy.add_trials(study.get_trials(deepcopy=False))
