"""Turns the exports and imports in an account's claims into the values of ``broker.access``.

An import that needs permission has an activation token of the exporting account. The exporting account's claims decide
whether the token is valid now.

Source: nats-server, server/accounts.go (updateAccountClaimsWithRefresh, checkActivation, isIssuerClaimTrusted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from broker.access.sharing import Export, Import, Latency, latency_problem
from broker.jwt.claims import AccountClaims, ActivationClaims, ExportClaim, ImportClaim, activation_claims
from broker.jwt.token import TokenError
from broker.jwt.validation import activation_issues, blocking, contained
from broker.protocol.subject import is_valid

__all__ = ["exports_of", "imports_of", "next_expiry"]

_RESPONSES: Final[dict[str, Literal["singleton", "stream", "chunked"]]] = {
    "": "singleton", "Singleton": "singleton", "Stream": "stream", "Chunked": "chunked"}

_Signs = Callable[[str, str], bool]
"""Decides whether a key (the second argument) may sign for an account (the first)."""


def exports_of(claims: AccountClaims) -> tuple[Export, ...]:
    """Return the exports of validated claims. Left out are subjects that nobody could subscribe to, and latencies that
    would be requests to the account's own services."""
    exports = tuple(_export(one) for one in claims.exports if is_valid(one.subject.encode()))
    return tuple(one.replace(latency=None) if latency_problem(exports, one) else one for one in exports)


def _export(one: ExportClaim) -> Export:
    service = one.kind == "service"
    return Export(
        "service" if service else "stream", one.subject, () if one.token_req else None,
        _RESPONSES[one.response_type] if service else "singleton", one.response_threshold_ns,
        Latency(one.latency[1], one.latency[0]) if one.latency is not None else None,
        one.account_token_position, one.allow_trace)


def imports_of(claims: AccountClaims, exporters: Callable[[str], AccountClaims | None], signs: _Signs,
               now: int) -> tuple[Import, ...]:
    """Return the imports of validated claims; ``exporters`` are known accounts by name, ``now`` in seconds since
    1970."""
    return tuple(_import(one, claims.subject, exporters(one.account), signs, now) for one in claims.imports
                 if is_valid(one.subject.encode()))


def _import(one: ImportClaim, importer: str, exporter: AccountClaims | None, signs: _Signs, now: int) -> Import:
    activated = exporter is not None and _activated(one, importer, exporter, signs, now)
    if one.kind == "stream":
        # Without a local subject, ``to`` is a prefix.
        return Import("stream", one.account, one.subject, one.local_subject, "" if one.local_subject else one.to,
                      allow_trace=one.allow_trace, activated=activated)
    # A service's ``subject`` is the local one if ``to`` is given, else the exporter's.
    subject, local = (one.subject, one.local_subject) if one.local_subject else (one.to or one.subject, one.subject)
    return Import("service", one.account, subject, local if local != subject else "", share=one.share,
                  activated=activated)


def _activated(one: ImportClaim, importer: str, exporter: AccountClaims, signs: _Signs, now: int) -> bool:
    """Return whether the exporting account permits this import by a token."""
    activation = _activation(one)
    if activation is None or blocking(activation_issues(activation, now)) or _has_expired(activation, now):
        return False
    wanted = one.to if one.kind == "service" and one.to else one.subject
    if (activation.subject != importer or activation.kind != one.kind
        or not contained(wanted, activation.import_subject)
            or exporter.subject not in (activation.issuer, activation.issuer_account)):
        return False
    if activation.issuer_account and not (activation.issuer_account == exporter.subject
                                          and signs(exporter.subject, activation.issuer)):
        return False
    return not _revoked(activation, _exports_that_cover(exporter.exports, one.kind, wanted))


def _has_expired(activation: ActivationClaims, now: int) -> bool:
    """Return whether a token has expired. A time before 1970 has, too, although validation does not report it."""
    return activation.expires != 0 and activation.expires <= now


def _revoked(activation: ActivationClaims, exports: Iterable[ExportClaim]) -> bool:
    return any(activation.issued_at <= export.revocations.get(key, -1 << 63)
               for export in exports for key in (activation.subject, "*"))


def _exports_that_cover(exports: Iterable[ExportClaim], kind: str, subject: str) -> Iterable[ExportClaim]:
    return (export for export in exports if export.kind == kind and contained(subject, export.subject))


def next_expiry(claims: AccountClaims, now: int) -> int | None:
    """Return the time at which the next activation of the account's imports expires; None: never."""
    activations = (_activation(one) for one in claims.imports)
    return min((one.expires for one in activations if one is not None and one.expires > now), default=None)


def _activation(one: ImportClaim) -> ActivationClaims | None:
    try:
        return activation_claims(one.token) if one.token else None
    except TokenError:
        return None
