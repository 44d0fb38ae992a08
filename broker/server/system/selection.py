"""Options by which a request to the system account selects servers; every such request may have them.

Source: nats-server, server/events.go (EventFilterOptions, filterRequest).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.base.gojson.decoding import combined, folded, kind_of, members, unmarshal

__all__ = ["Selection", "members_of"]

_TEXTS: Final = ("server_name", "host", "cluster")
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    **dict.fromkeys((*_TEXTS, "domain"), (str, "string")), "exact_match": (bool, "bool"), "tags": (list, "[]string")}


def members_of(body: bytes, go_type: str) -> dict[str, Any]:
    """Return a request's options by their lower-case names, without nulls; b"" has none.

    Raises: ValueError whose text names the options' Go type.
    """
    decoded = unmarshal(body) if body else None
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise ValueError(f"json: cannot unmarshal {kind_of(decoded)} into Go value of type server.{go_type}")
    found: dict[str, Any] = {}
    for name, value in members(decoded):
        if value is not None:
            found[folded(name)] = combined(found.get(folded(name)), value)
    return found


class Selection(NamedTuple):
    """The values of this server by which requests select it."""

    server_name: str
    host: str
    cluster: str = ""
    tags: frozenset[str] = frozenset()
    domain: str = ""

    def includes(self, members: Mapping[str, Any], go_type: str) -> bool:
        """Return whether a request with these options selects this server.

        Raises: ValueError for an option of a wrong type.
        """
        for name, (wanted, wanted_go_type) in _TYPES.items():
            value = members.get(name)
            if value is not None and not (type(value) is wanted and _has_only_texts(value)):
                raise ValueError(f"json: cannot unmarshal {kind_of(value)} into Go struct field "
                                 f"{go_type}.{name} of type {wanted_go_type}")
        exact = members.get("exact_match", False)
        for name in _TEXTS:
            value, own = members.get(name, ""), getattr(self, name)
            if value and (value != own if exact else value not in own):
                return False
        return self.tags.issuperset(members.get("tags", ())) and members.get("domain", "") in ("", self.domain)


def _has_only_texts(value: object) -> bool:
    return not isinstance(value, list) or all(type(one) is str for one in value)
