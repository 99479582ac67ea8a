"""completion: what a shell evaluates so that the tab key completes commands, options, spaces and studies."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = {
    "bash": 'eval "$(sweep completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(sweep completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "sweep completion fish | source      # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL."""
    made = get_completion_class(shell)
    assert made is not None
    root = context.find_root()
    click.echo(made(root.command, {}, "sweep", "_SWEEP_COMPLETE").source())


def studies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The studies of the database in use; none where it cannot be read: the tab key does not complain."""
    from storage.store import Store
    from sweep.errors import SweepError

    try:
        with Store.open(context.params["db_url"], create=False) as store:
            found = store.studies()
    except SweepError:
        return []
    return [CompletionItem(study.name) for study in found if study.name.startswith(incomplete)]


def spaces(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shipped search spaces by their bare names, and files."""
    from importlib.resources import files

    shipped = sorted(entry.name for entry in files("search_spaces").iterdir() if entry.name.endswith(".yaml"))
    names = [name.removesuffix(".yaml") for name in shipped if name.startswith(incomplete)]
    # Files first: bash forgets what stands before them, and falls back on files where nothing else fits.
    return [CompletionItem(incomplete, type="file"), *(CompletionItem(name) for name in names)]
