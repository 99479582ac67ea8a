"""Writes docs/reference/ from the program itself: ``make docs``. With --check nothing is written; exit 1 where a page
is not what the program would make of it."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import database_page
import verdict_page
import yaml_page

from sweep import metrics
from sweep.cli.main import COMMANDS, cli

DOCS = Path(__file__).resolve().parents[1]
NOTE = "<!-- Made by `make docs`; do not edit. -->"


def cell(text: object) -> str:
    """Text for one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def command_page() -> str:
    """cli.md: every command with its arguments and options, as click knows them."""
    out = [
        NOTE,
        "",
        "# Commands",
        "",
        "STUDY is a study's name, where left out the newest; SPACE is a YAML or the bare name of a shipped one.",
        "Exit codes: [exit-codes.md](../exit-codes.md). Keys of `--json`: [json.md](../json.md).",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {cell(words)} |" for name, (_, _, words) in COMMANDS.items()),
    ]
    top = click.Context(cli, info_name="sweep")
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        out += _command(command, name, top, level=2)
    return "\n".join(out) + "\n"


def _command(command: click.Command, name: str, parent: click.Context, level: int) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    path = context.command_path.removeprefix("sweep ")
    out = ["", f"{'#' * level} {path}", "", "```text", f"{context.command_path} {usage}".rstrip(), "```", ""]
    out += [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            out += _command(found, child, context, level + 1)
        return out
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        out += ["", "| option | meaning | default |", "|---|---|---|"]
        out += [_option(option, context) for option in options]
    return out


def _option(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" `{cell(option.make_metavar(context))}`"
    if isinstance(option.type, click.IntRange):
        value = " `NUMBER`" if option.metavar is None else value
    more = " May be repeated." if option.multiple and "repeated" not in (option.help or "") else ""
    if isinstance(option.type, click.IntRange) and option.type.min is not None:
        more += f" From {option.type.min}" + (f" to {option.type.max}." if option.type.max is not None else " on.")
    if option.envvar:
        more += f" Also from the environment: `{option.envvar}`."
    shown = option.to_info_dict()["default"]
    default = f"`{shown}`" if isinstance(shown, str | int | float) and not isinstance(shown, bool) else ""
    return f"| {names}{value} | {cell((option.help or '') + more)} | {default} |"


def metric_page() -> str:
    """metrics.md: the table that computes them, with formulas and who else computes them so."""
    symbols = (metrics.table.__doc__ or "").split("Symbols: ")[1]
    out = [
        NOTE,
        "",
        "# Metrics",
        "",
        "An objective is `METRIC@CONCURRENCY`, a constraint `METRIC[@CONCURRENCY] < LIMIT [UNIT]`. Percentiles are",
        "numpy's linear interpolation over single requests. How gains, intervals and break-even come of these:",
        "[measurement.md](../measurement.md).",
        "",
        *textwrap.wrap(f"Symbols: {' '.join(symbols.split())}".replace("``", "`"), width=120),
        "",
        "| metric | unit | better | what it says | formula | also computed so by |",
        "|---|---|---|---|---|---|",
    ]
    for row in metrics.METRICS.values():
        words = [f"`{row.name}`", row.unit, row.better, row.description, f"`{row.formula}`", row.source]
        out.append("| " + " | ".join(cell(word) for word in words) + " |")
    return "\n".join(out) + "\n"


def pages() -> dict[str, str]:
    """File name -> content of everything in docs/reference/."""
    return {
        "cli.md": command_page(),
        "metrics.md": metric_page(),
        "yaml.md": f"{NOTE}\n\n{yaml_page.page(cell)}",
        "verdicts.md": f"{NOTE}\n\n{verdict_page.page(cell)}",
        "database.md": f"{NOTE}\n\n{database_page.page(cell)}",
        "database.svg": database_page.picture(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS / "reference")
    options: Any = parser.parse_args()
    if silent := yaml_page.undocumented() + database_page.undocumented() + verdict_page.undocumented():
        sys.exit(f"these say nothing of themselves: {', '.join(silent)}")
    stale = 0
    for name, text in pages().items():
        path = options.folder / name
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if there == text:
            continue
        stale += 1
        if options.check:
            lines = difflib.unified_diff(
                there.splitlines(), text.splitlines(), str(path), "as made now", n=0, lineterm=""
            )
            sys.stdout.write("\n".join(list(lines)[:40]) + "\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.name}\n")
    if options.check and stale:
        sys.exit(f"{stale} pages are stale: run `make docs`")


if __name__ == "__main__":
    main()
