"""The error messages of Go's JSON scanner for invalid JSON.

Clients and tools show these messages, so an invalid request is scanned again here, slowly, only to word the answer.
The scanner is the grammar as a table of states; nothing is decoded.
"""

from __future__ import annotations

import re

__all__ = ["syntax_error", "unmarshal_error"]

_SPACES = re.compile("[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_DIGITS = re.compile("[0-9]*")
_DEPTH_MAX = 10_000
_ESCAPES = set('"\\/bfnrtu')
_WORDS = {"t": "true", "f": "false", "n": "null"}


class _Unexpected(Exception):
    """An unexpected character; args are its offset (0-based) and Go's description of the context."""


class _BadEscape(Exception):
    """An invalid escape sequence; args are the offset after it and its text."""


class _Ended(Exception):
    """The text ended inside a value."""


def syntax_error(source: str, *, one: bool = False) -> str:
    """Go's message for the first error in ``source``.

    ``one``: any second value is an error (Unmarshal); otherwise only invalid syntax is (Decoder).

    Offsets count bytes of UTF-8 from 1, at the unexpected character; the decoder gives none for text that ends too
    soon.
    """
    at = 0
    try:
        while True:
            at = _skip(source, at)
            if at == len(source):
                return "unexpected EOF"
            at = _value(source, at, 0)
            if one and (at := _skip(source, at)) < len(source):
                raise _Unexpected(at, "after top-level value")
    except _Ended:
        return "unexpected EOF"
    except RecursionError:
        return "exceeded max depth"
    except _BadEscape as found:
        end, escape = found.args
        return f"invalid escape sequence `{escape}` in string at offset {_bytes(source, end)}"
    except _Unexpected as found:
        offset, place = found.args
        if place == "exceeded max depth":
            return f"exceeded max depth at offset {offset + 1}"
        return f"invalid character {_quote(source[offset])} {place} at offset {_bytes(source, offset) + 1}"


def unmarshal_error(source: str) -> str:
    """The message of Unmarshal, which takes exactly one value and gives no offset."""
    reason = syntax_error(source, one=True).partition(" at offset ")[0]
    return "unexpected end of JSON input" if reason == "unexpected EOF" else reason


def _bytes(source: str, end: int) -> int:
    return len(source[:end].encode("utf-8", "replace"))


def _quote(char: str) -> str:
    if char == "'":
        return r"'\''"
    if char == '"':
        return "'\"'"
    special = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": "\\\\", "\b": r"\b", "\f": r"\f"}
    if char in special:
        return f"'{special[char]}'"
    return f"'\\x{ord(char):02x}'" if ord(char) < 32 else f"'{char}'"


def _skip(source: str, at: int) -> int:
    found = _SPACES.match(source, at)
    return found.end() if found else at


def _peek(source: str, at: int) -> str:
    if at >= len(source):
        raise _Ended
    return source[at]


def _value(source: str, at: int, depth: int) -> int:
    """Skip one value that begins at ``at``; returns where it ends."""
    char = _peek(source, at)
    if char in "{[" and depth >= _DEPTH_MAX:
        raise _Unexpected(at, "exceeded max depth")
    if char == "{":
        return _object(source, at + 1, depth + 1)
    if char == "[":
        return _array(source, at + 1, depth + 1)
    if char == '"':
        return _string(source, at + 1)
    if char == "-" or _digit(char):
        return _number(source, at)
    if char in _WORDS:
        word = _WORDS[char]
        for i, letter in enumerate(word[1:], 1):
            if _peek(source, at + i) != letter:
                raise _Unexpected(at + i, f"in literal {word} (expecting '{letter}')")
        return at + len(word)
    raise _Unexpected(at, "looking for beginning of value")


def _object(source: str, at: int, depth: int) -> int:
    at = _skip(source, at)
    if _peek(source, at) == "}":
        return at + 1
    while True:
        at = _skip(source, at)
        if _peek(source, at) != '"':
            raise _Unexpected(at, "looking for beginning of object key string")
        at = _skip(source, _string(source, at + 1))
        if _peek(source, at) != ":":
            raise _Unexpected(at, "after object key")
        at = _skip(source, _value(source, _skip(source, at + 1), depth))
        char = _peek(source, at)
        if char == "}":
            return at + 1
        if char != ",":
            raise _Unexpected(at, "after object key:value pair")
        at += 1


def _array(source: str, at: int, depth: int) -> int:
    at = _skip(source, at)
    if _peek(source, at) == "]":
        return at + 1
    while True:
        at = _skip(source, _value(source, _skip(source, at), depth))
        char = _peek(source, at)
        if char == "]":
            return at + 1
        if char != ",":
            raise _Unexpected(at, "after array element")
        at += 1


def _string(source: str, at: int) -> int:
    while True:
        if (plain := _PLAIN.match(source, at)) is not None:
            at = plain.end()
        char = _peek(source, at)
        if char == '"':
            return at + 1
        if char == "\\":
            at += 1
            escape = _peek(source, at)
            if escape not in _ESCAPES:
                raise _BadEscape(at + 1, "\\" + escape)
            if escape == "u":
                digits = source[at + 1:at + 5]
                if any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                    raise _BadEscape(at + 5, "\\u" + digits)
                if len(digits) < 4:
                    raise _Ended
                at += 4
        else:
            raise _Unexpected(at, "in string")
        at += 1


def _number(source: str, at: int) -> int:
    if source[at] == "-":
        at += 1
        if not _digit(_peek(source, at)):
            raise _Unexpected(at, "in numeric literal")
    if source[at] == "0":
        at += 1
    else:
        at = _digits(source, at)
    if at < len(source) and source[at] == ".":
        if not _digit(_peek(source, at + 1)):
            raise _Unexpected(at + 1, "in numeric literal")
        at = _digits(source, at + 1)
    if at < len(source) and source[at] in "eE":
        at += 1
        if _peek(source, at) in "+-":
            at += 1
        if not _digit(_peek(source, at)):
            raise _Unexpected(at, "in numeric literal")
        at = _digits(source, at)
    return at


def _digit(char: str) -> bool:
    return "0" <= char <= "9"


def _digits(source: str, at: int) -> int:
    found = _DIGITS.match(source, at)
    return found.end() if found else at
