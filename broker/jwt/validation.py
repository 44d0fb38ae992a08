"""Checks claims, and returns issues in the words of nats-io/jwt; some issues depend on the time only.

Source: nats-io/jwt, v2/validation.go, and the Validate functions of claims, imports, exports, permissions and limits.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from broker.access.accounts import NO_LIMIT
from broker.base.nkeys import ACCOUNT, CURVE, OPERATOR, SERVER, USER, is_public_key
from broker.jwt.claims import (
    ANY,
    AccountClaims,
    AccountLimits,
    ActivationClaims,
    Claims,
    ExportClaim,
    ExternalAuthorization,
    ImportClaim,
    JetStreamLimits,
    OperatorClaims,
    PermissionClaims,
    ResponseClaims,
    UserClaims,
    activation_claims,
)
from broker.jwt.token import TokenError

__all__ = ["Issue", "account_issues", "activation_issues", "blocking", "operator_issues", "response_issues",
           "user_issues"]

_INFO_CHARS_MAX: Final = 8 * 1024
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):[0-5]\d:[0-5]\d")
_RESPONSE_TYPES: Final = ("", "Singleton", "Stream", "Chunked")
_SERVICE_SCHEMES: Final = ("nats", "tls", "ws", "wss")


@dataclass(frozen=True, slots=True)
class Issue:
    why: str
    of_time: bool = False
    """True if the claims are expired, or not valid yet."""


def blocking(issues: Iterable[Issue], *, of_time: bool = True) -> bool:
    """Return whether issues forbid to use the claims; with ``of_time`` False, issues of time do not."""
    return any(of_time or not issue.of_time for issue in issues)


def operator_issues(claims: OperatorClaims, now: int) -> list[Issue]:
    """Return the issues of an operator's claims; ``now`` is in seconds since 1970."""
    return [*_times(claims, now), *map(Issue, _operator(claims))]


def user_issues(claims: UserClaims, now: int) -> list[Issue]:
    return [*_times(claims, now), *map(Issue, _user(claims))]


def account_issues(claims: AccountClaims, now: int) -> list[Issue]:
    return [*_times(claims, now), *map(Issue, _account(claims))]


def activation_issues(claims: ActivationClaims, now: int) -> list[Issue]:
    return [*_times(claims, now), *map(Issue, _activation(claims))]


def response_issues(claims: ResponseClaims, now: int) -> list[Issue]:
    return [*_times(claims, now), *map(Issue, _response(claims))]


def _times(claims: Claims, now: int) -> Iterator[Issue]:
    if 0 < claims.expires < now:
        yield Issue("claim is expired", of_time=True)
    if claims.not_before > 0 and claims.not_before > now:
        yield Issue("claim is not yet valid", of_time=True)


def _operator(claims: OperatorClaims) -> Iterator[str]:
    if claims.account_server_url and not _scheme(claims.account_server_url):
        yield f'account server url "{claims.account_server_url}" requires a protocol'
    for url in filter(None, claims.service_urls):
        if _scheme(url) not in _SERVICE_SCHEMES:
            yield (f'operator service url "{url}" - protocol not supported '
                   "(only 'nats', 'tls', 'ws', 'wss' only)")
    for key in claims.signing_keys:
        if not is_public_key(key, OPERATOR):
            yield f"{key} is not an operator public key"
    if claims.system_account and not is_public_key(claims.system_account, ACCOUNT):
        yield f"{claims.system_account} is not an account public key"
    if claims.assert_server_version and not re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", claims.assert_server_version):
        yield "assert server version error: asserted server version must be of the form <major>.<minor>.<update>"


def _user(claims: UserClaims) -> Iterator[str]:
    limits = claims.limits
    yield from _permissions(limits.permissions)
    for network in limits.src:
        if not _is_network(network):
            yield f'invalid cidr "{network}" in user src limits'
    for start, end in limits.times:
        for time, what in ((start, "start"), (end, "end")):
            if not time:
                yield f"time ranges {what} must contain a{'n' * (what == 'end')} {what}"
            elif not _TIME.fullmatch(time):
                yield f'{what} in time range is invalid "{time}"'
    if limits.locale and not is_time_zone(limits.locale):
        yield f"could not parse iana time zone by name: unknown time zone {limits.locale}"
    if claims.issuer_account and not is_public_key(claims.issuer_account, ACCOUNT):
        yield "account_id is not an account public key"


def _account(claims: AccountClaims) -> Iterator[str]:
    yield from _imports(claims)
    yield from _exports(claims.exports)
    limits = claims.limits
    if any(not name for name, _ in limits.tiers):
        yield 'Tiered JetStream Limits can not contain a blank "" tier name'
    yield from _permissions(claims.default_permissions)
    yield from _mappings(claims)
    yield from _authorization(claims.authorization)
    if claims.trace is not None:
        subject, sampling = claims.trace
        if problem := next(_subject(subject), ""):
            yield f"the account Trace.Destination {problem}"
        if has_wildcards(subject):
            yield f'the account Trace.Destination subject "{subject}" is not a valid publish subject'
        if not 0 <= sampling <= 100:
            yield f"the account Trace.Sampling value '{sampling}' is not valid, should be in the range [1..100]"
    too_many = "the account contains more imports than allowed by the operator"
    if limits != _NO_LIMITS_AT_ALL and 0 <= limits.imports < len(claims.imports):
        yield too_many
    if limits.imports != NO_LIMIT and len(claims.imports) > limits.imports:
        yield too_many
    if limits.exports != NO_LIMIT:
        if len(claims.exports) > limits.exports:
            yield "the account contains more exports than allowed by the operator"
        if not limits.wildcards:
            for export in claims.exports:
                if has_wildcards(export.subject):
                    yield "the account contains wildcard exports that are not allowed by the operator"
    for key, scope in claims.signing_keys.items():
        if not is_public_key(key, ACCOUNT):
            yield (f"{key} is not an account public key" if scope is not None
                   else f'"{key}" is not a valid account signing key')
    yield from _info(claims.description, claims.info_url)
    if claims.cluster_traffic not in ("", "system", "owner"):
        yield f'unknown cluster traffic option: "{claims.cluster_traffic}"'


_NO_LIMITS_AT_ALL: Final = AccountLimits(jetstream=JetStreamLimits())


def _activation(claims: ActivationClaims) -> Iterator[str]:
    if not claims.kind:
        yield 'invalid import type: "unknown"'
    yield from _subject(claims.import_subject)
    if claims.issuer_account and not is_public_key(claims.issuer_account, ACCOUNT):
        yield "account_id is not an account public key"


def _response(claims: ResponseClaims) -> Iterator[str]:
    if not is_public_key(claims.subject, USER):
        yield "Subject must be a user public key"
    if not is_public_key(claims.audience, SERVER):
        yield "Audience must be a server public key"
    if not claims.error and not claims.jwt:
        yield "Error or Jwt is required"
    if claims.error and claims.jwt:
        yield "Only Error or Jwt can be set"
    if claims.issuer_account and not is_public_key(claims.issuer_account, ACCOUNT):
        yield "issuer_account is not an account public key"


def _imports(claims: AccountClaims) -> Iterator[str]:
    imported: dict[str, list[str]] = {}
    for one in claims.imports:
        if one.kind == "service":
            imported.setdefault(one.account, []).append(_imported_as(one))
    suspects = {account: frozenset(overlapping(subjects)) for account, subjects in imported.items()}
    taken: dict[str, list[str]] = {}
    for one in claims.imports:
        if one.kind == "service" and (subject := _imported_as(one)) in suspects[one.account]:
            others = taken.setdefault(one.account, [])
            for other in others:
                if contained(subject, other) or contained(other, subject):
                    yield f'overlapping subject namespace for "{subject}" and "{other}" in same account "{one.account}"'
            if subject in others:
                yield f'overlapping subject namespace for "{subject}" in account "{one.account}"'
            else:
                others.append(subject)
        yield from _import(one, claims.subject)


def _imported_as(one: ImportClaim) -> str:
    return one.to or _pattern(one.local_subject) or one.subject


def _import(one: ImportClaim, account: str) -> Iterator[str]:
    if not one.kind:
        yield 'invalid import type: "unknown"'
    if one.kind == "service" and one.allow_trace:
        yield "AllowTrace only valid for stream import"
    if not one.account:
        yield "account to import from is not specified"
    yield from _subject(one.subject)
    if one.local_subject:
        yield from _renaming(one.local_subject, one.subject)
        if one.to:
            yield "Local Subject replaces To"
    if one.share and one.kind != "service":
        yield f'sharing information (for latency tracking) is only valid for services: "{one.subject}"'
    if one.token:
        yield from _token(one, account)


def _token(one: ImportClaim, account: str) -> Iterator[str]:
    try:
        activation = activation_claims(one.token)
    except TokenError:
        yield f'import "{one.subject}" contains an invalid activation token'
        return
    if one.account not in (activation.issuer, activation.issuer_account):
        yield f'activation token doesn\'t match account for import "{one.subject}"'
    if activation.subject != account:
        yield f'activation token doesn\'t match account it is being included in, "{one.subject}"'
    if activation.kind != one.kind:
        yield (f"mismatch between token import type {activation.kind or 'unknown'} and type of import "
               f"{one.kind or 'unknown'}")
    yield from _activation(activation)
    subject = one.to if one.kind == "service" and one.to else one.subject
    if not contained(subject, activation.import_subject):
        yield f'activation token import subject "{activation.import_subject}" doesn\'t match import "{one.subject}"'


def _renaming(subject: str, source: str) -> Iterator[str]:
    yield from _subject(subject)
    if not source:
        yield "subject cannot be empty"
    if _ends_open(subject) != _ends_open(source):
        yield "both, renaming subject and subject, need to end or not end in >"
    count, references = source.split(".").count("*"), 0
    for token in subject.split("."):
        if token == "*":
            references += 1
        elif (number := _reference(token)) is not None:
            if number > count:
                yield f'Reference ${number} in "{subject}" reference * in "{source}" that do not exist'
            else:
                references += 1
    if references != count:
        yield "subject does not contain enough * or reference wildcards $[0-9]"


def _exports(exports: tuple[ExportClaim, ...]) -> Iterator[str]:
    for export in exports:
        yield from _export(export)
    for kind in ("service", "stream"):
        subjects = [export.subject for export in exports if (export.kind == "service") == (kind == "service")]
        subjects = overlapping(subjects)
        seen = set()
        for i, narrow in enumerate(subjects):
            for j, wide in enumerate(subjects):
                if i != j and wide not in seen and contained(narrow, wide):
                    seen.add(wide)
                    yield f'{kind} export subject "{wide}" already exports "{narrow}"'


def _export(export: ExportClaim) -> Iterator[str]:
    service, stream = export.kind == "service", export.kind == "stream"
    if not export.kind:
        yield 'invalid export type: "unknown"'
    if service and export.response_type not in _RESPONSE_TYPES:
        yield f'invalid response type for service: "{export.response_type}"'
    if stream and export.response_type:
        yield f'invalid response type for stream: "{export.response_type}"'
    if stream and export.allow_trace:
        yield "AllowTrace only valid for service export"
    if export.latency is not None:
        sampling, results = export.latency
        if not service:
            yield "latency tracking only permitted for services"
        if not 0 <= sampling <= 100:
            yield "sampling percentage needs to be between 1-100"
        yield from _subject(results)
        if has_wildcards(results):
            yield "results subject can not contain wildcards"
    if export.response_threshold_ns < 0:
        yield "negative response threshold is invalid"
    if export.response_threshold_ns > 0 and not service:
        yield "response threshold only valid for services"
    yield from _subject(export.subject)
    position, tokens = export.account_token_position, export.subject.split(".")
    if position > 0:
        if not has_wildcards(export.subject):
            yield f"Account Token Position can only be used with wildcard subjects: {export.subject}"
        elif position > len(tokens):
            yield f"Account Token Position {position} exceeds length of subject '{export.subject}'"
        elif tokens[position - 1] != "*":
            yield (f"Account Token Position {position} matches '{tokens[position - 1]}' but must match a * in: "
                   f"{export.subject}")
    yield from _info(export.description, export.info_url)


def _mappings(claims: AccountClaims) -> Iterator[str]:
    for source, destinations in claims.mappings:
        yield from _subject(source)
        totals: dict[str, int] = {}
        for one in destinations:
            yield from _subject(one.subject)
            weight = one.weight or 100
            if weight > 100:
                yield f'Mapping "{source}" has a weight {weight} that exceeds 100'
            totals[one.cluster] = totals.get(one.cluster, 0) + weight
            if one.cluster and totals[one.cluster] > 100:
                yield (f'Mapping "{source}" in cluster "{one.cluster}" exceeds 100% among all of it\'s weighted to '
                       "mappings")
        if totals.get("", 0) > 100:
            yield f'Mapping "{source}" exceeds 100% among all of it\'s weighted to mappings'


def _authorization(claims: ExternalAuthorization) -> Iterator[str]:
    if claims.allowed_accounts and not claims.auth_users:
        yield "External authorization cannot have accounts without users specified"
    for user in claims.auth_users:
        if not is_public_key(user, USER):
            yield f'AuthUser "{user}" is not a valid user public key'
    for account in claims.allowed_accounts:
        if account == ANY:
            if len(claims.allowed_accounts) > 1:
                yield f'AllowedAccounts can only be a list of accounts or "{ANY}"'
        elif not is_public_key(account, ACCOUNT):
            yield f'Account "{account}" is not a valid account public key'
    if claims.xkey and not is_public_key(claims.xkey, CURVE):
        yield f'XKey "{claims.xkey}" is not a valid public xkey'


def _permissions(claims: PermissionClaims) -> Iterator[str]:
    for patterns, queues in (((*claims.subscribe_allow, *claims.subscribe_deny), True),
                             ((*claims.publish_allow, *claims.publish_deny), False)):
        for pattern in patterns:
            words = pattern.split(" ")
            if len(words) > 2:
                yield f'Permission Subject "{pattern}" contains too many spaces'
                continue
            for word in words:
                yield from _subject(word)
            if len(words) == 2 and not queues:
                yield f'Permission Subject "{pattern}" is not allowed to contain queue'


def _subject(subject: str) -> Iterator[str]:
    if not subject:
        yield "subject cannot be empty"
        return
    if " " in subject:
        yield f'subject "{subject}" cannot have spaces'
    if subject[0] == "." or subject[-1] == ".":
        yield f'subject "{subject}" cannot start or end with a `.`'
    if ".." in subject:
        yield f'subject "{subject}" cannot contain consecutive `.`'


def _info(description: str, url: str) -> Iterator[str]:
    if len(description.encode()) > _INFO_CHARS_MAX:
        yield "Description is too long"
    if url:
        if len(url.encode()) > _INFO_CHARS_MAX:
            yield "Info URL is too long"
        try:
            parts = urlsplit(url)
            problem = "" if parts.hostname and parts.scheme else "no hostname or scheme"
        except ValueError as error:
            problem = str(error)
        if problem:
            yield f"error parsing info url: {problem}"


def has_wildcards(subject: str) -> bool:
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def contained(subject: str, other: str) -> bool:
    """Return whether ``other`` covers ``subject``, token by token."""
    mine, theirs = subject.split("."), other.split(".")
    if len(mine) < len(theirs) or (len(mine) > len(theirs) and theirs[-1] != ">"):
        return False
    for at, token in enumerate(theirs):
        if token == ">" and at == len(theirs) - 1:
            return True
        if token not in (mine[at], "*"):
            return False
    return True


def overlapping(subjects: Sequence[str]) -> list[str]:
    """Return the ``subjects`` that cover another one or are covered. Comparing all pairs of 4000 would take half a
    minute."""
    times = Counter(subjects)
    # A tree by token; the key "." is no token, and has the subject that ends there.
    root: dict[str, Any] = {}
    for subject in times:
        node = root
        for token in subject.split("."):
            node = node.setdefault(token, {})
        node["."] = subject
    found: set[str] = set()
    for subject in times:
        covering: set[str] = set()
        nodes: list[dict[str, Any]] = [root]
        for token in subject.split("."):
            covering.update(node[">"]["."] for node in nodes if "." in node.get(">", ()))
            nodes = [node[one] for node in nodes for one in {token, "*"} if one in node]
        covering.update(node["."] for node in nodes if "." in node)
        if len(covering) > 1 or times[subject] > 1:  # it covers itself
            found |= covering
    return [subject for subject in subjects if subject in found]


def is_time_zone(name: str) -> bool:
    if name in ("Local", "UTC"):
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _is_network(text: str) -> bool:
    address, slash, bits = text.partition("/")
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return bool(slash) and bits.isdecimal() and "%" not in address


def _scheme(url: str) -> str:
    """Return the scheme; "": ``url`` is no URL."""
    try:
        return urlsplit(url).scheme.lower()
    except ValueError:
        return ""


def _pattern(local_subject: str) -> str:
    """Return a local subject with ``*`` in place of its references."""
    return ".".join("*" if _reference(token) is not None else token for token in local_subject.split("."))


def _reference(token: str) -> int | None:
    """Return the number in ``$1``; None if the token is no reference."""
    found = re.fullmatch(r"\$([+-]?[0-9]{1,18})", token)
    return int(found[1]) if found else None


def _ends_open(subject: str) -> bool:
    return subject == ">" or subject.endswith(".>")
