"""A leaf node remote as a plain value: another server to which this one connects."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.value import Value
from broker.config.kinds import MASK

__all__ = ["LEAF_PORT", "LeafRemote", "LeafTls", "LeafUrl"]

LEAF_PORT: Final = 7422
"""The port of a URL without one."""


class LeafUrl(NamedTuple):
    """The address of another server."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    scheme: str = "nats-leaf"
    """The scheme as it was written: any, with TLS for ``tls`` only."""

    @property
    def tls(self) -> bool:
        return self.scheme == "tls"

    @property
    def address(self) -> str:
        """The host and port as log lines show them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL without secrets; a user name without a password is a token, and as secret."""
        user = f"{quote(self.user, safe='')}:{MASK}@" if self.password else f"{MASK}@" if self.user else ""
        return f"{self.scheme}://{user}{self.address}"


class LeafTls(Value):
    """TLS to the other server. The certificate is this server's own."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    min_version: str = "1.2"
    timeout_ns: int = 2_000_000_000
    handshake_first: bool = False


class LeafRemote(Value, hidden=["urls", "nkey"]):
    """A remote. ``urls`` may have passwords, and ``nkey`` is a seed."""

    urls: tuple[LeafUrl, ...] = ()
    account: str = DEFAULT_ACCOUNT
    """The account of this server that is connected."""

    credentials: str = ""
    """The path of a file with a user's token and seed; "": none."""

    nkey: str = ""
    tls: LeafTls | None = None
    deny_imports: tuple[str, ...] = ()
    deny_exports: tuple[str, ...] = ()
    no_randomize: bool = False
    ignore_discovered_servers: bool = False
    hub: bool = False
    """Flag: this server is the hub, and the other one its spoke."""

    isolate_leafnode_interest: bool = False
    """Flag: do not inform the other server about further leaf nodes' subscriptions."""

    request_isolation: bool = False
    disabled: bool = False
    first_info_timeout_ns: int = 1_000_000_000
    dial_timeout_ns: int | None = None
    """The time to connect; None: as for all remotes."""

    @property
    def shown(self) -> str:
        """The remote as nats-server's log names it, without secrets."""
        urls = " ".join(f'"{url.shown}"' for url in self.urls)
        login = f', credentials="{self.credentials}"' if self.credentials else f', nkey="{MASK}"' if self.nkey else ""
        return f'urls=[{urls}], account="{self.account}"{login}'
