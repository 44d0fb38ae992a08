"""Classes whose methods are generated at first use: they do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from broker.dataclass import dataclass as deferred

ROOT = __file__.rpartition("/tests/")[0]


class Base(ABC):
    __slots__ = ()

    @abstractmethod
    def double(self) -> int: ...


def classes(decorate: Callable[[type], type]) -> list[type]:
    """New classes with every kind of field and method that the broker has."""
    class Plain(Base):
        """It has all kinds of fields."""

        KIND: ClassVar[str] = "kind"
        first: int
        second: str = "x"
        third: list[int] = dataclasses.field(default_factory=list, compare=False)
        secret: str = dataclasses.field(default="s", repr=False, metadata={"a": 1})

        def double(self) -> int:
            return 2 * self.first

        @property
        def named(self) -> str:
            return f"{self.second}{self.first}"

    plain: Any = decorate(Plain)

    class Checked(plain):
        """It has methods of its own."""

        fourth: int = 4

        def __post_init__(self) -> None:
            if self.fourth < 0:
                raise ValueError("negative")

        def __repr__(self) -> str:
            return "own"

    class Equal(plain):
        """It defines equality, and so has no hash of its own."""

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self)

    return [plain, decorate(Checked), decorate(Equal)]


def outcome(do: Callable[[], Any]) -> object:
    """What it returns, or the type and text of its error."""
    try:
        return do()
    except Exception as error:
        return type(error).__name__, str(error)


OPTIONS = [{"frozen": frozen, "eq": eq} for frozen in (False, True) for eq in (False, True)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_does_what_the_standard_library_does(options: dict[str, bool]) -> None:
    """Each use comes first on a new class, so that each is the one that generates the methods."""
    uses: list[Callable[[Any], object]] = [
        lambda cls: repr(cls(1)), lambda cls: cls(1) == cls(1), lambda cls: cls(1) == cls(2), lambda cls: cls(1) != 1,
        lambda cls: len({hash(one) for one in [cls(1), cls(1)]}), lambda cls: len({cls(1), cls(1)}), lambda cls: cls(),
        lambda cls: cls(1, nothing=2), lambda cls: setattr(cls(1), "first", 2), lambda cls: delattr(cls(1), "first"),
        lambda cls: cls.__hash__ is None, lambda cls: cls(5).double(), lambda cls: cls(5).named, lambda cls: cls.KIND,
        lambda cls: [(field.name, field.type, field.default, dict(field.metadata)) for field in dataclasses.fields(cls)],
        lambda cls: repr(dataclasses.replace(cls(1), second="y")), lambda cls: dataclasses.asdict(cls(1)),
        lambda cls: cls(1).third is cls(1).third, lambda cls: cls.__match_args__, lambda cls: hasattr(cls(1), "__dict__"),
        lambda cls: dataclasses.is_dataclass(cls), lambda cls: repr(copy.copy(cls(1))), lambda cls: cls.__qualname__,
        lambda cls: cls(1, fourth=-1), lambda cls: repr(cls.__new__(cls)), lambda cls: cls.__slots__, lambda cls: cls.__doc__,
        lambda cls: cls.__dataclass_params__.frozen, lambda cls: repr(copy.deepcopy(cls(1, "z"))),
    ]
    for use in uses:
        theirs = classes(dataclasses.dataclass(slots=True, **options))  # type: ignore[call-overload]
        ours = classes(deferred(slots=True, **options))  # type: ignore[call-overload]
        for our, their in zip(ours, theirs, strict=True):
            assert outcome(partial(use, our)) == outcome(partial(use, their))


def test_subclasses() -> None:
    """A class derives its fields from one that was not used yet; ``super`` finds the methods of that one."""
    made = []
    for decorate in (dataclasses.dataclass, deferred):
        @decorate(slots=True, frozen=True)
        class First:
            one: int
            two: int = 2

        @decorate(slots=True, frozen=True)
        class Second(First):
            three: int = 3

        class Third(Second):
            def __init__(self, one: int) -> None:
                super().__init__(one, 5, three=6)

        made.append((repr(Second(1)), Second(1) == First(1), Second.__slots__, repr(Third(1)), Third(1) == Third(1),
                     {Second(1): 1}[Second(1, 2, 3)]))
    assert made[0] == made[1]


@deferred(slots=True, frozen=True)
class Sent:
    one: int
    two: str = "x"


def test_pickling_and_threads() -> None:
    """A process that never made an instance reads one; threads that generate the methods at once agree."""
    code = f"import sys; sys.path.insert(0, {ROOT!r}); import pickle; print(pickle.loads({pickle.dumps(Sent(1))!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "Sent(one=1, two='x')\n"

    @deferred(slots=True, frozen=True)
    class Shared:
        one: int

    found: list[object] = []
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        found.append((Shared(1), hash(Shared(1)), repr(Shared(1))))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
