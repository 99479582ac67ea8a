"""Options of every command that takes a search space."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sweep.cli.completion import spaces

if TYPE_CHECKING:
    from sweep.config import StudySpec

F = TypeVar("F", bound=Callable[..., Any])


class SpaceCommand(click.Command):
    """Takes ``--simulate`` bare or as ``--simulate=PROFILE``; click alone would swallow the SPACE that follows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--simulate=" if arg == "--simulate" else arg for arg in args])


def space_options(function: F, *, required: bool = True) -> F:
    """SPACE and everything that stands above it: passes ``space`` and the keyword arguments of :func:`read`."""
    for option in (
        click.option("--name", help="Name of the study; the YAML's `name` where left out."),
        override_options,
        click.option("--simulate", metavar="[=PROFILE]", help="Simulated servers on local hosts."),
        click.option(
            "--warm-start",
            metavar="STUDY",
            help="Begin with what this earlier study of the same model and GPU taught; true: all of them.",
        ),
        click.argument("space", required=required, shell_complete=spaces),
    ):
        function = option(function)
    return function


def override_options(function: F) -> F:
    """What may change between start and resume: passes ``sets``, ``hosts``, ``trials``, ``budget`` and ``until``."""
    for option in (
        click.option("--until", metavar="HH:MM", help="Start no further trial after this time of day."),
        click.option("--budget", metavar="DURATION", help="Start no further trial after this long, e.g. 2h."),
        click.option("--trials", type=click.IntRange(min=1), help="Number of trials."),
        click.option(
            "--host", "hosts", multiple=True, help="Use this host (name in the YAML, alias, user@host, local)."
        ),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the YAML."),
    ):
        function = option(function)
    return function


def read(
    space: str,
    *,
    simulate: str | None,
    sets: tuple[str, ...],
    hosts: tuple[str, ...],
    trials: int | None,
    budget: str | None,
    until: str | None,
    name: str | None,
    warm_start: str | None = None,
) -> StudySpec:
    """The study that SPACE and the options describe. Raises ConfigError and UsageError."""
    from sweep.config import Overrides, load_space, simulated

    if warm_start is not None:
        sets = (*sets, f"warm_start={warm_start}")
    overrides = Overrides(sets=sets, hosts=hosts, trials=trials, budget=budget, until=until, name=name)
    spec = load_space(space, overrides)
    if simulate is not None:
        spec = simulated(spec, simulate or None, trials=trials)
    return spec
