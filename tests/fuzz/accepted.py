"""Differences that are accepted, each with its reason.

A rule rewrites the results of one step so that its own difference disappears from them. A difference is accepted if the
results are equal after all rules, because one step may show several differences at once. Most rules have one of three
forms: ``equal_if`` a condition holds, ``changed_frames`` of every connection, and values ``without_fields``.
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

__all__ = ["ACCEPTED", "Rule", "accepting_rules"]

Results = tuple[Any, Any]
Rewrite = Callable[[Difference, Any, Any], Results]
"""A function of a difference and both results, nats-server's first, that returns both without the rule's difference."""
Condition = Callable[[Difference, Any, Any], bool]
Frames = list[Any]

_REQUESTS = ("requests",)
_OPERATIONS = ("protocol", "reload")
_RELOADED_HERE = ("max_subscriptions", "max_sub_tokens", "disable_sublist_cache", "no_auth_user")
"""Settings that nats-server refuses to change."""


@dataclass(frozen=True)
class Rule:
    """A kind of difference that is accepted."""

    name: str
    kinds: tuple[str, ...]
    """The scenarios in which it can appear."""
    rewrite: Rewrite
    reason: str


# ---- forms of rules


def equal_if(condition: Condition) -> Rewrite:
    """Take both results for equal if ``condition`` holds."""
    return lambda found, theirs, ours: (ours, ours) if condition(found, theirs, ours) else (theirs, ours)


def changed_frames(change: Callable[[Frames], Frames], condition: Condition | None = None, *,
                   ours_too: bool = True) -> Rewrite:
    """Change the frames of every connection, in nats-server's result only unless ``ours_too``, if ``condition`` holds.

    Connections without any frames left are left out.
    """
    def changed(result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        found = {name: change(frames) if isinstance(frames, list) else frames for name, frames in result.items()}
        return {name: frames for name, frames in found.items() if frames != []}

    def rewrite(found: Difference, theirs: Any, ours: Any) -> Results:
        if condition is not None and not condition(found, theirs, ours):
            return theirs, ours
        return changed(theirs), changed(ours) if ours_too else ours

    return rewrite


def without_fields(value: Any, left_out: Callable[[dict[str, Any]], Collection[str]]) -> Any:
    """Return ``value`` without the fields that ``left_out`` names for each object in it."""
    if isinstance(value, list):
        return [without_fields(inner, left_out) for inner in value]
    if not isinstance(value, dict):
        return value
    names = left_out(value)
    return {name: without_fields(inner, left_out) for name, inner in value.items() if name not in names}


def with_headers(frames: Frames, change: Callable[[list[Any]], list[Any]]) -> Frames:
    """Return ``frames`` with the header lines of each message changed."""
    return [[*frame[:3], change(frame[3]), *frame[4:]] if isinstance(frame, list) and len(frame) > 4 else frame
            for frame in frames]


# ---- requests


def _deleted_zero(found: Difference, theirs: Any, ours: Any) -> Results:
    def left_out(value: dict[str, Any]) -> Collection[str]:
        empty = value.get("deleted") == [0] and value.get("messages") == 0
        return ("deleted", "num_deleted") if empty else ()

    return without_fields(theirs, left_out), ours


def _missing_source(found: Difference, theirs: Any, ours: Any) -> Results:
    configures = found.step.startswith(("api STREAM.CREATE", "api STREAM.UPDATE", "stream ", "make "))

    def left_out(value: dict[str, Any]) -> Collection[str]:
        if "lag" not in value or "active" not in value:
            return ()
        missing = "error" in value and value["error"].get("err_code") == 10059
        return (["error"] if missing else []) + (["active"] if configures else [])

    return without_fields(theirs, left_out), without_fields(ours, left_out)


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
        # The configurations must be equal, whatever has been copied.
        return _without_numbers(theirs), _without_numbers(ours)
    return ours, ours


def _short_heartbeats(found: Difference, theirs: Any, ours: Any) -> Results:
    if not any(re.search(r'heartbeat": \d{1,7}\b', step[1]) for step in found.scenario.steps):
        return theirs, ours

    def once(came: list[Any]) -> list[Any]:
        return [one for at, one in enumerate(came) if "100 Idle Heartbeat" not in json.dumps(one)
                or one not in came[:at]]

    return once(theirs), once(ours)


def _wrong_source_filter(found: Difference, theirs: Any, ours: Any) -> bool:
    return (found.step.startswith("api STREAM.UPDATE.") and "error" in ours and "error" not in theirs
            and re.fullmatch(r"subject filter '.*' for the source: invalid subject", ours["error"]["description"])
            is not None)


def _impossible_directory(found: Difference, theirs: Any, ours: Any) -> bool:
    return any(r"\u0000" in one.step and "error creating store" in json.dumps(one.theirs)
               for one in (*found.earlier, found))


def _made_stream(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return the stream that a step makes or changes, with its configuration."""
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
    """Return the streams that a stream copies."""
    sources = config.get("sources")
    listed = [config.get("mirror"), *(sources if isinstance(sources, list) else [])]
    return [one["name"] for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_numbers(inner) for inner in value]
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


# ---- messages and errors


def _invalid_subject_once(frames: Frames) -> Frames:
    line = "-ERR 'Invalid Publish Subject'"
    return [frame for at, frame in enumerate(frames) if frame != line or line not in frames[:at]]


_TOO_LARGE = "-ERR 'Maximum Payload Violation'"


def _both_closed_for_size(found: Difference, theirs: Any, ours: Any) -> bool:
    return all("closed" in json.dumps(one) for one in (theirs, ours)) and _TOO_LARGE in json.dumps([theirs, ours])


def _without_errors_of_size(frames: Frames) -> Frames:
    lines = (_TOO_LARGE, "-ERR 'Permissions Violation for Publish to ")
    return [frame for frame in frames if "maximum payload exceeded" not in json.dumps(frame)
            and not (isinstance(frame, str) and frame.startswith(lines))]


def _is_503(frame: Any) -> bool:
    return isinstance(frame, list) and frame[3][:1] == ["NATS/1.0 503"]


def _503_to_any(frames: Frames) -> Frames:
    return [[frame[0], "any", *frame[2:]] if _is_503(frame) else frame for frame in frames]


def _without_503(frames: Frames) -> Frames:
    return [frame for frame in frames if not _is_503(frame)]


def _only_theirs_503(found: Difference, theirs: Any, ours: Any) -> bool:
    return '"deny"' in json.dumps(found.scenario.configs) and "NATS/1.0 503" not in json.dumps(ours)


def _allows_traces(found: Difference, theirs: Any, ours: Any) -> bool:
    return '"allow_trace": true' in json.dumps(found.scenario.configs)


def _without_trace_headers(frames: Frames) -> Frames:
    followed = ("Nats-Trace-Dest: trace disabled", "Nats-Trace-Dest: _R_")
    return with_headers(frames, lambda lines: [line for line in lines if line not in followed])


def _has_two_shares(found: Difference, theirs: Any, ours: Any) -> bool:
    """Return whether an account imports a service both with and without ``share``."""
    def ambiguous(account: dict[str, Any]) -> bool:
        shares: dict[str, set[bool]] = {}
        for one in account.get("imports", ()):
            if "service" in one:
                shares.setdefault(json.dumps(one["service"], sort_keys=True), set()).add(bool(one.get("share")))
        return any(len(found) > 1 for found in shares.values())

    return any(ambiguous(account) for config in found.scenario.configs
               for account in config.get("accounts", {}).values())


def _with_account_only(frames: Frames) -> Frames:
    def account_only(line: Any) -> Any:
        info = isinstance(line, list) and line[0] == "Nats-Request-Info"
        return [line[0], {"acc": line[1].get("acc")}] if info else line

    return with_headers(frames, lambda lines: [account_only(line) for line in lines])


def _last_delivery(found: Difference, theirs: Any, ours: Any) -> Results:
    own = any(one.get("service", {}).get("account") == name
              for config in found.scenario.configs for name, account in config.get("accounts", {}).items()
              for one in account.get("imports", ()))
    limited = {(step[0], step[2]) for step in found.scenario.steps if step[1] == "unsub" and step[3]}
    if not own or not limited:
        return theirs, ours

    def without_info(lines: list[Any]) -> list[Any]:
        kept = [line for line in lines if not isinstance(line, list)]
        return [""] if kept == ["NATS/1.0", "", ""] else kept

    def masked(result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        return {name: [[*frame[:3], without_info(frame[3]), *frame[4:]]
                       if isinstance(frame, list) and (name, frame[1]) in limited else frame for frame in frames]
                if isinstance(frames, list) else frames for name, frames in result.items()}

    return masked(theirs), masked(ours)


def _without_passed_over(frames: Frames) -> Frames:
    """Remove the members of queue groups that were drawn and did not want an echo."""
    def passed_over(event: Any) -> bool:
        return "queue" in event and event.get("error") == "Not delivered because of no echo"

    return [[*frame[:-1], {**frame[-1], "events": [one for one in frame[-1]["events"] if not passed_over(one)]}]
            if isinstance(frame, list) and isinstance(frame[-1], dict) and "events" in frame[-1] else frame
            for frame in frames]


# ---- connections that are closed


def _no_subscriptions(found: Difference, theirs: Any, ours: Any) -> Results:
    limited = _connections_of(found, _users_without_subscriptions(found.scenario.configs[0]))
    acts = found.step.startswith("[") and json.loads(found.step)[0] in limited
    if acts and "closed before" in (theirs, ours):
        return ours, ours
    if not limited or not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours

    def kept(result: dict[str, Any]) -> dict[str, Any]:
        line = "-ERR 'maximum subscriptions exceeded'"
        changed = {name: [frame for frame in frames if frame != line] if name in limited else frames
                   for name, frames in result.items()}
        return {name: frames for name, frames in changed.items() if frames}

    ours, theirs = _without_closed(kept(ours), kept(theirs), limited)
    return _without_closed(theirs, ours, limited)


def _users_without_subscriptions(config: Config) -> set[str]:
    """Return the users of accounts that allow no subscriptions."""
    return {user["user"] for account in config.get("accounts", {}).values()
            if 0 in (account.get("limits", {}).get(name) for name in ("max_subs", "max_subscriptions"))
            for user in account.get("users", ()) if "user" in user}


def _connections_of(found: Difference, users: set[str]) -> set[str]:
    """Return the connections that may log in as one of ``users``."""
    anonymous = {config.get("no_auth_user") for config in found.scenario.configs}
    connected = {step[0] for step in found.scenario.steps if step[1] == "connect" and step[2].get("user") in users}
    unnamed = {step[0] for step in found.scenario.steps if step[0] and (step[1] != "connect" or "user" not in step[2])}
    return connected | unnamed if anonymous & users else connected


def _no_users(found: Difference, theirs: Any, ours: Any) -> Results:
    if not _reload_that(found, lambda before, after: not users(after)):
        return theirs, ours
    return _without_closed(theirs, ours)


def _without_closed(theirs: Any, ours: Any, names: Collection[str] | None = None) -> Results:
    """Return both results without the connections, of ``names`` or all, that only the first server has closed."""
    if theirs == "closed before" and names is None:
        return ours, ours
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours
    closed = {name for name, frames in theirs.items() if (names is None or name in names)
              and isinstance(frames, list) and "closed" in frames and "closed" not in ours.get(name, [])}
    kept, ours_kept = ({name: frames for name, frames in one.items() if name not in closed} for one in (theirs, ours))
    return kept, ours_kept


# ---- configurations


def _reloadable_here(found: Difference, theirs: Any, ours: Any) -> bool:
    changed = _reload_that(found, lambda before, after: any(
        before.get(name) != after.get(name) for name in _RELOADED_HERE))
    if changed == "now":
        return bool((theirs["reload"], ours["reload"]) == (True, False))
    removed = _reload_that(found, lambda before, after: not (
        before.get("mappings", {}).keys() <= after.get("mappings", {}).keys()))
    return changed == "before" or removed == "before"


def _reload_that(found: Difference, wanted: Callable[[Config, Config], bool]) -> str:
    """Return when the first reload happened for whose configurations before and after ``wanted`` is true: "now",
    "before", or "" for never."""
    configs = found.scenario.configs
    current = configs[0]
    for index, step in enumerate(found.scenario.steps[:found.index + 1]):
        if step[1] == "reload":
            if wanted(current, configs[step[2]]):
                return "now" if index == found.index else "before"
            current = configs[step[2]]
    return ""


def _random_cycle(found: Difference, theirs: Any, ours: Any) -> bool:
    if found.scenario.kind == "reload" and found.step != CONFIGURATION:
        return any(map(_reloaded_in_one_order, (*found.earlier, found)))
    return theirs == "accepted" and _has_cycle(found.scenario.configs[0])


def _reloaded_in_one_order(found: Difference) -> bool:
    """Return whether only nats-server accepted a configuration with a cycle."""
    step = found.scenario.steps[found.index]
    return (step[1] == "reload" and found.theirs["reload"] is False and found.ours["reload"] is True
            and _has_cycle(found.scenario.configs[step[2]]))


def _has_cycle(config: Config) -> bool:
    """Return whether cycles of imports are the only faults of the configuration, in one of the orders of its
    accounts."""
    problems = own_refusal(json.dumps(config)).splitlines()
    importing = [account for account in config.get("accounts", {}).values() if account.get("imports")]
    return len(importing) > 1 and bool(problems) and all(line.endswith("import forms a cycle") for line in problems)


def _scalars_as_text(found: Difference, theirs: Any, ours: Any) -> bool:
    wrong = re.compile(r"interface conversion: interface {} is "
                       r"((int64|float64|bool), not string|string, not (int64|bool))$")
    if found.step != CONFIGURATION or ours != "accepted":
        return False
    lines = [line for line in theirs.splitlines() if not line.endswith("nil pointer dereference")]
    return bool(lines) and all(map(wrong.search, lines))


def _meaningless_values(found: Difference, theirs: Any, ours: Any) -> bool:
    refused = ("invalid mapping destination: ", "authorization has a password and no user; name the user, too")
    bounds = re.compile(r": (max_payload|max_control_line) must be between ")
    return (found.step == CONFIGURATION and theirs == "accepted"
            and (ours.endswith(refused) or bounds.search(ours) is not None))


def _ignored_settings(found: Difference, theirs: Any, ours: Any) -> bool:
    if found.step != CONFIGURATION:
        return False
    config = found.scenario.configs[0]
    if theirs == "accepted" and not isinstance(config.get("accounts", {}), dict):
        return True
    return not isinstance(config.get("disable_sublist_cache", True), bool) and theirs.endswith(", not bool")


# ---- the rules


ACCEPTED: tuple[Rule, ...] = (
    Rule("sequence 0 is deleted", _REQUESTS, _deleted_zero,
         "nats-server lists the sequence 0, which no message has, as deleted from an empty stream."),
    Rule("missing source", _REQUESTS, _missing_source,
         "nats-server searches the stream of a mirror or source some time after the request; jetblock knows at once "
         "that it does not exist, or sends a request to it."),
    Rule("late upstream", _REQUESTS, _late_upstream,
         "If the stream of a mirror or source is created after its copy, nats-server tries again some seconds later; "
         "jetblock copies at once, so that messages have other sequences from then on."),
    Rule("filter of a new source", _REQUESTS, equal_if(_wrong_source_filter),
         "An update may give a stream a source with an invalid filter on nats-server, which then copies nothing; "
         "jetblock refuses it, as both servers do when the stream is created."),
    Rule("name without a directory", _REQUESTS, equal_if(_impossible_directory),
         "nats-server cannot make the directory of a stream whose name contains a NUL; names here are no file names."),
    Rule("short heartbeats", _REQUESTS, _short_heartbeats,
         "The number of heartbeats that are less than 10 ms apart depends on the load of the machine."),
    Rule("invalid subject twice", _OPERATIONS, changed_frames(_invalid_subject_once),
         "nats-server parses a PUB or HPUB line a second time if its read buffer ends within the message, and sends "
         "the error of pedantic clients again."),
    Rule("message that is too large", _OPERATIONS,
         changed_frames(_without_errors_of_size, _both_closed_for_size),
         "nats-server looks for the trace header in the part of the message that has arrived, often in 64 bytes of "
         "buffer, and closes the sender's own subscriptions before it sends the event. It closes the connection with "
         "unread bytes, so that the system may discard the error that was sent before."),
    Rule("503 to another subscription", _OPERATIONS, changed_frames(_503_to_any),
         "If several subscriptions of a client match its reply subject, nats-server chooses by the history of its "
         "cache."),
    Rule("cycle of imports", _OPERATIONS, equal_if(_random_cycle),
         "nats-server adds the imports of several accounts in the order of a Go map, and finds some cycles in some "
         "orders only; jetblock refuses them in any order."),
    Rule("quotes", _OPERATIONS, equal_if(_scalars_as_text),
         "A name or password of digits needs no quotes here, and a number may have some: "
         "`tests/config/test_grammar.py` lists both."),
    Rule("values without a meaning", _OPERATIONS, equal_if(_meaningless_values),
         "nats-server accepts a mapping to an empty subject, and crashes at the first message; it ignores a password "
         "without a user. Sizes of payloads and lines have bounds here."),
    Rule("settings that one server ignores", _OPERATIONS, equal_if(_ignored_settings),
         "nats-server ignores `accounts` if it is neither a map nor a list; jetblock does not read "
         "`disable_sublist_cache`."),
    Rule("503 to a denied subject", _OPERATIONS, changed_frames(_without_503, _only_theirs_503, ours_too=False),
         "nats-server reports that there are no responders also to a subscription whose user may not subscribe to the "
         "reply subject."),
    Rule("header of a followed trace", _OPERATIONS, changed_frames(_without_trace_headers, _allows_traces),
         "Documented in COMPATIBILITY: the trace follows a message into a service that allows traces by itself; "
         "nats-server sends a private subject along."),
    Rule("no subscriptions at all", _OPERATIONS, _no_subscriptions,
         "`max_subs: 0`: both servers send an error and close the client 20 ms after the login. nats-server does so in "
         "a goroutine, so that other answers may come before."),
    Rule("more is reloaded", ("reload",), equal_if(_reloadable_here),
         "jetblock reloads settings that nats-server refuses to change, and the removal of mappings outside of "
         "accounts, which nats-server ignores. The generator makes no such scenario, but shrinking does."),
    Rule("reloads without users", ("reload",), _no_users,
         "If no users are configured, nats-server closes all clients that name a user at every reload, without an "
         "error; here they stay. The generator makes no such scenario, but shrinking does."),
    Rule("one of two shares", _OPERATIONS, changed_frames(_with_account_only, _has_two_shares),
         "If an account imports one service twice, nats-server looks for the import that `share` is for in a Go map, "
         "and may find the other one."),
    Rule("one of two deliveries", _OPERATIONS, _last_delivery,
         "A message to the own service of an account that imports it is delivered twice, once with request "
         "information. The order is that of a Go map, and UNSUB with a limit keeps the first."),
    Rule("member that wants no echo", _OPERATIONS, changed_frames(_without_passed_over),
         "The receiver in a queue group is drawn. A trace shows the sender's own subscription only if it was drawn "
         "first."),
)
"""All accepted differences."""


def accepting_rules(difference: Difference) -> list[Rule]:
    """Return the rules that together accept the difference; none if it counts."""
    theirs, ours = difference.theirs, difference.ours
    used = []
    for rule in ACCEPTED:
        if difference.scenario.kind not in rule.kinds:
            continue
        try:
            rewritten = rule.rewrite(difference, theirs, ours)
        except (AttributeError, TypeError, ValueError):
            continue  # a part that the rule reads has another type in this configuration
        if rewritten != (theirs, ours):
            used.append(rule)
            theirs, ours = rewritten
        if theirs == ours:
            return used
    return []
