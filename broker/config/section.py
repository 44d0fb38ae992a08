"""``Section``: a part of the settings. Its fields are also rows of the table of settings.

    class LoggingSettings(Section):
        debug: bool = setting(False, kinds.boolean, "Log debug lines.", "debug")     a row
        tls: TlsSettings = section(TlsSettings(), "tls")                             a section, with keys in tls
        times: bool = True                                                           a field that is not a setting

An instance has plain values, and the class has the rows. The table is made from the rows when a reader needs all of
them: only a start with a configuration file or with variables in the environment does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from broker.base.value import Value
from broker.config.kinds import Kind

__all__ = ["Part", "Section", "Setting", "row_at", "rows_of", "section", "setting"]

_PREFIX = "JETBLOCK_"

Part = Literal["server", "log", "pid file", "pages"]
"""The parts of the broker that can apply new settings while it runs."""


class Setting(NamedTuple):
    """A row of the table; in a section's class, names are relative to the section."""

    path: str
    """The path in ``Settings``: ``clients.port``."""
    default: Any
    kind: Kind
    about: str
    """A description in one sentence, with the unit."""
    keys: tuple[str, ...]
    """Dotted keys in a configuration file, the usual one first; none: the file sets it in another way, if at all."""
    variable: str
    """The environment variable; "": none."""
    secret: bool = False
    reload: Part | None = None
    """The part that applies a new value while the broker runs; None: a new value needs a restart."""
    log_name: str = ""
    """nats-server's words for the setting in the log line of a reload, which then does not show the value."""


class _Inner(NamedTuple):
    """A section within another."""

    default: Section
    key: str
    """The beginning of its rows' keys, within the section around it; "": none."""


class Section(Value):
    """The base class of sections. ``repr`` leaves secrets out."""

    rows: ClassVar[dict[str, Setting | _Inner]] = {}
    """The fields that are settings or sections, by name."""

    def __init_subclass__(cls, *, hidden: Sequence[str] = ()) -> None:
        cls.rows = {}
        for name, value in list(vars(cls).items()):
            if isinstance(value, Setting | _Inner):
                cls.rows[name] = value
                setattr(cls, name, value.default)
        secrets = [name for name, row in cls.rows.items() if isinstance(row, Setting) and row.secret]
        super().__init_subclass__(hidden=[*hidden, *secrets])


def setting(default: Any, kind: Kind, about: str, *keys: str, variable: str | None = None, secret: bool = False,
            reload: Part | None = None, log_name: str = "") -> Any:
    """Declare a field that is a row of the table; see ``Setting``.

    Args: variable has no prefix; "" for none. Without it, the variable is named after the last part of the first key.
    """
    if variable is None:
        variable = keys[0].rpartition(".")[2]
    return Setting("", default, kind, about, keys, variable.upper(), secret, reload, log_name)


def section(default: Section, key: str = "") -> Any:
    """Declare a field that is a section; the keys of its rows begin with ``key``."""
    return _Inner(default, key)


def rows_of(of: type[Section], path: str = "", key: str = "") -> Iterator[Setting]:
    """All rows of a section, in order; ``path`` and ``key`` stand before their names, and end with a dot or are
    empty."""
    for name, row in of.rows.items():
        if isinstance(row, _Inner):
            yield from rows_of(type(row.default), f"{path}{name}.", _within(key, row))
        else:
            yield _named(row, path + name, key)


def row_at(of: type[Section], path: str) -> Setting:
    """Return the row of one setting. Raises: KeyError."""
    key = ""
    *sections, name = path.split(".")
    for one in sections:
        inner = of.rows[one]
        if not isinstance(inner, _Inner):
            raise KeyError(path)
        key, of = _within(key, inner), type(inner.default)
    row = of.rows[name]
    if isinstance(row, _Inner):
        raise KeyError(path)
    return _named(row, path, key)


def _within(key: str, inner: _Inner) -> str:
    return f"{key}{inner.key}." if inner.key else key


def _named(row: Setting, path: str, key: str) -> Setting:
    variable = row.variable and _PREFIX + key.upper().replace(".", "_") + row.variable
    return row._replace(path=path, keys=tuple(key + name for name in row.keys), variable=variable)
