"""Differences that are accepted, each with its reason; and those that are not mended yet.

A rule rewrites the results of one step so that its own difference disappears from them. A difference is accepted if the
results are equal after all rules: one step may show several at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.compare import Difference
from tests.fuzz.generators.configurations import users

__all__ = ["ACCEPTED", "OPEN", "Rule", "accepting"]

Results = tuple[Any, Any]

_REQUESTS = ("requests",)
_OPERATIONS = ("protocol", "reload")
_RELOADED_HERE = ("max_subscriptions", "max_sub_tokens", "disable_sublist_cache", "no_auth_user", "mappings")


@dataclass(frozen=True)
class Rule:
    """One kind of difference. ``rewrite`` returns both results without it, nats-server's first."""

    name: str
    kinds: tuple[str, ...]
    """The scenarios in which it can appear."""
    rewrite: Callable[[Difference, Any, Any], Results]
    reason: str


def _deleted_zero(found: Difference, theirs: Any, ours: Any) -> Results:
    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        left_out = ("deleted", "num_deleted") if value.get("deleted") == [0] and value.get("messages") == 0 else ()
        return {name: without(inner) for name, inner in value.items() if name not in left_out}

    return without(theirs), ours


def _twice_invalid(found: Difference, theirs: Any, ours: Any) -> Results:
    line = "-ERR 'Invalid Publish Subject'"

    def once(frames: list[Any]) -> list[Any]:
        return [frame for at, frame in enumerate(frames) if frame != line or line not in frames[:at]]

    return _each(theirs, once), ours


def _too_large(found: Difference, theirs: Any, ours: Any) -> Results:
    mark = "-ERR 'Maximum Payload Violation'"
    if not all("closed" in json.dumps(one) for one in (theirs, ours)) or mark not in json.dumps([theirs, ours]):
        return theirs, ours

    def kept(frames: list[Any]) -> list[Any]:
        lines = (mark, "-ERR 'Permissions Violation for Publish to ")
        return [frame for frame in frames if "maximum payload exceeded" not in json.dumps(frame)
                and not (isinstance(frame, str) and frame.startswith(lines))]

    return _each(theirs, kept), _each(ours, kept)


def _no_responders(found: Difference, theirs: Any, ours: Any) -> Results:
    def masked(frames: list[Any]) -> list[Any]:
        return [[frame[0], "any", *frame[2:]] if isinstance(frame, list) and frame[3][:1] == ["NATS/1.0 503"] else frame
                for frame in frames]

    return _each(theirs, masked), _each(ours, masked)


def _denied_responses(found: Difference, theirs: Any, ours: Any) -> Results:
    if '"deny"' not in json.dumps(found.scenario.configs):
        return theirs, ours

    def kept(frames: list[Any]) -> list[Any]:
        return [frame for frame in frames if not (isinstance(frame, list) and frame[3][:1] == ["NATS/1.0 503"])]

    return (_each(theirs, kept), ours) if "NATS/1.0 503" not in json.dumps(ours) else (theirs, ours)


def _no_subscriptions(found: Difference, theirs: Any, ours: Any) -> Results:
    limited = re.search(r'"max_(subs|subscriptions)": 0', json.dumps(found.scenario.configs))
    if not limited:
        return theirs, ours
    if "closed before" in (theirs, ours):
        return ours, ours
    lines = ("-ERR 'maximum subscriptions exceeded'", "-ERR 'no responders requires headers support'")

    def kept(frames: list[Any]) -> list[Any]:
        return [frame for frame in frames if frame not in lines] if "closed" in frames else frames

    ours, theirs = _closed_alike(_each(ours, kept), _each(theirs, kept))
    return _closed_alike(theirs, ours)


def _followed_trace(found: Difference, theirs: Any, ours: Any) -> Results:
    if '"allow_trace": true' not in json.dumps(found.scenario.configs):
        return theirs, ours
    followed = ("Nats-Trace-Dest: trace disabled", "Nats-Trace-Dest: _R_")

    def masked(frames: list[Any]) -> list[Any]:
        return [[*frame[:3], [line for line in frame[3] if line not in followed], *frame[4:]]
                if isinstance(frame, list) and len(frame) > 4 else frame for frame in frames]

    return _each(theirs, masked), _each(ours, masked)


def _missing_source(found: Difference, theirs: Any, ours: Any) -> Results:
    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            upstream = "lag" in value and "active" in value
            return {name: kept(inner) for name, inner in value.items()
                    if not (upstream and name == "error" and inner.get("err_code") == 10059)}
        return [kept(inner) for inner in value] if isinstance(value, list) else value

    return kept(theirs), kept(ours)


def _wrapped(found: Difference, theirs: Any, ours: Any) -> Results:
    header = r"pub\[[^]]*Nats-Expected-Last-(Subject-)?Sequence: 18446744073709551616"
    return (ours, ours) if re.match(header, found.step) else (theirs, ours)


def _no_users(found: Difference, theirs: Any, ours: Any) -> Results:
    if all(users(config) for config in found.scenario.configs):
        return theirs, ours
    return _closed_alike(theirs, ours)


def _closed_alike(theirs: Any, ours: Any) -> Results:
    """Both results without the connections that only the first server has closed."""
    if theirs == "closed before":
        return ours, ours
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours
    closed = {name for name, frames in theirs.items()
              if isinstance(frames, list) and "closed" in frames and "closed" not in ours.get(name, [])}
    kept, ours_kept = ({name: frames for name, frames in one.items() if name not in closed} for one in (theirs, ours))
    return kept, ours_kept


def _reloadable_here(found: Difference, theirs: Any, ours: Any) -> Results:
    kept = [{name: config.get(name) for name in _RELOADED_HERE} for config in found.scenario.configs]
    return (ours, ours) if any(one != kept[0] for one in kept) else (theirs, ours)


def _random_cycle(found: Difference, theirs: Any, ours: Any) -> Results:
    importing = [account for account in found.scenario.configs[0].get("accounts", {}).values() if account.get("imports")]
    cycle = theirs == "accepted" and str(ours).endswith("import forms a cycle") and len(importing) > 1
    return (ours, ours) if cycle else (theirs, ours)


def _mapped_response(found: Difference, theirs: Any, ours: Any) -> Results:
    mapped = "$SYS.REQ." in found.step and '"mappings"' in json.dumps(found.scenario.configs)
    return (ours, ours) if mapped else (theirs, ours)


def _looped_latency(found: Difference, theirs: Any, ours: Any) -> Results:
    looped = ours == "accepted" and "Error adding service latency sampling" in str(theirs)
    return (theirs, theirs) if looped and "invalid publish subject" in theirs else (theirs, ours)


def _each(result: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """``result`` with the frames of every connection changed; connections without any left are left out."""
    if not isinstance(result, dict):
        return result
    changed = {name: change(frames) if isinstance(frames, list) else frames for name, frames in result.items()}
    return {name: frames for name, frames in changed.items() if frames != []}


ACCEPTED: tuple[Rule, ...] = (
    Rule("sequence 0 is deleted", _REQUESTS, _deleted_zero,
         "nats-server lists the sequence 0, which no message has, as deleted from an empty stream."),
    Rule("missing source", _REQUESTS, _missing_source,
         "nats-server looks for the stream of a mirror or source some time after the request; here it is known at once "
         "that there is none."),
    Rule("expected sequence of 2^64", _REQUESTS, _wrapped,
         "nats-server ignores the overflow, so that 2^64 means 0; here the expectation fails."),
    Rule("invalid subject twice", _OPERATIONS, _twice_invalid,
         "nats-server parses an HPUB line a second time if its read buffer ends within the message, and sends the "
         "error of pedantic clients again."),
    Rule("message that is too large", _OPERATIONS, _too_large,
         "nats-server looks for the trace header in the part of the message that has arrived, often in 64 bytes of "
         "buffer, and closes the sender's own subscriptions before it sends the event. It closes the connection with "
         "unread bytes, so that the system may discard the error that was sent before."),
    Rule("503 to another subscription", _OPERATIONS, _no_responders,
         "If several subscriptions of a client match its reply subject, nats-server chooses by the history of its "
         "cache."),
    Rule("cycle of imports", _OPERATIONS, _random_cycle,
         "nats-server adds the imports of several accounts in the order of a Go map, and finds some cycles in some orders "
         "only; jetblock refuses them in any order."),
    Rule("503 to a denied subject", _OPERATIONS, _denied_responses,
         "nats-server says that there are no responders also to a subscription whose user may not subscribe to the reply "
         "subject."),
    Rule("header of a followed trace", _OPERATIONS, _followed_trace,
         "Documented in COMPATIBILITY: the trace follows a message into a service that allows traces by itself; "
         "nats-server sends a private subject along."),
    Rule("no subscriptions at all", _OPERATIONS, _no_subscriptions,
         "`max_subs: 0`: nats-server closes the client 20 ms after the error that it sends at login, jetblock at once. "
         "If the client also asks for no_responders without headers, nats-server sends that error instead."),
    Rule("more is reloaded", ("reload",), _reloadable_here,
         "jetblock reloads settings that nats-server refuses to change, and the removal of mappings outside of "
         "accounts, which nats-server ignores. The generator makes no such scenario, but shrinking does."),
    Rule("reloads without users", ("reload",), _no_users,
         "While no users are configured, nats-server closes all clients that name a user at every reload, without an "
         "error; here they stay. The generator makes no such scenario, but shrinking does."),
)
"""Differences that stay."""

OPEN: tuple[Rule, ...] = (
    Rule("latency results to a service", _OPERATIONS, _looped_latency,
         "nats-server refuses latency results that would be requests to a service that the account exported before."),
    Rule("mapped responses of the server", _OPERATIONS, _mapped_response,
         "nats-server maps the reply subjects of requests to the system account's services by the client's account."),
)
"""Differences that are to be mended."""


def accepting(difference: Difference) -> list[Rule]:
    """The rules that together accept the difference; empty: it counts."""
    theirs, ours = difference.theirs, difference.ours
    used = []
    for rule in (*ACCEPTED, *OPEN):
        if difference.scenario.kind not in rule.kinds:
            continue
        rewritten = rule.rewrite(difference, theirs, ours)
        if rewritten != (theirs, ours):
            used.append(rule)
            theirs, ours = rewritten
        if theirs == ours:
            return used
    return []
