"""From raw log lines to messages: what a server said, without time, rank and progress bars.

Patterns are matched at the start of a message, so that a prompt or a file name holding the same words is never taken
for the server's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 600  # characters of a message that are stored as evidence
_MOST = 1 << 16  # characters of one raw line that are looked at; a server_args= line has about 20,000
_STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z]+\d+)*\]"
PREFIX = re.compile(rf"(?:{_STAMP} ?)?(?:\[rank\d+\]: )?")
_INSIDE = re.compile(rf"(?<=[^\s])\s*(?={_STAMP} )")
_REQUEST = re.compile(r"(?:Receive|Finish): ")  # request logging repeats prompts: those lines stay whole


def messages(line: str) -> Iterator[str]:
    """The messages of one raw line: several where a server wrote no newline between them.

    A redrawn progress bar counts as its last state. Lines of undecodable bytes come in with replacement characters.
    """
    line = line[:_MOST].rstrip("\r\n")
    if "\r" in line:
        line = line.rpartition("\r")[2]
    if _REQUEST.match(body := _bare(line)):
        yield body
        return
    yield from map(_bare, _INSIDE.split(line))


def _bare(text: str) -> str:
    prefix = PREFIX.match(text)
    return text[prefix.end() :] if prefix else text
