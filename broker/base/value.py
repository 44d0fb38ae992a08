"""``Value``: an immutable record; the annotations of its class are its fields.

It is written and behaves as a frozen dataclass. A dataclass compiles six methods for its class when its module is
imported, which takes half a millisecond: thirty of them were a tenth of a start. Here the methods are written once, and
read the names of the fields from the class. Creating an instance takes longer than a dataclass's generated code: types
with an instance for each message or request remain dataclasses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NoReturn, Self, dataclass_transform

__all__ = ["Value", "fields"]

_REQUIRED: Final = object()
"""Stands for the value of a field without a default."""


@dataclass_transform(frozen_default=True)
class Value:
    """The base class of immutable records. A default is shared by all instances, so it must be immutable, too.

    Fields are not inherited. ``hidden`` names the fields that ``repr`` leaves out, such as secrets.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    """The names of the fields, in order."""
    _initial: ClassVar[dict[str, Any]] = {}
    """The default of each field, in order."""
    _hidden: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, hidden: Sequence[str] = ()) -> None:
        names = tuple(name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar"))
        cls.__match_args__ = names  # type: ignore[misc]  # mypy derives it for each class, too
        cls._initial = {name: vars(cls).get(name, _REQUIRED) for name in names}
        cls._hidden = frozenset(hidden)

    def __init__(self, *positional: Any, **named: Any) -> None:
        values = self.__dict__
        values.update(self._initial)
        values.update(zip(self.__match_args__, positional, strict=False))
        values.update(named)
        problem = _problem(self.__match_args__, positional, named, values)
        if problem:
            raise TypeError(f"{type(self).__name__} {problem}")
        self.__post_init__()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values for some fields. Raises: TypeError for an unknown field."""
        return type(self)(**{**self.__dict__, **changes})

    def __post_init__(self) -> None:
        """Check the values of a new instance."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if name not in self._hidden)
        return f"{type(self).__name__}({shown})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot assign to {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name}")


def fields(of: Value | type[Value]) -> tuple[str, ...]:
    """Return the names of the fields, in order."""
    return of.__match_args__


def _problem(names: tuple[str, ...], positional: tuple[Any, ...], named: dict[str, Any], values: dict[str, Any]) -> str:
    """Return what is wrong with the arguments, or "" if nothing is."""
    if len(positional) > len(names):
        return f"takes {len(names)} values, not {len(positional)}"
    if len(values) > len(names):
        return f"has no field {next(name for name in named if name not in names)}"
    if positional and (twice := [name for name in names[:len(positional)] if name in named]):
        return f"was given {twice[0]} twice"
    missing = [name for name, value in values.items() if value is _REQUIRED]
    return f"needs a value for {', '.join(missing)}" if missing else ""
