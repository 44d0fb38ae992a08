"""Differences that are accepted, each with its reason.

A rule rewrites the results of one step so that its own difference disappears from them. A difference is accepted if the
results are equal after all rules: one step may show several at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tests.fuzz.compare import CONFIGURATION, Difference
from tests.fuzz.generators.configurations import users
from tests.fuzz.scenario import Config
from tests.fuzz.servers import own_refusal

__all__ = ["ACCEPTED", "Rule", "accepting"]

Results = tuple[Any, Any]

_REQUESTS = ("requests",)
_OPERATIONS = ("protocol", "reload")
_RELOADED_HERE = ("max_subscriptions", "max_sub_tokens", "disable_sublist_cache", "no_auth_user")
"""Settings that nats-server refuses to change."""


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
    limited = _connections_of(found, _users_without_subscriptions(found.scenario.configs[0]))
    if limited and found.step.startswith("[") and json.loads(found.step)[0] in limited and "closed before" in (theirs,
                                                                                                               ours):
        return ours, ours
    if not limited or not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours

    def kept(result: dict[str, Any]) -> dict[str, Any]:
        line = "-ERR 'maximum subscriptions exceeded'"
        changed = {name: [frame for frame in frames if frame != line] if name in limited else frames
                   for name, frames in result.items()}
        return {name: frames for name, frames in changed.items() if frames}

    ours, theirs = _closed_alike(kept(ours), kept(theirs), limited)
    return _closed_alike(theirs, ours, limited)


def _users_without_subscriptions(config: Config) -> set[str]:
    """Users of accounts that allow no subscriptions."""
    return {user["user"] for account in config.get("accounts", {}).values()
            if 0 in (account.get("limits", {}).get(name) for name in ("max_subs", "max_subscriptions"))
            for user in account.get("users", ()) if "user" in user}


def _connections_of(found: Difference, users: set[str]) -> set[str]:
    """Connections that may log in as one of ``users``."""
    anonymous = {config.get("no_auth_user") for config in found.scenario.configs}
    connected = {step[0] for step in found.scenario.steps if step[1] == "connect" and step[2].get("user") in users}
    unnamed = {step[0] for step in found.scenario.steps if step[0] and (step[1] != "connect" or "user" not in step[2])}
    return connected | unnamed if anonymous & users else connected


def _followed_trace(found: Difference, theirs: Any, ours: Any) -> Results:
    if '"allow_trace": true' not in json.dumps(found.scenario.configs):
        return theirs, ours
    followed = ("Nats-Trace-Dest: trace disabled", "Nats-Trace-Dest: _R_")

    def masked(frames: list[Any]) -> list[Any]:
        return [[*frame[:3], [line for line in frame[3] if line not in followed], *frame[4:]]
                if isinstance(frame, list) and len(frame) > 4 else frame for frame in frames]

    return _each(theirs, masked), _each(ours, masked)


def _missing_source(found: Difference, theirs: Any, ours: Any) -> Results:
    configures = found.step.startswith(("api STREAM.CREATE", "api STREAM.UPDATE", "stream ", "make "))

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            upstream = "lag" in value and "active" in value
            return {name: kept(inner) for name, inner in value.items()
                    if not (upstream and name == "error" and inner.get("err_code") == 10059)
                    and not (upstream and name == "active" and configures)}
        return [kept(inner) for inner in value] if isinstance(value, list) else value

    return kept(theirs), kept(ours)


def _late_upstream(found: Difference, theirs: Any, ours: Any) -> Results:
    lines = [step[1] for step in found.scenario.steps[:found.index + 1]]
    made: set[str] = set()
    missing: set[str] = set()
    late = False
    for name, config in filter(None, map(_made_stream, lines)):
        late = late or name in missing
        made.add(name)
        missing |= {one for one in _upstreams(config) if one not in made}
    if not late:
        return theirs, ours
    if _made_stream(found.step) or found.step.startswith(("consumer ", "api CONSUMER.CREATE", "api CONSUMER.DURABLE")):
        # The configurations are alike, whatever has been copied.
        return _without_numbers(theirs), _without_numbers(ours)
    return ours, ours


def _short_heartbeats(found: Difference, theirs: Any, ours: Any) -> Results:
    if not any(re.search(r'heartbeat": \d{1,7}\b', step[1]) for step in found.scenario.steps):
        return theirs, ours

    def once(came: list[Any]) -> list[Any]:
        return [one for at, one in enumerate(came) if "100 Idle Heartbeat" not in json.dumps(one)
                or one not in came[:at]]

    return once(theirs), once(ours)


def _impossible_directory(found: Difference, theirs: Any, ours: Any) -> Results:
    def refused(one: Difference) -> bool:
        return r"\u0000" in one.step and "error creating store" in json.dumps(one.theirs)

    return (ours, ours) if any(map(refused, (*found.earlier, found))) else (theirs, ours)


def _made_stream(line: str) -> tuple[str, dict[str, Any]] | None:
    """The stream that a step makes or changes, with its configuration."""
    made = re.match(r"(stream|make|api STREAM\.(?:CREATE|UPDATE))[ .](.*)", line)
    if made is None:
        return None
    name, _, body = ("S", "", made[2]) if made[1] == "stream" else made[2].partition(" ")
    try:
        config = json.loads(body)
    except ValueError:
        return None
    return (name, config) if isinstance(config, dict) else None


def _upstreams(config: dict[str, Any]) -> list[str]:
    """The streams that a stream copies."""
    sources = config.get("sources")
    listed = [config.get("mirror"), *(sources if isinstance(sources, list) else [])]
    return [one["name"] for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_numbers(inner) for inner in value]
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


def _no_users(found: Difference, theirs: Any, ours: Any) -> Results:
    if not _reloaded_before(found, lambda before, after: not users(after)):
        return theirs, ours
    return _closed_alike(theirs, ours)


def _closed_alike(theirs: Any, ours: Any, names: Collection[str] | None = None) -> Results:
    """Both results without the connections, of ``names`` or all, that only the first server has closed."""
    if theirs == "closed before" and names is None:
        return ours, ours
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours
    closed = {name for name, frames in theirs.items() if (names is None or name in names)
              and isinstance(frames, list) and "closed" in frames and "closed" not in ours.get(name, [])}
    kept, ours_kept = ({name: frames for name, frames in one.items() if name not in closed} for one in (theirs, ours))
    return kept, ours_kept


def _reloadable_here(found: Difference, theirs: Any, ours: Any) -> Results:
    def changes(names: Collection[str]) -> Callable[[Config, Config], bool]:
        return lambda before, after: any(before.get(name) != after.get(name) for name in names)

    if _reloaded_before(found, changes(_RELOADED_HERE)) == "now":
        return (ours, ours) if (theirs["reload"], ours["reload"]) == (True, False) else (theirs, ours)
    if _reloaded_before(found, changes(_RELOADED_HERE)):
        return ours, ours
    removed = _reloaded_before(found, lambda before, after: not before.get("mappings", {}).keys() <= after.get(
        "mappings", {}).keys())
    return (ours, ours) if removed == "before" else (theirs, ours)


def _reloaded_before(found: Difference, wanted: Callable[[Config, Config], bool]) -> str:
    """Return whether a reload was such a change, given the configurations before and after: "now", "before" or ""."""
    configs = found.scenario.configs
    current = configs[0]
    for index, step in enumerate(found.scenario.steps[:found.index + 1]):
        if step[1] == "reload":
            if wanted(current, configs[step[2]]):
                return "now" if index == found.index else "before"
            current = configs[step[2]]
    return ""


def _random_cycle(found: Difference, theirs: Any, ours: Any) -> Results:
    if found.scenario.kind == "reload" and found.step != CONFIGURATION:
        return (ours, ours) if any(map(_reloaded_in_one_order, (*found.earlier, found))) else (theirs, ours)
    return (ours, ours) if theirs == "accepted" and _has_cycle(found.scenario.configs[0]) else (theirs, ours)


def _reloaded_in_one_order(found: Difference) -> bool:
    """Return whether only nats-server took a configuration with a cycle."""
    step = found.scenario.steps[found.index]
    return (step[1] == "reload" and found.theirs["reload"] is False and found.ours["reload"] is True
            and _has_cycle(found.scenario.configs[step[2]]))


def _has_cycle(config: Config) -> bool:
    """Return whether cycles of imports are all that is wrong with the configuration, in one of the orders of its
    accounts."""
    problems = own_refusal(json.dumps(config)).splitlines()
    importing = [account for account in config.get("accounts", {}).values() if account.get("imports")]
    return len(importing) > 1 and bool(problems) and all(line.endswith("import forms a cycle") for line in problems)


def _scalars_as_text(found: Difference, theirs: Any, ours: Any) -> Results:
    if found.step != CONFIGURATION or ours != "accepted":
        return theirs, ours
    wrong = re.compile(r"interface conversion: interface {} is ((int64|float64|bool), not string|string, not (int64|bool))$")
    lines = [line for line in theirs.splitlines() if not line.endswith("nil pointer dereference")]
    return (ours, ours) if lines and all(map(wrong.search, lines)) else (theirs, ours)


def _meaningless_values(found: Difference, theirs: Any, ours: Any) -> Results:
    if found.step != CONFIGURATION or theirs != "accepted":
        return theirs, ours
    refused = ("invalid mapping destination: ", "authorization has a password and no user; name the user, too")
    bounds = re.compile(r": (max_payload|max_control_line) must be between ")
    return (ours, ours) if ours.endswith(refused) or bounds.search(ours) else (theirs, ours)


def _ignored_settings(found: Difference, theirs: Any, ours: Any) -> Results:
    if found.step != CONFIGURATION:
        return theirs, ours
    if theirs == "accepted" and not isinstance(found.scenario.configs[0].get("accounts", {}), dict):
        return ours, ours
    unread = not isinstance(found.scenario.configs[0].get("disable_sublist_cache", True), bool)
    return (ours, ours) if unread and theirs.endswith(", not bool") else (theirs, ours)


def _one_of_two_shares(found: Difference, theirs: Any, ours: Any) -> Results:
    def ambiguous(account: dict[str, Any]) -> bool:
        shares: dict[str, set[bool]] = {}
        for one in account.get("imports", ()):
            if "service" in one:
                shares.setdefault(json.dumps(one["service"], sort_keys=True), set()).add(bool(one.get("share")))
        return any(len(found) > 1 for found in shares.values())

    if not any(ambiguous(account) for config in found.scenario.configs
               for account in config.get("accounts", {}).values()):
        return theirs, ours

    def masked(frames: list[Any]) -> list[Any]:
        return [[*frame[:3], [_account_only(line) for line in frame[3]], *frame[4:]]
                if isinstance(frame, list) and len(frame) > 4 else frame for frame in frames]

    return _each(theirs, masked), _each(ours, masked)


def _account_only(line: Any) -> Any:
    return [line[0], {"acc": line[1].get("acc")}] if isinstance(line, list) and line[0] == "Nats-Request-Info" else line


def _last_delivery(found: Difference, theirs: Any, ours: Any) -> Results:
    own = any(one.get("service", {}).get("account") == name
              for config in found.scenario.configs for name, account in config.get("accounts", {}).items()
              for one in account.get("imports", ()))
    limited = {(step[0], step[2]) for step in found.scenario.steps if step[1] == "unsub" and step[3]}
    if not own or not limited:
        return theirs, ours

    def masked(result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        return {name: [[*frame[:3], [line for line in frame[3] if not isinstance(line, list)], *frame[4:]]
                       if isinstance(frame, list) and (name, frame[1]) in limited else frame for frame in frames]
                if isinstance(frames, list) else frames for name, frames in result.items()}

    return masked(theirs), masked(ours)


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
         "that there is none, and a stream that exists is asked at once."),
    Rule("late upstream", _REQUESTS, _late_upstream,
         "If the stream of a mirror or source is created after its copy, nats-server tries again some seconds later; "
         "jetblock copies at once, so that messages have other sequences from then on."),
    Rule("name without a directory", _REQUESTS, _impossible_directory,
         "nats-server cannot make the directory of a stream whose name contains a NUL; names here are no file names."),
    Rule("short heartbeats", _REQUESTS, _short_heartbeats,
         "The number of heartbeats that are less than 10 ms apart depends on the load of the machine."),
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
         "nats-server adds the imports of several accounts in the order of a Go map, and finds some cycles in some "
         "orders only; jetblock refuses them in any order."),
    Rule("quotes", _OPERATIONS, _scalars_as_text,
         "A name or password of digits needs no quotes here, and a number may have some: "
         "`tests/config/test_grammar.py` lists both."),
    Rule("values without a meaning", _OPERATIONS, _meaningless_values,
         "nats-server accepts a mapping to an empty subject, and crashes at the first message; it ignores a password "
         "without a user. Sizes of payloads and lines have bounds here."),
    Rule("settings that one server ignores", _OPERATIONS, _ignored_settings,
         "nats-server ignores `accounts` if it is neither a map nor a list; jetblock does not read "
         "`disable_sublist_cache`."),
    Rule("503 to a denied subject", _OPERATIONS, _denied_responses,
         "nats-server says that there are no responders also to a subscription whose user may not subscribe to the "
         "reply subject."),
    Rule("header of a followed trace", _OPERATIONS, _followed_trace,
         "Documented in COMPATIBILITY: the trace follows a message into a service that allows traces by itself; "
         "nats-server sends a private subject along."),
    Rule("no subscriptions at all", _OPERATIONS, _no_subscriptions,
         "`max_subs: 0`: both servers send an error and close the client 20 ms after the login. nats-server does so in "
         "a goroutine, so that other answers may come before."),
    Rule("more is reloaded", ("reload",), _reloadable_here,
         "jetblock reloads settings that nats-server refuses to change, and the removal of mappings outside of "
         "accounts, which nats-server ignores. The generator makes no such scenario, but shrinking does."),
    Rule("reloads without users", ("reload",), _no_users,
         "While no users are configured, nats-server closes all clients that name a user at every reload, without an "
         "error; here they stay. The generator makes no such scenario, but shrinking does."),
    Rule("one of two shares", _OPERATIONS, _one_of_two_shares,
         "If an account imports one service twice, nats-server looks for the import that `share` is for in a Go map, "
         "and may find the other one."),
    Rule("one of two deliveries", _OPERATIONS, _last_delivery,
         "A message to the own service of an account that imports it is delivered twice, once with request "
         "information. The order is that of a Go map, and UNSUB with a limit keeps the first."),
)
"""Differences that stay."""


def accepting(difference: Difference) -> list[Rule]:
    """The rules that together accept the difference; empty: it counts."""
    theirs, ours = difference.theirs, difference.ours
    used = []
    for rule in ACCEPTED:
        if difference.scenario.kind not in rule.kinds:
            continue
        try:
            rewritten = rule.rewrite(difference, theirs, ours)
        except (AttributeError, TypeError, ValueError):
            continue  # a part that the rule looks at has another type in this configuration
        if rewritten != (theirs, ours):
            used.append(rule)
            theirs, ours = rewritten
        if theirs == ours:
            return used
    return []
