"""init: a search space to start from, out of a launch command, of options, or of what is asked for on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweep.errors import UsageError

if TYPE_CHECKING:
    from sweep.cli.launch_command import Launch


@click.command()
@click.option(
    "--from-command", "command", metavar="COMMAND", help='A launch command, "python -m sglang.launch_server …".'
)
@click.option("--model", help="Path or hub name of the target model.")
@click.option("--draft", "drafts", multiple=True, help="Path or hub name of a draft model; may be repeated.")
@click.option("--host", "hosts", multiple=True, help="A GPU host: ssh alias, user@host:port, or local.")
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs that one server takes (its tp-size).")
@click.option("--name", help="Name of the study.")
@click.option("-o", "--output", default="space.yaml", show_default=True, help="File to write; - is standard output.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(
    command: str | None,
    model: str | None,
    drafts: tuple[str, ...],
    hosts: tuple[str, ...],
    gpus: int | None,
    name: str | None,
    output: str,
    force: bool,
) -> None:
    """Write an annotated search-space YAML: from a launch command, from options, or from what it asks for on a
    terminal where neither names a model."""
    from sweep.cli.launch_command import Launch, parse_command
    from sweep.cli.space_text import to_yaml
    from sweep.config import load_text

    path = Path(output)
    if output != "-" and path.exists() and not force:  # before anything is asked for
        raise UsageError(f"{output} exists; choose another name with -o, or say --force")
    launch = parse_command(command) if command else Launch()
    launch = launch.with_options(model=model, drafts=drafts, hosts=hosts, gpus=gpus)
    if launch.model is None:
        if not sys.stdin.isatty():
            raise UsageError("which model? give --model, or --from-command with --model-path in it")
        launch = _asked(launch, gpus)
    text = to_yaml(launch, name)
    load_text(text, source=output)
    if output == "-":
        click.echo(text, nl=False)
    else:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{output}: cannot be written: {error.strerror}") from error
        click.echo(f"wrote {output}; next: sweep plan {output}", err=True)
    for note in launch.notes:
        click.echo(f"note: {note}", err=True)


def _asked(launch: Launch, gpus: int | None) -> Launch:
    """What no option has said, asked for. Questions go to stderr: the YAML may go to stdout."""
    model = click.prompt("Target model (path on the hosts, or hub name)", err=True).strip()
    drafts, hosts = launch.drafts, launch.hosts
    if not drafts:
        words = "Draft models (paths or hub names; none: n-gram speculation)"
        drafts = tuple(click.prompt(words, default="", show_default=False, err=True).replace(",", " ").split())
    if not hosts:
        words = "GPU hosts (ssh aliases, user@host:port, or local)"
        hosts = tuple(click.prompt(words, default="local", err=True).replace(",", " ").split())
    if gpus is None:
        gpus = click.prompt("GPUs that one server takes", default=1, type=click.IntRange(min=1), err=True)
    return launch.with_options(model=model, drafts=drafts, hosts=hosts, gpus=gpus)
