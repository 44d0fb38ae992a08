"""Immutable records behave like frozen dataclasses: equality, hash, repr, copies, and errors for wrong arguments."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.accounts import User
from broker.base.value import Value, fields
from broker.config.settings import AuthSettings, Settings, StorageSettings


class Point(Value, hidden=["secret"]):
    """A record with fields of each kind."""

    KINDS: ClassVar[int] = 3

    x: int
    label: str = ""
    secret: str = "none"

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@dataclasses.dataclass(frozen=True)
class Model:
    x: int
    label: str = ""
    secret: str = dataclasses.field(default="none", repr=False)


class Other(Value):
    x: int
    label: str = ""
    secret: str = "none"


ARGUMENTS = st.tuples(
    st.lists(st.integers(0, 2) | st.sampled_from(["", "a"]), max_size=4),
    st.dictionaries(st.sampled_from(["x", "label", "secret", "unknown"]), st.integers(0, 2), max_size=3))


def made(of: Any, positional: list[Any], named: dict[str, Any]) -> Any:
    """Return an instance. Raises: TypeError for wrong arguments."""
    try:
        return of(*positional, **named)
    except TypeError:
        return TypeError


@given(ARGUMENTS, ARGUMENTS)
def test_like_a_frozen_dataclass(first: tuple[list[Any], dict[str, Any]],
                                 second: tuple[list[Any], dict[str, Any]]) -> None:
    """Both take the same arguments, and compare, hash and display alike."""
    first[0][:1] = [abs(hash(first[0][0])) % 3] if first[0] else []  # x is a number
    second[0][:1] = [abs(hash(second[0][0])) % 3] if second[0] else []
    ours, models = [made(Point, *one) for one in (first, second)], [made(Model, *one) for one in (first, second)]
    assert [one is TypeError for one in ours] == [one is TypeError for one in models]
    assert (ours[0] == ours[1]) == (models[0] == models[1])
    for one, model in zip(ours, models, strict=True):
        if one is TypeError:
            continue
        assert repr(one) == repr(model).replace("Model", "Point")
        assert {name: getattr(one, name) for name in fields(Point)} == dataclasses.asdict(model)
        assert hash(one) == hash(Point(*(getattr(one, name) for name in fields(one))))
        assert one.replace(label="new") == Point(one.x, "new", one.secret)
        assert copy.copy(one) == pickle.loads(pickle.dumps(one)) == one
        assert one != Other(one.x, one.label, one.secret)


def test_errors() -> None:
    """Errors name the class and the field."""
    for positional, named, why in (([], {}, "needs a value for x"), ([1, "a", "b", "c"], {}, "takes 3 values, not 4"),
                                   ([1], {"x": 2}, "was given x twice"), ([1], {"y": 2}, "has no field y")):
        with pytest.raises(TypeError, match=f"Point {why}"):
            Point(*positional, **named)
    with pytest.raises(TypeError, match="has no field y"):
        Point(1).replace(y=1)
    with pytest.raises(ValueError, match="negative"):
        Point(1).replace(x=-1)
    point: Any = Point(1)
    with pytest.raises(AttributeError, match="cannot assign to x"):
        point.x = 2
    with pytest.raises(AttributeError, match="cannot delete x"):
        del point.x
    assert (point.x, fields(Point)) == (1, ("x", "label", "secret"))


def test_no_secret_is_displayed() -> None:
    """Neither users nor settings show a secret in ``repr``."""
    shown = repr(Settings(auth=AuthSettings(password="hunter2", token="hunter2", users=(User("u", "hunter2"),)),
                          storage=StorageSettings(s3_secret_access_key="hunter2")))
    assert "hunter2" not in shown
    assert "User(user='u', account=" in shown
