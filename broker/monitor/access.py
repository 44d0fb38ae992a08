"""The restrictions of the monitoring pages: addresses, and a login by HTTP's basic authentication.

nats-server shows its pages to everybody who can connect, and so do we unless one of the two is configured. Then:

    request for             from another address    without the login
    /healthz of a probe     answered                answered
    any other page          403                     401

A probe's /healthz has none of the parameters that name streams, and its answer has the status alone. Restricted pages
have no JSONP and no ``Access-Control-Allow-Origin``, by which a web page of somebody else could read them through the
browser of a user who may.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

__all__ = ["Access", "Refused"]

Network = IPv4Network | IPv6Network

_PROBE_OPTIONS: Final = frozenset({"live", "js-server-only", "js-enabled-only", "js-enabled"})
_AUTHORIZATION_CHARS_MAX: Final = 4096


class Refused(NamedTuple):
    """The answer to a request that is refused."""

    status: int
    text: str
    headers: dict[str, str]


_WRONG_ADDRESS: Final = Refused(403, "403 this address may not read the monitoring pages\n", {})
_LOGIN: Final = Refused(401, "401 the monitoring pages need a login\n",
                        {"WWW-Authenticate": 'Basic realm="jetblock monitoring", charset="UTF-8"'})


class Access:
    """The restrictions of the pages."""

    def __init__(self, networks: Sequence[Network] = (), login: Callable[[str, str], Awaitable[bool]] | None = None,
                 *, probes: bool = True) -> None:
        """Args: ``networks``: addresses that may read the pages, () for all; ``login`` checks a user and a password,
        None for no login; ``probes``: whether a probe's /healthz is answered all the same."""
        self._networks = networks
        self._login = login
        self._probes = probes

    @property
    def restricted(self) -> bool:
        return bool(self._networks) or self._login is not None

    def is_probe(self, path: str, query: Mapping[str, str]) -> bool:
        """Return whether a request is answered without permission, by the status alone."""
        return self._probes and path == "/healthz" and query.keys() <= _PROBE_OPTIONS

    async def refusal(self, address: str, authorization: str) -> Refused | None:
        """Return why a request is refused; None if it may be answered.

        Args: ``address`` of the peer, ``authorization``: that header of the request, or "".
        """
        if self._networks and not self._is_inside(address):
            return _WRONG_ADDRESS
        if self._login is None:
            return None
        given = _basic(authorization)
        return None if given is not None and await self._login(*given) else _LOGIN

    def _is_inside(self, text: str) -> bool:
        try:
            address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks if network.version == address.version)


def _basic(authorization: str) -> tuple[str, str] | None:
    """Return user and password of the header ``Authorization``; None if it is something else."""
    scheme, _, encoded = authorization[:_AUTHORIZATION_CHARS_MAX].partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
