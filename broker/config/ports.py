"""Constraints between the settings of ports: TLS, WebSocket, and their flags.

Source: nats-server, server/opts.go (overrideTLS, GenTLSConfig), server/websocket.go (validateWebsocketOptions).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.base.value import fields
from broker.config.flags import CommandLine
from broker.config.settings import ConfigError, Settings, TlsSettings

__all__ = ["Contradiction", "tls_contradictions", "values_with_flags", "websocket_contradictions"]

Contradiction = tuple[tuple[str, ...], str]
"""The paths of settings, and the reason why they contradict each other."""


def values_with_flags(values: dict[str, Any], line: CommandLine) -> dict[str, Any]:
    """Add the values of flags. TLS flags replace the file's whole block, or disable TLS. Raises: ConfigError."""
    flags = [path for path in line.values if path.startswith("tls.")]
    if line.tls is False:
        return _without_tls({**values, **line.values})
    if not flags and line.tls is None:
        return {**values, **line.values}
    for path, what, flag in (("tls.cert_file", "certificate", "tlscert"), ("tls.key_file", "private key", "tlskey")):
        if not line.values.get(path):
            raise ConfigError(f"TLS Server {what} must be present and valid; name it with --{flag}")
    return {**_without_tls(values), **line.values}


def _without_tls(values: dict[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in values.items() if not path.startswith("tls.")}


def tls_contradictions(tls: TlsSettings, section: str) -> Iterator[Contradiction]:
    if tls.cert_file and not tls.key_file:
        yield (f"{section}.cert_file",), "missing 'key_file' in TLS configuration"
    elif tls.key_file and not tls.cert_file:
        yield (f"{section}.key_file",), "missing 'cert_file' in TLS configuration"
    elif tls.cert_file and tls.certificates:
        yield ((f"{section}.cert_file", f"{section}.certificates"),
               "error parsing tls config, cannot combine 'cert_file' option with 'certs' option")
    elif tls != TlsSettings() and not tls.enabled:
        yield (tuple(f"{section}.{name}" for name in fields(tls)),
               "TLS needs a certificate: name it with cert_file, and its key with key_file")


def websocket_contradictions(settings: Settings) -> Iterator[Contradiction]:
    websocket, auth = settings.websocket, settings.auth
    if websocket.port is None:
        return
    yield from tls_contradictions(websocket.tls, "websocket.tls")
    if not websocket.tls.enabled and not websocket.no_tls:
        yield ("websocket.port",), "websocket requires TLS configuration, or no_tls: true"
    for name, value in (("username", websocket.username), ("token", websocket.token)):
        if value and (auth.users or auth.nkeys):
            yield (f"websocket.{name}",), f"websocket authentication {name} not compatible with presence of users/nkeys"
    if websocket.no_auth_user and websocket.no_auth_user not in auth.names:
        yield ("websocket.no_auth_user",), (f'no_auth_user: "{websocket.no_auth_user}" not present as user or nkey in '
                                            "authorization block or account configuration")
    if websocket.jwt_cookie and not settings.operator.enabled:
        yield ("websocket.jwt_cookie",), ("trusted operators or trusted keys configuration is required for JWT "
                                          f'authentication via cookie "{websocket.jwt_cookie}"')
