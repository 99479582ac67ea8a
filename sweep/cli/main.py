"""The command group. Commands live in modules of their own and are imported only when used, so that --help is quick."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from sweep import __version__
from sweep.errors import SweepError

READER_GONE = 141  # 128 + SIGPIPE, what a shell gives for any command in front of `| head`

# name -> (module, attribute, one line of help). The help stands here so that `sweep --help` imports nothing else.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "start": ("sweep.cli.run", "start", "Start a study from a search-space YAML."),
    "resume": ("sweep.cli.run", "resume", "Carry on a study that was stopped or killed."),
    "stop": ("sweep.cli.stop", "stop", "Ask a running study to stop, from another terminal."),
    "status": ("sweep.cli.status", "status", "How a study is doing: counts, hosts, best so far."),
    "ls": ("sweep.cli.status", "ls", "List the studies in the database."),
    "best": ("sweep.cli.query", "best", "The best configurations against the baseline."),
    "pareto": ("sweep.cli.query", "pareto", "The Pareto front over the objectives."),
    "show": ("sweep.cli.query", "show", "One trial with its launches, blocks and evidence."),
    "whatif": ("sweep.cli.whatif", "whatif", "What the cost model predicts for what was not measured."),
    "logs": ("sweep.cli.query", "logs", "A trial's server log."),
    "command": ("sweep.cli.query", "command", "The exact launch command of a trial, quoted."),
    "export": ("sweep.cli.export", "export", "Write a study as tables, for Optuna, or its winner as manifests."),
    "report": ("sweep.cli.report", "report", "Write a study as one HTML page or as Markdown."),
    "ui": ("sweep.cli.report", "ui", "Serve a study's report on this machine while it runs."),
    "compare": ("sweep.cli.compare", "compare", "What got better or worse between two studies."),
    "history": ("sweep.cli.compare", "history", "One configuration over all studies."),
    "db": ("sweep.cli.database", "db", "Check, back up or trim the database."),
    "rm": ("sweep.cli.query", "rm", "Delete a study from the database."),
    "calibrate": ("sweep.cli.calibrate", "calibrate", "Measure the baseline against itself: what can be resolved?"),
    "plan": ("sweep.cli.plan", "plan", "What a search space would run, launching nothing."),
    "init": ("sweep.cli.init", "init", "Write a search-space YAML to start from; also from a launch command."),
    "completion": ("sweep.cli.completion", "completion", "Print what makes a shell's tab key complete `sweep`."),
    "doctor": ("sweep.cli.hosts", "doctor", "Check hosts, GPUs, engine, model, drafter and this installation."),
    "ps": ("sweep.cli.hosts", "ps", "What of ours runs on a host."),
    "clean": ("sweep.cli.hosts", "clean", "End what of ours runs on a host."),
}


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End in silence where whoever read our output has gone. Click alone would end with 1, an error without words."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # what is still in a buffer is written when the interpreter ends
        os.dup2(nowhere, 2)
        sys.exit(READER_GONE)


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _reader_may_leave():  # --help and --version are printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and help from the table above, so that the tab key imports no command."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text) for name, (_, _, text) in COMMANDS.items() if name.startswith(incomplete)
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sweep")
def cli() -> None:
    """Find the speculative-decoding configuration that pays, and say how sure that is."""


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors of ours become one message on stderr and their documented exit code."""
    try:
        cli.main(args=argv, prog_name="sweep", standalone_mode=False)
    except SweepError as error:
        click.echo(f"sweep: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("sweep: interrupted", err=True)
        sys.exit(130)
