"""The options of the monitoring pages, from the query of an HTTP request or the JSON of a request to ``$SYS``.

Each page has one model, whose fields have both names: ``ConnzOptions.account`` is ``acc`` in a query and in JSON,
``SubszOptions.account`` is ``acc`` in a query and ``account`` in JSON. Names, values and error texts are nats-server's.

Source: nats-server, server/monitor.go (ConnzOptions, …, decodeBool, decodeInt, decodeUint64, decodeState, decodeSubs).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from broker.base.gojson.decoding import kind_of

__all__ = ["LIMIT", "AccountzOptions", "AccstatzOptions", "BadOption", "ConnzOptions", "GatewayzOptions",
           "HealthzOptions", "IpqueueszOptions", "JszOptions", "LeafzOptions", "NoOptions", "RaftzOptions",
           "RoutezOptions", "SubszOptions", "from_json", "from_query"]

LIMIT: Final = 1024
"""Number of rows of one page, unless the request has another."""

T = TypeVar("T")

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_STATES: Final = {"open": 0, "closed": 1, "any": 2, "all": 2}
OPEN, CLOSED, ALL = 0, 1, 2


class BadOption(ValueError):
    """An invalid option; the answer is status 400 with this text."""


class _Kind(NamedTuple):
    """A kind of option. ``parse`` reads a value from the option's name and text, which is not empty."""

    default: Any
    parse: Callable[[str, str], Any]
    go_type: str
    is_valid: Callable[[Any], bool]


def _parse_flag(name: str, text: str) -> bool:
    if text not in _TRUE and text not in _FALSE:
        raise _not_decoded("boolean", name, "ParseBool", text, "invalid syntax")
    return text in _TRUE


def _parse_integer(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        raise _not_decoded("int", name, "Atoi", text, "invalid syntax")
    if len(text) > 20 or not -1 << 63 <= int(text) < 1 << 63:
        raise _not_decoded("int", name, "Atoi", text, "value out of range")
    return int(text)


def _parse_unsigned(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text, re.ASCII):
        raise _not_decoded("uint64", name, "ParseUint", text, "invalid syntax")
    if len(text) > 20 or int(text) >= 1 << 64:
        raise _not_decoded("uint64", name, "ParseUint", text, "value out of range")
    return int(text)


def _not_decoded(kind: str, name: str, function: str, text: str, why: str) -> BadOption:
    quoted = json.dumps(text, ensure_ascii=False)
    return BadOption(f"Error decoding {kind} for '{name}': strconv.{function}: parsing {quoted}: {why}")


def _parse_state(_: str, text: str) -> int:
    state = _STATES.get(text.lower())
    if state is None:
        raise BadOption(f"Error decoding state for {text}")
    return state


def _parse_subs(name: str, text: str) -> bool:
    return text.lower() != "detail" and _parse_flag(name, text)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 << 63 <= value < 1 << 63


def _is_unsigned(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return type(value) is str  # gojson.Number, a subclass, is a number in its original spelling


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_TEXT: Final = _Kind("", lambda _, text: text, "string", _is_text)
_TEXTS: Final = _Kind((), lambda _, text: (text,), "[]string", _is_texts)
_FLAG: Final = _Kind(False, _parse_flag, "bool", _is_flag)
_INTEGER: Final = _Kind(0, _parse_integer, "int", _is_integer)
_UNSIGNED: Final = _Kind(0, _parse_unsigned, "uint64", _is_unsigned)
_STATE: Final = _Kind(OPEN, _parse_state, "server.ConnState", _is_integer)
_SUBS: Final = _Kind(False, _parse_subs, "bool", _is_flag)
_DETAIL: Final = _Kind(False, lambda _, text: text.lower() == "detail", "bool", _is_flag)


def _option(kind: _Kind, query: str, in_json: str | None = None) -> Any:
    """Make a field. ``query``: the option's name in a query; "": none. ``in_json``: its name in JSON, if it differs."""
    return dataclasses.field(default=kind.default, metadata={
        "kind": kind, "query": query, "json": query if in_json is None else in_json})


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a page that has none."""


@dataclass(frozen=True, slots=True)
class ConnzOptions:
    """See nats-server's ConnzOptions."""

    sort: str = _option(_TEXT, "sort")
    auth: bool = _option(_FLAG, "auth")
    subscriptions: bool = _option(_SUBS, "subs", "subscriptions")
    subscriptions_detail: bool = _option(_DETAIL, "subs", "subscriptions_detail")
    offset: int = _option(_INTEGER, "offset")
    limit: int = _option(_INTEGER, "limit")
    cid: int = _option(_UNSIGNED, "cid")
    state: int = _option(_STATE, "state")
    user: str = _option(_TEXT, "user")
    account: str = _option(_TEXT, "acc")
    mqtt_client: str = _option(_TEXT, "mqtt_client")
    filter_subject: str = _option(_TEXT, "", "filter_subject")


@dataclass(frozen=True, slots=True)
class RoutezOptions:
    """See nats-server's RoutezOptions."""

    subscriptions: bool = _option(_SUBS, "subs", "subscriptions")
    subscriptions_detail: bool = _option(_DETAIL, "subs", "subscriptions_detail")


@dataclass(frozen=True, slots=True)
class GatewayzOptions:
    """See nats-server's GatewayzOptions."""

    subscriptions: bool = _option(_SUBS, "subs", "subscriptions")
    subscriptions_detail: bool = _option(_DETAIL, "subs", "subscriptions_detail")
    accounts: bool = _option(_FLAG, "accs", "accounts")
    name: str = _option(_TEXT, "gw_name", "name")
    account: str = _option(_TEXT, "acc_name", "account_name")


@dataclass(frozen=True, slots=True)
class LeafzOptions:
    """See nats-server's LeafzOptions."""

    subscriptions: bool = _option(_FLAG, "subs", "subscriptions")
    account: str = _option(_TEXT, "acc", "account")


@dataclass(frozen=True, slots=True)
class SubszOptions:
    """See nats-server's SubszOptions."""

    subscriptions: bool = _option(_FLAG, "subs", "subscriptions")
    offset: int = _option(_INTEGER, "offset")
    limit: int = _option(_INTEGER, "limit")
    test: str = _option(_TEXT, "test")
    account: str = _option(_TEXT, "acc", "account")


@dataclass(frozen=True, slots=True)
class AccountzOptions:
    """See nats-server's AccountzOptions."""

    account: str = _option(_TEXT, "acc", "account")


@dataclass(frozen=True, slots=True)
class AccstatzOptions:
    """See nats-server's AccountStatzOptions."""

    accounts: tuple[str, ...] = _option(_TEXTS, "", "accounts")
    include_unused: bool = _option(_FLAG, "unused", "include_unused")


@dataclass(frozen=True, slots=True)
class JszOptions:
    """See nats-server's JSzOptions."""

    accounts: bool = _option(_FLAG, "accounts")
    streams: bool = _option(_FLAG, "streams")
    consumers: bool = _option(_FLAG, "consumers", "consumer")
    direct_consumers: bool = _option(_FLAG, "direct-consumers", "direct_consumer")
    config: bool = _option(_FLAG, "config")
    offset: int = _option(_INTEGER, "offset")
    limit: int = _option(_INTEGER, "limit")
    leader_only: bool = _option(_FLAG, "leader-only", "leader_only")
    raft: bool = _option(_FLAG, "raft")
    stream_leader_only: bool = _option(_FLAG, "stream-leader-only", "stream_leader_only")
    account: str = _option(_TEXT, "acc", "account")


@dataclass(frozen=True, slots=True)
class HealthzOptions:
    """See nats-server's HealthzOptions; ``live`` is jetblock's own."""

    js_enabled: bool = _option(_FLAG, "js-enabled")
    js_enabled_only: bool = _option(_FLAG, "js-enabled-only")
    js_server_only: bool = _option(_FLAG, "js-server-only")
    js_meta_only: bool = _option(_FLAG, "js-meta-only")
    details: bool = _option(_FLAG, "details")
    live: bool = _option(_FLAG, "live")
    account: str = _option(_TEXT, "account")
    stream: str = _option(_TEXT, "stream")
    consumer: str = _option(_TEXT, "consumer")


@dataclass(frozen=True, slots=True)
class IpqueueszOptions:
    """See nats-server's IpqueueszOptions."""

    all: bool = _option(_FLAG, "all")
    filter: str = _option(_TEXT, "queues", "filter")


@dataclass(frozen=True, slots=True)
class RaftzOptions:
    """See nats-server's RaftzOptions."""

    account: str = _option(_TEXT, "acc", "account")
    group: str = _option(_TEXT, "group")


def from_query(model: type[T], query: Mapping[str, str]) -> T:
    """Read the options of a query; names that the model does not have are ignored. Raises: BadOption."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(model):  # type: ignore[arg-type]
        name, kind = field.metadata["query"], field.metadata["kind"]
        if name and (text := query.get(name, "")):
            values[field.name] = kind.parse(name, text)
    return model(**values)


def from_json(model: type[T], members: Mapping[str, Any]) -> T:
    """Read the options of a decoded JSON object; names that the model does not have are ignored. Raises: BadOption."""
    # As in Go, the case of members' names does not matter.
    members = {name.lower(): value for name, value in members.items()}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(model):  # type: ignore[arg-type]
        name, kind = field.metadata["json"], field.metadata["kind"]
        value = members.get(name)
        if value is None:
            continue
        if not kind.is_valid(value):
            raise BadOption(f"json: cannot unmarshal {_go_kind(value, kind)} into Go struct field "
                            f"{_go_name(model)}.{name} of type {kind.go_type}")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return model(**values)


_GO_NAMES: Final = {"AccstatzOptions": "AccountStatzEventOptions"}


def _go_name(model: type) -> str:
    """Return the Go type of a request's options, which also has those that select servers."""
    return _GO_NAMES.get(model.__name__) or model.__name__.replace("Options", "EventOptions")


def _go_kind(value: Any, wanted: _Kind) -> str:
    found = kind_of(value)
    # nats-server shows a number that does not fit the wanted kind of number.
    return f"{found} {value}" if found == "number" and type(wanted.default) is int else found
