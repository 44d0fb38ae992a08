"""A file's remotes of leaf nodes: ``leafnodes { remotes [ { urls: […], account: …, credentials: … } ] }``.

Source: nats-server, server/opts.go (parseRemoteLeafNodes), server/leafnode.go (validateLeafNode).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.access.accounts import DEFAULT_ACCOUNT, NkeyUser, User
from broker.base.nkeys import USER, KeyPair, is_public_key
from broker.config import kinds
from broker.config.leafnodes import LEAF_PORT, LeafRemote, LeafTls, LeafUrl
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.syntax import Value
from broker.protocol.subject import is_valid

__all__ = ["check_compression", "read_authorization", "read_remotes", "read_tls"]

_LATER: Final = "is not supported by this version of jetblock"

_REMOTE = aliases(
    "url", "urls", "account local", "credentials creds", "nkey seed", "tls", "deny_imports deny_import",
    "deny_exports deny_export", "no_randomize dont_randomize", "ignore_discovered_servers", "request_isolation",
    "disabled", "first_info_timeout", "dial_timeout", "compression", "hub",
    "ws_compression ws_compress websocket_compression websocket_compress", "ws_no_masking websocket_no_masking",
    "proxy", "username", "password", "timeout",
    "jetstream_cluster_migrate js_cluster_migrate",
    "isolate_leafnode_interest isolate")
_AUTHORIZATION = aliases("user username", "password pass", "nkey", "account", "timeout", "users", "proxy_required")
_TLS = aliases("ca_file", "cert_file", "key_file", "insecure", "min_version", "timeout",
               "handshake_first first immediate", "verify")
_UNSUPPORTED: Final = {
    **dict.fromkeys(("ws_compression", "ws_no_masking", "proxy", "username", "password", "timeout"),
                    f"{_LATER}: it is for WebSocket remotes"),
    "jetstream_cluster_migrate": f"{_LATER}: there is no Raft",
    "isolate_leafnode_interest": f"{_LATER} in a remote: set it for all of leafnodes",
}
_SCHEMES: Final = {"nats-leaf": False, "nats": False, "tls": True}


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
            if value.value is not False:
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
            parts[name] = _read_subjects(value, found)
        elif name in ("first_info_timeout", "dial_timeout"):
            parts[f"{name}_ns"] = found.convert(kinds.duration_ns(1), written, value) or 1
        elif name in ("account", "credentials"):
            parts[name] = found.convert(kinds.text, written, value) or ""
        else:
            parts[name] = bool(found.convert(kinds.boolean, written, value))
    if parts.get("nkey") and parts.get("credentials"):
        found.wrong(row, "a remote has nkey and credentials; keep one of them")
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
        elif name == "proxy_required":
            found.wrong(inner, f'"{written}" {_LATER} for the listener of leaf nodes')
        elif name == "users":
            rows = inner.value if isinstance(inner.value, list) else []
            if not rows:
                found.wrong(inner, f"Expected users field to be an array, got {go_value(inner)}")
            several += [user for row in rows if isinstance(user := _read_user(row, found), User)]
    single = _read_user(value, found) if {"user", "username", "nkey"} & set(map(str.lower, value.value)) else None
    if single is not None and several:
        found.wrong(value, "can not have a single user/pass and a users array")
    users = (*several, *([single] if isinstance(single, User) else []))
    return users, (single,) if isinstance(single, NkeyUser) else (), timeout_ns


def _read_user(row: Value, found: Findings) -> User | NkeyUser | None:
    """Read a user of the listener, who may have an account."""
    if not isinstance(row.value, dict):
        found.wrong(row, f"Expected user entry to be a map/struct, got {go_value(row)}")
        return None
    texts = {name: found.convert(kinds.text, written, inner, secret=name == "password") or ""
             for name, written, inner in found.fields(row, _AUTHORIZATION)
             if name in ("user", "password", "nkey", "account")}
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
            found.wrong(row, f"Expected remote leafnode url to be a string, got {go_type(row)}")
            continue
        try:
            urls[_read_url(row.value)] = None
        except ValueError as error:
            found.wrong(row, f"error parsing leafnode url: {error}")
    return tuple(urls)


def _read_url(text: str) -> LeafUrl:
    """Parse a URL. Raises: ValueError, whose text shows no password."""
    parts = urlsplit(text.strip())
    if parts.scheme in ("ws", "wss"):
        raise ValueError(f'"{parts.scheme}://" {_LATER}; use nats-leaf://')
    if parts.scheme not in _SCHEMES:
        raise ValueError(f'the scheme of a remote is nats-leaf, nats or tls, not "{parts.scheme}"')
    if not parts.hostname:
        raise ValueError("it has no host")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("it has more than a host and a port")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("its port is not between 0 and 65535") from None
    return LeafUrl(parts.hostname, port or LEAF_PORT, unquote(parts.username or ""), unquote(parts.password or ""),
                   _SCHEMES[parts.scheme])


def read_tls(value: Value, found: Findings) -> LeafTls | None:
    """Read the TLS of a connection to another server."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"TLS options should be a map, got {go_type(value)}")
        return None
    parts: dict[str, Any] = {}
    for name, written, inner in found.fields(value, _TLS):
        if name == "verify":
            continue  # nats-server accepts it here, too: the other server's certificate is always verified
        if name == "timeout":
            parts["timeout_ns"] = found.convert(kinds.duration_ns(1), written, inner) or 1
        elif name in ("insecure", "handshake_first"):
            parts[name] = bool(found.convert(kinds.boolean, written, inner))
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


def _read_subjects(value: Value, found: Findings) -> tuple[str, ...]:
    subjects = tuple(found.texts("deny_imports", value) or ())
    for subject in subjects:
        if not is_valid(subject.encode()):
            found.wrong(value, f'subject "{subject}" is not a valid subject')
    return subjects
