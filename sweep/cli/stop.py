"""stop: end a running study from another terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sweep.cli.common import db_option, study_argument

if TYPE_CHECKING:
    from storage.records import StudyRow
    from storage.store import Store


@click.command()
@study_argument
@click.option("--wait/--no-wait", default=True, help="Wait until the study has stopped.")
@db_option
def stop(study: str | None, wait: bool, db_url: str) -> None:
    """Ask the controller of STUDY (the newest where left out) to stop cleanly."""
    from storage.records import StudyState
    from storage.store import Store
    from sweep.controller import controlled

    with Store.open(db_url, create=False) as store:
        row = store.study(study)
        if not controlled(row):
            ended = row.state is StudyState.FINISHED
            words = "it is finished" if ended else f"`sweep resume {row.name}` carries it on"
            click.echo(f"study {row.name!r} is not running; {words}")
            return
        asked_at = time.time()
        store.request_stop(row.id)
        click.echo(f"asked study {row.name!r} to stop")
        while wait and controlled(store.study_by_id(row.id)):
            time.sleep(0.3)  # polling another process's row; it answers within its heartbeat of two seconds
        if wait:
            click.echo(f"study {row.name!r} has stopped; `sweep resume {row.name}` carries it on")
            say_given_up(store, row, asked_at)


def say_given_up(store: Store, study: StudyRow, since: float) -> None:
    """Which hosts did not end their work since this Unix time, and what that means; on stderr."""
    from sweep.runner import GIVEN_UP

    for event in store.events(study.id, kind=GIVEN_UP):
        if event.at >= since:
            click.echo(event.detail["why"], err=True)
