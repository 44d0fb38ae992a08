"""Turns claims into the values of ``broker.access``; checks the times and addresses at which a user may connect.

Source: nats-server, server/accounts.go (updateAccountClaimsWithRefresh, buildPermissionsFromJwt), server/jwt.go
(validateSrc, validateTimesAt).
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from broker.access.accounts import (
    NO_LIMIT,
    TIER,
    AccountLimits,
    AccountSettings,
    OuterTrace,
    Permissions,
    ResponsePermission,
    SubjectPermission,
)
from broker.access.sharing import Destination, SubjectMapping
from broker.jwt.claims import AccountClaims, JetStreamLimits, PermissionClaims, UserPermissions
from broker.protocol.subject import is_valid

__all__ = ["account_settings", "may_come_from", "permissions_of", "seconds_left"]

_LIMIT_MAX: Final = (1 << 31) - 1
_MAPPED_BITS: Final = 96
"""The bits of an IPv6 address before the IPv4 address in it."""


def account_settings(claims: AccountClaims) -> AccountSettings:
    """Return the account, without exports and imports. Raises: ValueError for permissions that cannot be enforced."""
    limits = claims.limits
    return AccountSettings(
        claims.subject, name_tag=claims.name, jetstream=_jetstream(claims),
        default_permissions=permissions_of(claims.default_permissions),
        outer_trace=(OuterTrace(claims.trace[0], claims.trace[1] or 100)
                     if claims.trace is not None and is_valid(claims.trace[0].encode()) else None),
        max_connections=_limit(limits.conn), max_subscriptions=_limit(limits.subs), max_payload=_limit(limits.payload),
        mappings=tuple(SubjectMapping(source, tuple(Destination(one.subject, one.weight or 100, one.cluster)
                                                    for one in destinations))
                       for source, destinations in claims.mappings))


def permissions_of(claims: PermissionClaims) -> Permissions | None:
    """Return the permissions; None: everything is allowed. Raises: ValueError for an invalid pattern."""
    publish = SubjectPermission(claims.publish_allow or None, claims.publish_deny)
    subscribe = SubjectPermission(claims.subscribe_allow or None, claims.subscribe_deny)
    responses = None
    if claims.responses is not None:
        default = ResponsePermission()
        responses = ResponsePermission(claims.responses.max_msgs or default.max_msgs,
                                       claims.responses.expires_ns or default.expires_ns)
    if responses is None and publish == subscribe == SubjectPermission():
        return None
    return Permissions(publish, subscribe, responses)


def may_come_from(limits: UserPermissions, ip: str) -> bool:
    """Return whether a user with these limits may connect from ``ip``."""
    if not limits.src:
        return True
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # by a socket for both
        return any(address in _network(text) for text in limits.src)
    except ValueError:
        return False


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse a network; IPv4 addresses mapped to IPv6 (``::ffff:10.0.0.0/104``) are the IPv4 network, as in Go."""
    network = ipaddress.ip_network(text, strict=False)
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def seconds_left(limits: UserPermissions, now_ns: int) -> float | None:
    """Return the seconds that a user with these limits may stay connected; 0: none now; None: for ever."""
    if not limits.times:
        return None
    zone = _zone(limits.locale)
    now = (datetime.fromtimestamp(now_ns / 1e9, zone) if zone is not None
           else datetime.fromtimestamp(now_ns / 1e9).astimezone())
    return max((_left(_at(now, start), _at(now, end), now) for start, end in limits.times), default=0.0)


def _left(start: datetime, end: datetime, now: datetime) -> float:
    if start < now < end:
        return (end - now).total_seconds()
    if start > end:  # the window crosses midnight
        if end > now:
            return (end - now).total_seconds()
        if start < now:
            return (end + timedelta(days=1) - now).total_seconds()
    return 0.0


def _at(day: datetime, time: str) -> datetime:
    hour, minute, second = map(int, time.split(":"))
    return day.replace(hour=hour, minute=minute, second=second, microsecond=0)


def _zone(name: str) -> tzinfo | None:
    """Return the time zone; None: the machine's own."""
    if name in ("", "Local"):
        return None
    return UTC if name == "UTC" else ZoneInfo(name)


def _limit(value: int) -> int:
    """Bound a limit's size. -1 means no limit, and any other negative number allows nothing, as on nats-server."""
    return max(-_LIMIT_MAX - 1, min(value, _LIMIT_MAX))


def _jetstream(claims: AccountClaims) -> AccountLimits | None:
    limits = claims.limits
    if not limits.tiers:
        return _stream_limits(limits.jetstream) if limits.jetstream.enabled else None
    given = dict(limits.tiers)
    if TIER not in given or not given[TIER].enabled:
        return None
    tiers = tuple((name, _stream_limits(tier)) for name, tier in given.items())
    return _stream_limits(given[TIER]).replace(tiers=tiers)


def _stream_limits(given: JetStreamLimits) -> AccountLimits:
    return AccountLimits(
        max_memory=given.mem_storage, max_storage=given.disk_storage, max_streams=given.streams,
        max_consumers=given.consumer, max_ack_pending=given.max_ack_pending if given.max_ack_pending > 0 else NO_LIMIT,
        memory_max_stream_bytes=given.mem_max_stream_bytes if given.mem_max_stream_bytes > 0 else NO_LIMIT,
        storage_max_stream_bytes=given.disk_max_stream_bytes if given.disk_max_stream_bytes > 0 else NO_LIMIT,
        max_bytes_required=given.max_bytes_required)
