"""A file's remotes of leaf nodes: ``leafnodes { remotes [ { urls: […], account: …, credentials: … } ] }``.

Source: nats-server, server/opts.go (parseRemoteLeafNodes), server/leafnode.go (validateLeafNode).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.access.accounts import DEFAULT_ACCOUNT, NkeyUser, User
from broker.base.nkeys import USER, KeyPair, is_public_key
from broker.config import kinds
from broker.config.leafnodes import LEAF_PORT, LeafRemote, LeafTls, LeafUrl
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.reading.users import read_patterns
from broker.config.syntax import Value

__all__ = ["check_compression", "read_authorization", "read_remotes", "read_tls"]

_LATER: Final = "is not supported by this version of jetblock"

_REMOTE = aliases(
    "url", "urls", "account local", "credentials creds", "nkey seed", "tls", "deny_imports deny_import",
    "deny_exports deny_export", "no_randomize dont_randomize", "ignore_discovered_servers", "request_isolation",
    "disabled", "first_info_timeout", "dial_timeout", "compression", "hub",
    "ws_compression ws_compress websocket_compression websocket_compress", "ws_no_masking websocket_no_masking",
    "proxy", "jetstream_cluster_migrate js_cluster_migrate", "isolate_leafnode_interest isolate")
_USER = aliases("user username", "password pass", "account", "proxy_required")
_AUTHORIZATION = {**_USER, **aliases("nkey", "timeout", "users")}
_WITHOUT_EFFECT: Final = ("verify", "verify_and_map", "connection_rate_limit", "allow_insecure_cipher_suites")
"""Keys of ``tls`` that nats-server accepts in a remote, too, and that change nothing there."""

_NOT_IN_TLS: Final = {
    **dict.fromkeys(("cipher_suites", "curve_preferences", "pinned_certs"), f"{_LATER} for connections that it opens"),
    "certs": f"{_LATER} for connections that it opens: use cert_file and key_file",
    "ocsp_peer": f"{_LATER}: certificates are not checked by OCSP",
    **dict.fromkeys(("cert_store", "cert_match_by", "cert_match", "ca_certs_match", "cert_match_skip_invalid"),
                    "is nothing that jetblock has: it takes certificates from files"),
}
_TLS = aliases("ca_file", "cert_file", "key_file", "insecure", "min_version", "timeout",
               "handshake_first first immediate", "certs certificates", *_WITHOUT_EFFECT,
               *(name for name in _NOT_IN_TLS if name != "certs"))
_UNSUPPORTED: Final = {
    **dict.fromkeys(("ws_compression", "ws_no_masking", "proxy"), f"{_LATER}: it is for WebSocket remotes"),
    "jetstream_cluster_migrate": f"{_LATER}: there is no Raft",
}


def read_remotes(value: Value, found: Findings) -> tuple[LeafRemote, ...]:
    """Read the list of remotes; leave out those with errors."""
    if not isinstance(value.value, list):
        found.wrong(value, f"Expected remotes field to be an array, got {go_type(value)}")
        return ()
    remotes = []
    for row in value.value:
        if not isinstance(row.value, dict):
            found.wrong(row, f"Expected remote leafnode entry to be a map/struct, got {go_value(row)}")
        elif (remote := _read_remote(row, found)) is not None:
            remotes.append(remote)
    return tuple(remotes)


def _read_remote(row: Value, found: Findings) -> LeafRemote | None:
    before = len(found.errors)
    parts: dict[str, Any] = {}
    for name, written, value in found.fields(row, _REMOTE):
        if name in _UNSUPPORTED:
            if value.value not in (False, {}):
                found.wrong(value, f'"{written}" {_UNSUPPORTED[name]}')
        elif name in ("url", "urls"):
            parts["urls"] = _read_urls(value, found)
        elif name == "tls":
            parts["tls"] = read_tls(value, found)
        elif name == "compression":
            check_compression(written, value, found)
        elif name == "nkey":
            parts["nkey"] = _read_seed(value, found)
        elif name in ("deny_imports", "deny_exports"):
            parts[name] = read_patterns(value, found, queues=False)
        elif name in ("first_info_timeout", "dial_timeout"):
            parts[f"{name}_ns"] = found.convert(kinds.duration_ns(1), written, value) or 1
        elif name in ("account", "credentials"):
            parts[name] = found.convert(kinds.text, written, value) or ""
        else:
            parts[name] = bool(found.convert(kinds.boolean, written, value))
    if parts.get("nkey") and parts.get("credentials"):
        found.wrong(row, "Remote leafnode can not have both creds and nkey defined")
    if not parts.get("urls") and len(found.errors) == before:
        found.wrong(row, "a remote needs url: … or urls: […]")
    return LeafRemote(**parts) if len(found.errors) == before else None


def read_authorization(value: Value, found: Findings) -> tuple[tuple[User, ...], tuple[NkeyUser, ...], int]:
    """Read the users of the listener. Returns: users, keys, and the timeout (0: none)."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected leafnode authorization to be a map/struct, got {go_type(value)}")
        return (), (), 0
    several: list[User] = []
    timeout_ns = 0
    for name, written, inner in found.fields(value, _AUTHORIZATION):
        if name == "timeout":
            timeout_ns = found.convert(kinds.duration_ns(1), written, inner) or 0
        elif name == "users":
            if not isinstance(inner.value, list):
                found.wrong(inner, f"Expected users field to be an array, got {go_value(inner)}")
                continue
            several += [user for row in inner.value if isinstance(user := _read_user(row, _USER, found), User)]
        elif name == "proxy_required":
            _refuse_proxies(written, inner, found)
    one = {"user", "username", "nkey"} & set(map(str.lower, value.value))
    single = _read_user(value, _AUTHORIZATION, found) if one else None
    if single is not None and several:
        what = "single nkey" if isinstance(single, NkeyUser) else "single user/pass"
        found.wrong(value, f"can not have a {what} and a users array")
    for name, number in Counter(user.user for user in several).items():
        if number > 1:
            found.wrong(value, f'duplicate user "{name}" detected in leafnode authorization')
    users = (*several, *([single] if isinstance(single, User) else []))
    return users, (single,) if isinstance(single, NkeyUser) else (), timeout_ns


def _refuse_proxies(written: str, value: Value, found: Findings) -> None:
    if value.value is not False:
        found.wrong(value, f'"{written}" {_LATER} for the listener of leaf nodes')


def _read_user(row: Value, names: Mapping[str, str], found: Findings) -> User | NkeyUser | None:
    """Read a user of the listener, who may have an account."""
    if not isinstance(row.value, dict):
        found.wrong(row, f"Expected user entry to be a map/struct, got {go_value(row)}")
        return None
    texts = {}
    for name, written, inner in found.fields(row, names):
        if name in ("user", "password", "nkey", "account"):
            texts[name] = found.convert(kinds.text, written, inner, secret=name == "password") or ""
        elif name == "proxy_required" and names is _USER:
            _refuse_proxies(written, inner, found)
    account = texts.get("account") or DEFAULT_ACCOUNT
    if nkey := texts.get("nkey"):
        if is_public_key(nkey, USER):
            return NkeyUser(nkey, account=account)
        found.wrong(row, "Not a valid public nkey for a user")
    elif texts.get("user"):
        return User(texts["user"], texts.get("password", ""), account=account)
    else:
        found.wrong(row, "User entry requires a user")
    return None


def check_compression(written: str, value: Value, found: Findings) -> None:
    """Refuse every mode of compression but ``off``."""
    mode = value.value.get("mode") if isinstance(value.value, dict) else value
    if mode is None or str(mode.value).lower() not in ("off", "disabled", "false"):
        found.wrong(value, f'"{written}" {_LATER}, except for off: messages are sent as they are')


def _read_urls(value: Value, found: Findings) -> tuple[LeafUrl, ...]:
    urls: dict[LeafUrl, None] = {}
    for row in value.value if isinstance(value.value, list) else [value]:
        if not isinstance(row.value, str):
            found.wrong(row, f"Expected remote leafnode url to be an array or string, got {go_value(row)}")
            continue
        try:
            urls[_read_url(row.value)] = None
        except ValueError as error:
            found.wrong(row, f"error parsing leafnode url: {error}")
    return tuple(urls)


def _read_url(text: str) -> LeafUrl:
    """Parse a URL, of any scheme, as nats-server does. Raises: ValueError, whose text shows no password."""
    parts = urlsplit(text.strip())
    if parts.scheme in ("ws", "wss"):
        raise ValueError(f'"{parts.scheme}://" {_LATER}; use nats-leaf://')
    if not parts.hostname:
        raise ValueError("it has no host, as nats-leaf://host:7422 has")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("its port is not between 0 and 65535") from None
    return LeafUrl(parts.hostname, port or LEAF_PORT, unquote(parts.username or ""), unquote(parts.password or ""),
                   parts.scheme or "nats-leaf")


def read_tls(value: Value, found: Findings) -> LeafTls | None:
    """Read the TLS of a connection to another server."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"TLS options should be a map, got {go_type(value)}")
        return None
    parts: dict[str, Any] = {}
    for name, written, inner in found.fields(value, _TLS):
        if name in _WITHOUT_EFFECT:
            continue
        if name in _NOT_IN_TLS:
            found.wrong(inner, f'"{written}" {_NOT_IN_TLS[name]}')
        elif name == "timeout":
            parts["timeout_ns"] = found.convert(kinds.duration_ns(1), written, inner) or 1
        elif name == "insecure":
            parts[name] = bool(found.convert(kinds.boolean, written, inner))
        elif name == "handshake_first":
            # A side that connects does not wait for the other: auto and durations mean the same as true.
            parts[name] = found.convert(kinds.handshake_first, written, inner) is not None
        elif name == "min_version":
            parts[name] = found.convert(kinds.choice("1.2", "1.3"), written, inner) or "1.2"
        else:
            parts[name] = found.convert(kinds.text, written, inner) or ""
    if bool(parts.get("cert_file")) is not bool(parts.get("key_file")):
        found.wrong(value, "a certificate needs both: cert_file: …, key_file: …")
    return LeafTls(**parts)


def _read_seed(value: Value, found: Findings) -> str:
    seed = value.value if isinstance(value.value, str) else ""
    try:
        if not KeyPair.of_seed(seed).public.startswith("U"):
            raise ValueError
    except ValueError:
        found.wrong(value, "Remote leafnode nkey is not a valid seed")
    return seed
