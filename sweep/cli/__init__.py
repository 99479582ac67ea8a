"""The `sweep` command: parsing, rendering and exit codes only. Every command's module is imported when it is called."""

from __future__ import annotations

from sweep.cli.main import cli, main

__all__ = ["cli", "main"]
