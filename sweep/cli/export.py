"""export: a study or its winner as files for other tools."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import render
from sweep.cli.common import db_option, json_option, print_json, study_argument
from sweep.cli.query import open_store
from sweep.errors import SweepError, UsageError

if TYPE_CHECKING:
    from storage.records import StudyRow
    from storage.store import Store

TABLES = ("csv", "json", "parquet")
KINDS = (*TABLES, "optuna", "compose", "kubernetes", "adaptive", "acceptance")

Answer = dict[str, Any]


@click.command()
@study_argument
@click.option("--format", "kind", type=click.Choice(KINDS), default="csv", show_default=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="New folder (csv, parquet) or file."
)
@click.option("--trial", type=click.IntRange(min=0), help="For compose, kubernetes, acceptance; default: the winner.")
@db_option
@json_option
def export(study: str | None, kind: str, output: Path, trial: int | None, db_url: str, as_json: bool) -> None:
    """Write STUDY for other tools.

    csv, parquet, json: all trials, blocks, requests and gains. optuna: a storage file for optuna.load_study and
    optuna-dashboard. compose, kubernetes: the winner as a service. adaptive: SGLang's --speculative-adaptive-config
    from the measured loads. acceptance: accept length and histograms by load and prompt category, for simulators.
    """
    if trial is not None and kind not in ("compose", "kubernetes", "acceptance"):
        raise UsageError(f"--trial says nothing to --format {kind}")
    with open_store(db_url) as store:
        row = store.study(study)
        if kind in TABLES:
            from storage.export import export as write_tables

            with render.busy() as say:
                answer = write_tables(store, row, kind, output, say)
        else:
            answer = {"study": row.name, "simulated": row.simulated, "format": kind, "path": str(output)}
            with render.busy() as say:
                say(f"making {kind}")
                answer |= _write_new(output, lambda target: _WRITERS[kind](store, row, trial, target))
    if as_json:
        print_json(answer)
        return
    render.banner(answer)
    click.echo(f"{output}: {_said(answer)}")


def _optuna(store: Store, study: StudyRow, trial: int | None, target: Path) -> Answer:
    from sweep.exports.optuna_study import write

    return {"rows": {"trials": write(store, study, target)}}


def _compose(store: Store, study: StudyRow, trial: int | None, target: Path) -> Answer:
    from sweep.exports.manifests import compose
    from sweep.exports.winner import chosen

    found = chosen(store, study, trial)
    target.write_text(compose(study, found), encoding="utf-8")
    return {"trial": found.number}


def _kubernetes(store: Store, study: StudyRow, trial: int | None, target: Path) -> Answer:
    from sweep.exports.manifests import kubernetes
    from sweep.exports.winner import chosen

    found = chosen(store, study, trial)
    target.write_text(kubernetes(study, found), encoding="utf-8")
    return {"trial": found.number}


def _adaptive(store: Store, study: StudyRow, trial: int | None, target: Path) -> Answer:
    from sweep.exports.adaptive import adaptive

    document, about = adaptive(store, study)
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return about


def _acceptance(store: Store, study: StudyRow, trial: int | None, target: Path) -> Answer:
    from sweep.exports.acceptance import acceptance
    from sweep.exports.winner import chosen

    found = chosen(store, study, trial)
    document = acceptance(store, study, found)
    target.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return {"trial": found.number, "accept_length": document["overall"]["accept_length"]}


_WRITERS: Mapping[str, Callable[[Store, StudyRow, int | None, Path], Answer]] = {
    "optuna": _optuna,
    "compose": _compose,
    "kubernetes": _kubernetes,
    "adaptive": _adaptive,
    "acceptance": _acceptance,
}


def _write_new(target: Path, write: Callable[[Path], Answer]) -> Answer:
    """The whole new file or none of it."""
    if target.exists():
        raise UsageError(f"{target} exists already; name a new one")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"the folder {target.absolute().parent} does not exist")
    scratch = target.with_name(f".{target.name}.part")
    try:
        answer = write(scratch)
        scratch.rename(target)
    except OSError as error:
        raise SweepError(
            f"export to {target} failed: {error.strerror or error}. Check room and permissions."
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return answer


def _said(answer: Mapping[str, Any]) -> str:
    if "rows" in answer:
        return ", ".join(f"{count} {name}" for name, count in answer["rows"].items())
    if "tiers" in answer:
        tiers = "; ".join(f"{t['steps']} steps at {t['concurrency']}" for t in answer["tiers"])
        flags = (
            f"--speculative-eagle-topk 1 --speculative-num-steps {answer['startup_num_steps']} --speculative-adaptive "
            f"--speculative-adaptive-config {shlex.quote(answer['path'])}"
        )
        if not answer["startup_num_steps"]:
            return f"{tiers}: no chain pays at any measured load, serve without speculation"
        return f"{tiers}; start {answer['algorithm']} {answer['draft_model']} with {flags}"
    return f"trial {answer['trial']}"
