"""The figures of one connection: its row on /connz, and its part of JetStream's advisories. No I/O.

Source: nats-server, server/monitor.go (ConnInfo, myUptime), server/events.go (ClientInfo).
"""

from __future__ import annotations

import hashlib
from typing import Any

from broker.base.gotime import format_duration, format_time
from broker.server.connection.cipher_suites import standard_name
from broker.server.connection.client import Client
from broker.server.connection.connection import Connection
from broker.server.routing.subscription import Subscription

__all__ = ["connection_row", "identity", "peer_certificates", "subscription_row", "token_fields", "uptime"]


def connection_row(client: Client, now_ns: int, *, authenticated: bool) -> dict[str, Any]:
    """Return the /connz entry of ``client``; ``authenticated``: its user was checked, so it is shown."""
    options = client.options
    end_ns = client.stopped_at_ns or now_ns
    fields: dict[str, Any] = {
        "cid": client.cid, "kind": "Client", "type": client.entrance.client_type, "ip": client.ip, "port": client.port,
        "start": format_time(client.started_at_ns), "last_activity": format_time(client.last_at_ns),
    }
    if client.closed:
        fields["stop"] = format_time(client.stopped_at_ns)
        fields["reason"] = client.close_reason
    fields |= {
        "rtt": format_duration(client.rtt_ns), "uptime": uptime(end_ns - client.started_at_ns),
        "idle": uptime(end_ns - client.last_at_ns), "pending_bytes": client.pending_bytes,
        "in_msgs": client.in_msgs, "out_msgs": client.out_msgs, "in_bytes": client.in_bytes,
        "out_bytes": client.out_bytes,
    }
    if client.stalls:
        fields["stalls"] = client.stalls
    fields["subscriptions"] = len(client.subs)
    for name in ("name", "lang", "version"):
        if options.get(name):
            fields[name] = options[name]
    fields |= tls_fields(client)
    user = client.login.user or options.get("user")
    if authenticated and (user or options.get("auth_token")):
        fields["authorized_user"] = user or "[REDACTED]"
    fields["account"] = client.account.name
    fields |= token_fields(client)
    if client.proxy_key:
        fields["proxy"] = {"key": client.proxy_key}
    return fields


def subscription_row(sub: Subscription) -> dict[str, Any]:
    """Return a subscription as /connz and /subsz show it; an in-process one has the cid 0."""
    row: dict[str, Any] = {"subject": sub.subject.decode("utf-8", "replace")}
    if sub.queue:
        row["qgroup"] = sub.queue.decode("utf-8", "replace")
    row |= {"sid": sub.sid.decode("utf-8", "replace"), "msgs": sub.delivered}
    if sub.max:
        row["max"] = sub.max
    return row | {"cid": sub.peer.cid if isinstance(sub.peer, Connection) else 0}


def peer_certificates(client: Client) -> list[dict[str, str]]:
    """Return the certificate that verified a client, as /connz shows it; an empty list without one."""
    certificate = client.certificate
    if certificate is None:
        return []
    # The imports take 30 ms and are rarely needed.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    parsed = x509.load_der_x509_certificate(certificate)
    key = parsed.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [{"subject": parsed.subject.rfc4514_string(), "spki_sha256": hashlib.sha256(key).hexdigest(),
             "cert_sha256": hashlib.sha256(certificate).hexdigest()}]


def tls_fields(client: Client) -> dict[str, Any]:
    """Return the TLS fields of a row."""
    tls = client.tls
    if tls is None or tls.cipher() is None:
        return {}
    name, version, _ = tls.cipher() or ("", "", 0)
    fields = {"tls_version": (tls.version() or version).removeprefix("TLSv"), "tls_cipher_suite": standard_name(name)}
    return {**fields, "tls_first": True} if client.tls_first else fields


def token_fields(client: Client) -> dict[str, Any]:
    """Return a row's fields about the token with which the client logged in."""
    login = client.login
    if login.kind != "jwt" or login.token is None or login.claims is None:
        return {}
    issuer = login.token.issuer if login.token.issuer_account else client.account.name
    shown = "[REDACTED]" if login.claims.limits.bearer else client.options.get("jwt")
    fields = {"jwt": shown, "issuer_key": issuer, "name_tag": client.account.settings.name_tag,
              "tags": list(login.tags)}
    return {name: value for name, value in fields.items() if value}


def identity(client: Client, server_name: str) -> dict[str, Any]:
    """Return ``client`` as JetStream's advisories show it."""
    options = client.options
    fields = {
        "start": format_time(client.started_at_ns), "host": client.ip, "id": client.cid, "acc": client.account.name,
        "user": client.login.user or options.get("user") or ("[REDACTED]" if options.get("auth_token") else ""),
        "name": options.get("name"), "lang": options.get("lang"), "ver": options.get("version"),
        "rtt": client.rtt_ns, "server": server_name, "kind": "Client", "client_type": client.entrance.client_type,
        **token_fields(client), "jwt": "", "name_tag": client.login.name_tag,
    }
    return {name: value for name, value in fields.items() if value}


def uptime(elapsed_ns: int) -> str:
    """Format whole seconds as nats-server's monitoring does: 1y2d3h4m5s, without leading zero parts."""
    seconds = max(elapsed_ns, 0) // 1_000_000_000
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    years, day = divmod(days, 365)
    parts = [(years, "y"), (day, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return "".join(f"{number}{unit}" for number, unit in parts)
