"""Command lines for a login shell that may be any shell.

``sshd`` hands the command to the user's login shell, which may be sh, bash, zsh, fish or csh. They agree on plain words
and on single quotes around text without backslash, exclamation mark, newline and quote; whatever else a caller passes
travels as octal escapes that a POSIX ``sh`` started by that shell turns back.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*")
_SAFE_IN_PRINTF = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@+=:,./- ")


def remote_command(argv: Sequence[str]) -> str:
    """One line that runs exactly ``argv`` in any login shell. A NUL byte, which no argv can hold, is a ValueError."""
    if any("\0" in word for word in argv):
        raise ValueError("a command line cannot hold a NUL byte")
    line = shlex.join(argv)
    if all(_PLAIN.fullmatch(word) for word in argv):
        return f"exec {line}"
    escaped = "".join(chr(b) if b in _SAFE_IN_PRINTF else f"\\{b:03o}" for b in line.encode("utf-8", "surrogateescape"))
    return f'exec sh -c \'eval "exec $(printf "{escaped}")"\''
