"""Takes secrets out of everything that is stored or shown: server_info, log lines, argv.

Two nets, both always cast. By name: whatever a key, flag or header that names a credential holds. By value: every
secret that is known (the launch's API key, values of secret environment variables), in each form in which a server or
a shell may print it. A secret of fewer than ``supervisor.MIN_SECRET`` characters is found by name only: by value it
would match everywhere. The host's log knows the same limit, and ``sweep.config.secret`` lets no shorter one begin.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from launchers.supervisor import MIN_SECRET

MASK = "***"

# The last words of a name decide, so that max_total_tokens, tokenizer_path and token_capacity stay readable.
_KEYS = r"(?:api[_-]?keys?|access[_-]?key|private[_-]?key|secret[_-]?key|password|passwd)"
_NAMES = rf"(?:{_KEYS}|token|secret|credentials?)"
_NAME = re.compile(rf"(?:^|[_\-.]){_NAMES}$|^(?:proxy-)?authorization$|(?:^|[_-])secret(?:[_-]|$)", re.IGNORECASE)
# What may stand before: bounded, since a line of dots or dashes is a beginning of a name at each of its places.
_BEFORE = r"(?:[\w\-.]{0,100}[_\-.])?"
_WORD = rf"{_BEFORE}{_NAMES}"
_ANY_NAME = re.compile(_NAMES, re.IGNORECASE)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_BY_NAME = (
    # name='value', 'name': 'value', "name": "value", NAME=value; None, True and numbers say nothing secret
    re.compile(rf"(?P<keep>(?<![\w\-]){_WORD}['\"]?\s*[=:]\s*)(?P<secret>{_QUOTED})", re.IGNORECASE),
    re.compile(rf"(?P<keep>(?<![\w\-]){_WORD}=)(?P<secret>(?!None\b|null\b)[^\s'\",)}}&]+)", re.IGNORECASE),
    # a header, a line of YAML; not `token:`, which counts tokens in every line of a server's log
    re.compile(rf"(?P<keep>(?<![\w\-]){_BEFORE}{_KEYS}\s*:\s+)(?P<secret>(?!None\b|null\b)[^\s'\",]+)", re.IGNORECASE),
    re.compile(rf"(?P<keep>--{_WORD}(?:\s+|=))(?P<secret>{_QUOTED}|[^\s'\",\]]+)", re.IGNORECASE),
    # list reprs of argv: '--api-key', 'value'
    re.compile(rf"(?P<keep>['\"]--{_WORD}['\"],\s*)(?P<secret>{_QUOTED})", re.IGNORECASE),
)
_BY_SHAPE = (
    re.compile(r"(?P<keep>\b(?:Bearer|Basic)\s+)(?P<secret>[A-Za-z0-9._~+/=\-]{8,})"),
    re.compile(r"(?P<keep>)(?P<secret>\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}))"),
    re.compile(r"(?P<keep>\w{1,20}://[^\s/:@]*:)(?P<secret>[^\s/@]+)(?=@)"),
)


class Redactor:
    """Knows the secrets of one launch. Immutable; safe to share between threads."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            # A log is read line by line: each line of a secret of several lines is one of its own.
            for part in (secret, *secret.splitlines(), secret.strip()):
                forms.update(form for form in _forms(part) if len(form) >= MIN_SECRET)
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """A log line or any other text, secrets masked."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern in (*(_BY_NAME if _ANY_NAME.search(text) else ()), *_BY_SHAPE):
            text = pattern.sub(_mask, text)
        return text

    def value(self, value: Any) -> Any:
        """A copy of a JSON value: strings masked, whatever a credential's key holds replaced whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(key) if isinstance(key, str) else key: MASK
                if isinstance(key, str) and _NAME.search(key) and item not in (None, "", False)
                else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return self.argv(value) if all(isinstance(item, str) for item in value) else [self.value(i) for i in value]
        return value

    def argv(self, argv: Sequence[str]) -> list[str]:
        """A command's words: the word after a credential's flag is masked whole."""
        out: list[str] = []
        hide_next = False
        for word in argv:
            if hide_next:
                out.append(MASK)
            else:
                name, equals, _ = word.partition("=")
                hidden = bool(equals) and _NAME.search(name.lstrip("-")) is not None
                out.append(f"{name}={MASK}" if hidden else self.text(word))
            hide_next = not hide_next and word.startswith("--") and _NAME.search(word[2:]) is not None
        return out


def _mask(match: re.Match[str]) -> str:
    secret = match["secret"]
    mark = secret[0] if secret[:1] in "'\"" and len(secret) > 1 else ""
    return f"{match['keep']}{mark}{MASK}{mark}"


def _forms(secret: str) -> Iterable[str]:
    """How a program may print a secret: as it is, Python and JSON escapes, quoted for a shell or a URL."""
    yield secret
    yield repr(secret)[1:-1]
    yield repr("'" + secret)[1:-1][1:]  # Python's other quote mark, used when the text holds a '
    yield repr('"' + secret)[1:-1][1:]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield secret.encode("unicode_escape").decode("ascii")
    yield shlex.quote(secret)
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
