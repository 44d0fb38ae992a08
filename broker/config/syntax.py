r"""Parses nats-server's configuration language into values with their places.

    items    key: value | key = value | key value | key { … } | include FILE
             ended by a newline, a comma or a semicolon; the whole file may be one { … }, so JSON is read too
    comments # … and // … to the end of the line
    values   { map }  [ array ]  "text with \n \t \r \" \\ \xHH"  'text as it is'  (\n block of text \n)
             bare text, true/yes/on, false/no/off, 12, 128KB, 1.5, 2006-01-02T15:04:05Z, $variable
    $name    a key set before, in this or an outer map, otherwise an environment variable, read as a value;
             $2a$… is not a variable but a bcrypt hash

No I/O: included files are read through the given ``read``. Keys are kept as written; a repeated key keeps its last
value. A place is a line (from 1) and a column as nats-server counts them: from 0 on the first line, from 1 on the
others.
Source: nats-server conf/lex.go, conf/parse.go.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

__all__ = ["SyntaxFailure", "Value", "parse", "plain"]

DEPTH_MAX = 64
"""The deepest nesting of maps, arrays and included files; more is a mistake or an attack."""

_BLANK = re.compile(r"(?:[ \t]+|\r(?=\n))*")
_SPACE = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*)*")
_PURE_SPACE = re.compile(r"\s*")
_COMMENT = re.compile(r"#[^\n]*|//[^\n]*")
_KEY = re.compile(r"[^\s:=]+")
_BARE = re.compile(r"[^\s,;\]}\\]+")
_INTEGER = re.compile(r"(-?\d+)([kmgtpe](?:b|ib|i)?)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_FACTORS = {letter: i + 1 for i, letter in enumerate("kmgtpe")}
_INT64 = 1 << 63


class SyntaxFailure(Exception):
    """The text is not in the language, or names a variable or file that does not exist."""


@dataclass(slots=True)
class Value:
    """A value and the place of its key (for an array's item, its own place).

    ``value`` is a str, int, float, bool, datetime, list[Value] or dict[str, Value].
    """

    value: Any
    file: str
    line: int
    column: int
    literal: str = ""
    """The written form of a number, for settings in which ``10m`` means minutes."""
    used: bool = False
    """True if a ``$variable`` refers to it: such a key may have any name."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def parse(text: str, *, file: str = "", environ: Mapping[str, str] | None = None,
          read: Callable[[str], str] | None = None) -> Value:
    """Read a whole configuration; the result's ``value`` is its outermost map.

    Args: ``file`` is for messages, and the base of included paths; ``read(path)`` returns an included file's text
        (None: nothing can be included).
    Raises: SyntaxFailure.
    """
    return _Reader(text, file, environ or {}, read, (file,), frozenset()).whole()


def plain(value: Value) -> Any:
    """Return the value without its places, for tests and messages."""
    inner = value.value
    if isinstance(inner, dict):
        return {key: plain(item) for key, item in inner.items()}
    return [plain(item) for item in inner] if isinstance(inner, list) else inner


class _Reader:
    """Reads one text: a position in it and the enclosing maps."""

    def __init__(self, text: str, file: str, environ: Mapping[str, str], read: Callable[[str], str] | None,
                 files: tuple[str, ...], asked: frozenset[str]) -> None:
        self.text = text.removeprefix("\ufeff")
        self.newlines = [match.start() for match in re.finditer("\n", self.text)]
        self.file = file
        self.environ = environ
        self.read = read
        self.files = files
        self.asked = asked
        self.at = 0
        self.depth = 0
        self.scopes: list[dict[str, Value]] = []

    # ---- places and failures

    def place(self, at: int) -> tuple[int, int]:
        lines = bisect_left(self.newlines, at)
        return lines + 1, at - (self.newlines[lines - 1] if lines else 0)

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        line, _ = self.place(self.at if at is None else at)
        where = f"{self.file}: " if self.file else ""
        raise SyntaxFailure(f"{where}Parse error on line {line}: '{why}'")

    def seen(self) -> str:
        return repr(self.text[self.at])[1:-1] if self.at < len(self.text) else "end of file"

    def make(self, value: Any, at: int, literal: str = "") -> Value:
        return Value(value, self.file, *self.place(at), literal)

    # ---- structure

    def whole(self) -> Value:
        self.skip(_SPACE)
        start = self.at
        if self.text.startswith("{", self.at):
            self.at += 1
            top = self.items("}")
            self.skip(_SPACE)
            if self.at < len(self.text):
                self.fail(f"Expected nothing after the closing '}}', but got '{self.seen()}' instead.")
        else:
            top = self.items("")
        return self.make(top, start)

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        assert found is not None  # each of these patterns matches the empty string
        self.at = found.end()

    def items(self, end: str) -> dict[str, Value]:
        """Read keys and values up to ``end`` ("" is the end of the text), which is consumed too."""
        self.enter_block()
        inside: dict[str, Value] = {}
        self.scopes.append(inside)
        while True:
            self.skip(_SPACE)
            if self.at >= len(self.text):
                if end:
                    self.fail("Unexpected EOF processing map.")
                break
            if self.text[self.at] in ",;":
                self.fail(f"Unexpected separator '{self.seen()}' where a key was expected.")
            if end and self.text[self.at] == end:
                self.at += 1
                break
            self.item(inside, in_map=bool(end))
            self.end_of_item(end)
        self.scopes.pop()
        self.depth -= 1
        return inside

    def enter_block(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail(f"More than {DEPTH_MAX} maps and arrays within each other.")

    def end_of_item(self, end: str) -> None:
        """Skip at most one separator, on the item's own line; a newline or a comment also separates."""
        self.skip(_BLANK)
        if self.text[self.at:self.at + 1] in (",", ";"):
            self.at += 1
            return
        if (comment := _COMMENT.match(self.text, self.at)) is not None:
            self.at = comment.end()
        if self.at < len(self.text) and self.text[self.at] not in "\r\n" + end:
            what = f'map value terminator "," or a map terminator "{end}"' if end else \
                "top-level value to end with a new line, comment or EOF"
            self.fail(f"Expected a {what}, but got '{self.seen()}' instead.")

    def item(self, inside: dict[str, Value], in_map: bool) -> None:
        start = self.at
        key, quoted = self.key()
        if not quoted and key.lower() == "include" and self.text[self.at:self.at + 1].isspace():
            inside.update(self.include())
            return
        self.skip(_PURE_SPACE)
        if self.at < len(self.text) and self.text[self.at] in ":=":
            self.at += 1
            # Within a map the value may be on the next line; at the top level it may not.
            self.skip(_PURE_SPACE if in_map else _BLANK)
        if self.at >= len(self.text):
            self.fail(f"Expected a value for the key '{key[:80]}', but got end of file instead.")
        if self.text[self.at] in "\r\n":
            self.fail("Expected value but found new line", start)
        if self.text[self.at] in ",;}]":
            self.fail(f"Expected a value for the key '{key[:80]}', but got '{self.seen()}' instead.")
        value = self.value()
        # The key's place is more useful than the value's; a variable's value keeps the place of its use.
        inside[key] = Value(value.value, self.file, *self.place(start), value.literal)

    def key(self) -> tuple[str, bool]:
        opening = self.text[self.at]
        if opening in "\"'":
            end = self.text.find(opening, self.at + 1)
            if end < 0:
                self.fail("Unexpected EOF processing quoted map key.")
            key = self.text[self.at + 1:end]
            self.at = end + 1
            return key, True
        if opening in "[]{}":
            self.fail(f"Unexpected '{opening}' where a key was expected.")
        found = _KEY.match(self.text, self.at)
        if found is None:
            self.fail(f"Unexpected key separator '{self.seen()}'")
        self.at = found.end()
        return found[0], False

    def include(self) -> dict[str, Value]:
        self.skip(_BLANK)
        start = self.at
        if self.text[self.at:self.at + 1] in ("'", '"'):
            path = self.quoted(self.text[self.at], escapes=False)
        else:
            found = _BARE.match(self.text, self.at)
            if found is None:
                self.fail("Expected include value but found new line")
            path, self.at = found[0], found.end()
        # Unlike any other path in a configuration, an included file's is relative to the file that names it.
        path = posixpath.join(posixpath.dirname(self.file), path)
        if path in self.files or len(self.files) > DEPTH_MAX:
            self.fail(f"The file '{path}' includes itself.", start)
        if self.read is None:
            self.fail("Nothing can be included here.", start)
        try:
            text = self.read(path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            self.fail(f"error parsing include file '{path}', open {path}: {why}", start)
        except ValueError:
            self.fail(f"error parsing include file '{path}', it is not UTF-8 text", start)
        reader = _Reader(text, path, self.environ, self.read, (*self.files, path), self.asked)
        included: dict[str, Value] = reader.whole().value
        return included

    # ---- values

    def value(self) -> Value:
        start = self.at
        first = self.text[self.at]
        if first == "{":
            self.at += 1
            return self.make(self.items("}"), start)
        if first == "[":
            self.at += 1
            return self.make(self.array(), start)
        if first in "\"'":
            return self.make(self.quoted(first, escapes=first == '"'), start)
        if first == "(":
            return self.make(self.block(), start)
        bare = self.bare()
        return self.word(bare, start)

    def array(self) -> list[Value]:
        self.enter_block()
        found: list[Value] = []
        while True:
            self.skip(_SPACE)
            if self.at >= len(self.text):
                self.fail("Unexpected EOF processing array.")
            first = self.text[self.at]
            if first == ",":
                self.fail("Unexpected array value terminator ','.")
            if first == "]":
                self.at += 1
                self.depth -= 1
                return found
            if first not in ";}":
                found.append(self.value())
                self.skip(_BLANK)
            after = self.text[self.at:self.at + 1]
            if after == ",":
                self.at += 1
            elif after not in "]\r\n#/":
                self.fail('Expected an array value terminator "," or an array terminator "]", '
                          f"but got '{self.seen()}' instead.")

    def quoted(self, quote: str, *, escapes: bool) -> str:
        start = self.at
        self.at += 1
        parts: list[str] = []
        while True:
            end = self.text.find(quote, self.at)
            if end < 0:
                self.fail("Unexpected EOF in a quoted string.", start)
            slash = self.text.find("\\", self.at, end) if escapes else -1
            if slash < 0:
                parts.append(self.text[self.at:end])
                self.at = end + 1
                return "".join(parts)
            parts.append(self.text[self.at:slash])
            self.at = slash + 1
            parts.append(self.escape())

    def escape(self) -> str:
        letter = self.text[self.at:self.at + 1]
        if letter == "x":
            digits = self.text[self.at + 1:self.at + 3]
            if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                self.fail(f"Expected two hexadecimal digits after '\\x', but got '{digits}'")
            self.at += 3
            return chr(int(digits, 16))
        if letter not in _ESCAPES or not letter:
            self.fail(f"Invalid escape character '{letter}'. Only the following escape characters are allowed: "
                      '\\xXX, \\t, \\n, \\r, \\", \\\\.')
        self.at += 1
        return _ESCAPES[letter]

    def block(self) -> str:
        """Read text up to a ``)`` alone at the beginning of a line."""
        end = re.compile(r"\n\)[ \t]*(?=\r?\n|\Z)").search(self.text, self.at)
        if end is None:
            self.fail("Unexpected EOF processing block.")
        inner = self.text[self.at + 1:end.start() + 1]
        self.at = end.end()
        return inner

    def bare(self) -> str:
        parts: list[str] = []
        while True:
            found = _BARE.match(self.text, self.at)
            if found is not None:
                parts.append(found[0])
                self.at = found.end()
            if not self.text.startswith("\\", self.at):
                return "".join(parts)
            self.at += 1
            parts.append(self.escape())

    def word(self, bare: str, start: int) -> Value:
        """Return the value of a bare word: a boolean, a number, a date, a variable or the word itself."""
        lower = bare.lower()
        if lower in ("true", "yes", "on"):
            return self.make(True, start)
        if lower in ("false", "no", "off"):
            return self.make(False, start)
        if bare.startswith("$") and not bare.startswith("$2a$"):
            return self.variable(bare[1:], start)
        if (number := _INTEGER.fullmatch(bare)) is not None:
            return self.make(self.integer(number, start), start, bare)
        if _FLOAT.fullmatch(bare):
            return self.make(float(bare), start, bare)
        if _DATE.fullmatch(bare):
            try:
                return self.make(datetime.strptime(bare, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC), start, bare)
            except ValueError:
                self.fail(f"expected Zulu formatted DateTime, but got '{bare}'", start)
        return self.make(bare, start)

    def integer(self, found: re.Match[str], start: int) -> int:
        digits, suffix = found[1], found[2] or ""
        # Twenty digits exceed 64 bits, and int() takes quadratic time on long ones.
        number = int(digits) if len(digits) <= 20 else _INT64
        if suffix:
            number *= (1000 if len(suffix) == 1 else 1024) ** _FACTORS[suffix[0].lower()]
        if not -_INT64 <= number < _INT64:
            self.fail(f"integer '{found[0]}' is out of the range", start)
        return number

    def variable(self, name: str, start: int) -> Value:
        for scope in reversed(self.scopes):
            if name in scope:
                scope[name].used = True
                return self.make(scope[name].value, start, scope[name].literal)
        if name in self.asked:
            self.fail(f"variable reference cycle for '{name}'", start)
        if not name or name not in self.environ:
            self.fail(f"variable reference for '{name}' on line {self.place(start)[0]} can not be found", start)
        if not self.environ[name]:
            return self.make("", start)
        inner = _Reader("pk=" + self.environ[name], f"${name}", self.environ, None, self.files, self.asked | {name})
        found = inner.items("").get("pk")
        if found is None:
            self.fail(f"variable reference for '{name}' could not be parsed", start)
        return self.make(found.value, start, found.literal)
