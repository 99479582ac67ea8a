"""Conditions as a user writes them after ``--where``: read by a small parser of our own, never evaluated as Python.

::

    condition := part ("or" part)*            part  := factor ("and" factor)*
    factor    := "not" factor | "(" condition ")" | value [comparison value]
    comparison:= == != < <= > >= | in | not in
    value     := name | number[%] | 'text' | "text" | true | false | none | [value, ...]

A bare word on the right of a comparison that is no known name is text (``draft_model == k25-custom`` needs quotes for
its dash). Comparing with something that is missing is false, except ``== none``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sweep.errors import UsageError

MAX_LENGTH = 2000
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?P<percent>%)?|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")|(?P<op>==|!=|<=|>=|<|>|\(|\)|\[|\]|,|-))"
)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_KEYWORDS = ("and", "or", "not", "in")

Row = Mapping[str, Any]
_Value = Callable[[Row], Any]


@dataclass(frozen=True)
class Condition:
    """A parsed condition. ``names`` are the fields it reads."""

    text: str
    names: frozenset[str]
    _test: _Value

    def __call__(self, row: Row) -> bool:
        """Does the row (field -> value) meet it?"""
        return bool(self._test(row))


def parse(text: str, fields: Iterable[str], aliases: Mapping[str, str] | None = None) -> Condition:
    """``fields`` are the names that may be read, ``aliases`` other words for some of them. UsageError names what is
    wrong, where, and the nearest field."""
    if len(text) > MAX_LENGTH:
        raise UsageError(f"the condition has {len(text)} characters, more than {MAX_LENGTH}")
    return _Parser(text, frozenset(fields), aliases or {}).condition()


class _Parser:
    def __init__(self, text: str, fields: frozenset[str], aliases: Mapping[str, str]) -> None:
        self._text = text
        self._fields = fields
        self._aliases = aliases
        self._names: set[str] = set()
        self._tokens = list(self._scan())
        self._at = 0
        self._depth = 0

    def condition(self) -> Condition:
        if not self._tokens:
            raise UsageError("the condition is empty")
        test = self._or()
        if self._at < len(self._tokens):
            raise self._error("something is left over")
        return Condition(self._text, frozenset(self._names), test)

    # ------------------------------------------------------------------ tokens

    def _scan(self) -> Iterable[tuple[str, Any, int]]:
        """(kind, value, position)"""
        place = 0
        while self._text[place:].strip():
            match = _TOKEN.match(self._text, place)
            if match is None:
                bad = self._text[place:].strip()[0]
                raise UsageError(f"cannot read {bad!r} in the condition {self._text!r}")
            place = match.end()
            at = match.start(str(match.lastgroup))
            if match["number"] is not None:
                number = float(match["number"])
                yield "value", number / 100 if match["percent"] else number, match.start("number")
            elif match["text"] is not None:
                yield "value", match["text"][1:-1], at
            elif match["op"] is not None:
                yield "op", match["op"], at
            elif match["name"].lower() in _KEYWORDS:
                yield "op", match["name"].lower(), at
            elif match["name"].lower() in _WORDS:
                yield "value", _WORDS[match["name"].lower()], at
            else:
                yield "name", match["name"], at

    def _peek(self) -> tuple[str, Any]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", None)

    def _take(self, value: str) -> bool:
        if self._peek() == ("op", value):
            self._at += 1
            return True
        return False

    def _need(self, value: str) -> None:
        if not self._take(value):
            raise self._error(f"{value!r} is missing")

    def _error(self, what: str) -> UsageError:
        at = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
        return UsageError(f"{what} at character {at + 1} of the condition {self._text!r}")

    # ------------------------------------------------------------------ grammar

    def _or(self) -> _Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels")
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _and(self) -> _Value:
        parts = [self._factor()]
        while self._take("and"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def _factor(self) -> _Value:
        negated = False
        while self._take("not"):
            negated = not negated
        test = self._grouped() if self._take("(") else self._comparison()
        return (lambda row: not test(row)) if negated else test

    def _grouped(self) -> _Value:
        test = self._or()
        self._need(")")
        return test

    def _comparison(self) -> _Value:
        left = self._value(right=False)
        kind, word = self._peek()
        if kind == "op" and word in _COMPARE:
            self._at += 1
            return self._compare(_COMPARE[word], left)
        if self._take("in"):
            return self._compare(_inside, left)
        if self._take("not"):
            self._need("in")
            inside = self._compare(_inside, left)
            return lambda row: not inside(row)
        return left

    def _compare(self, operation: Callable[[Any, Any], bool], left: _Value) -> _Value:
        right = self._value(right=True)
        return lambda row: operation(left(row), right(row))

    def _value(self, *, right: bool) -> _Value:
        if self._take("["):
            items: list[_Value] = []
            while not self._take("]"):
                items.append(self._value(right=True))
                if not self._take(","):
                    self._need("]")
                    break
            return lambda row: [item(row) for item in items]
        negative = self._take("-")
        kind, word = self._peek()
        if kind == "value" and not (negative and not isinstance(word, float)):
            self._at += 1
            constant = -word if negative else word
            return lambda row: constant
        if kind == "name" and not negative:
            return self._name(word, right)
        raise self._error("a value is missing")

    def _name(self, word: str, right: bool) -> _Value:
        name = self._aliases.get(word, word)
        if name in self._fields:
            self._at += 1
            self._names.add(name)
            return lambda row: row.get(name)
        if right:
            self._at += 1
            return lambda row: word
        known = sorted(self._fields | set(self._aliases))
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise self._error(f"unknown field {word!r}; {hint}")


def _ordered(operation: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(left: Any, right: Any) -> bool:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        texts = isinstance(left, str) and isinstance(right, str)
        return operation(left, right) if numbers or texts else False

    return compare


def _inside(item: Any, collection: Any) -> bool:
    return item in collection if isinstance(collection, list | tuple | frozenset | set) else False


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}
