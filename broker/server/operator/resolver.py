"""Sources of accounts' tokens: the configuration, a directory, or an account server.

    memory   tokens that the configuration preloads
    full     a directory with all tokens, which requests in the system account change
    cache    a directory with some tokens; nats-server fetches others from other servers, which do not exist here
    url      GET <url><account>

A directory of tokens needs a backup as much as the configuration file: the broker's store does not contain it. Each
file is replaced as a whole, and synced before a request is answered.

Source: nats-server, server/accounts.go (MemAccResolver, DirAccResolver, CacheDirAccResolver, URLAccResolver),
server/dirstore.go.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import os
import ssl
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from broker.base.client_tls import client_context
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.config.operator import ResolverSettings, shown_url
from broker.config.settings import OperatorSettings, ResolverTlsSettings
from broker.jwt.claims import account_claims
from broker.jwt.token import TOKEN_CHARS_MAX, TokenError, decode_token

if TYPE_CHECKING:
    from aiohttp import TCPConnector

__all__ = ["DirectoryResolver", "MemoryResolver", "Resolver", "ResolverError", "UrlResolver", "make_resolver"]

_SUFFIX: Final = ".jwt"


class ResolverError(Exception):
    """The reason why a token was not found, or not stored."""


class Resolver(Protocol):
    @property
    def local(self) -> bool:
        """Flag: the tokens are on this machine, so a fetch is fast."""

    @property
    def complete(self) -> bool:
        """Flag: the resolver has all tokens, so an account without a token was removed on purpose."""

    async def check(self) -> None:
        """Check that the resolver answers requests. Raises: ResolverError."""

    async def fetch(self, account: str) -> str:
        """Return the token of an account. Raises: ResolverError."""

    def preload(self, tokens: Mapping[str, str]) -> None:
        """Store the tokens of the configuration. Raises: ResolverError if this resolver cannot store any."""


def make_resolver(settings: OperatorSettings) -> Resolver:
    """Return the configured resolver, with the tokens to preload. Raises: ResolverError."""
    kind = settings.resolver
    resolver: Resolver
    if kind is None or kind.kind == "memory":
        resolver = MemoryResolver()
    elif kind.kind == "url":
        resolver = UrlResolver(kind.url, kind.timeout_ns, _context(settings.resolver_tls))
    else:
        resolver = DirectoryResolver(kind)
    if settings.preload:
        resolver.preload(dict(settings.preload))
    return resolver


class MemoryResolver:
    local = True
    complete = True

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    async def check(self) -> None:
        pass

    async def fetch(self, account: str) -> str:
        try:
            return self._tokens[account]
        except KeyError:
            raise ResolverError("account missing") from None

    def preload(self, tokens: Mapping[str, str]) -> None:
        self._tokens = dict(tokens)


class DirectoryResolver:
    """A directory with a file ``<account>.jwt`` for each account. Reading a file older than ``ttl`` deletes it."""

    local = True
    complete = False

    def __init__(self, settings: ResolverSettings) -> None:
        """Make the directory if it does not exist. Raises: ResolverError if it cannot be used."""
        self.settings = settings
        self.path = Path(os.path.abspath(settings.directory))
        self._turn = asyncio.Lock()
        try:
            self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
            os.scandir(self.path).close()
        except OSError as error:
            raise ResolverError(f"the directory of the resolver cannot be used: {error}") from None

    @property
    def caches(self) -> bool:
        return self.settings.kind == "cache"

    async def check(self) -> None:
        pass

    async def fetch(self, account: str) -> str:
        token = self.read(account)
        if not token:
            raise ResolverError("account jwt not found")
        return token

    def preload(self, tokens: Mapping[str, str]) -> None:
        for account, token in tokens.items():
            with suppress(ResolverError):
                self._save(account, token, only_newer=True)

    def read(self, account: str) -> str:
        """Return the token; "" if there is none. The file is always read: an operator may copy files into the
        directory."""
        if not is_public_key(account, ACCOUNT):
            raise ResolverError("will only fetch valid account keys")
        path = self._file(account)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > TOKEN_CHARS_MAX:
                return ""  # Opening a pipe would block, and no token is longer than this.
            if self.settings.ttl_ns and time.time_ns() - status.st_mtime_ns > self.settings.ttl_ns:
                path.unlink()
                return ""
            text = path.read_text("ascii")
            if self.caches:
                os.utime(path)  # marks the file as used: the least recently used file is removed first
        except (OSError, UnicodeError):
            return ""
        return text.strip()

    async def write(self, account: str, token: str) -> None:
        """Store ``token``; it is on the disk when this returns. Raises: ResolverError."""
        async with self._turn:
            await asyncio.to_thread(self._save, account, token)

    async def delete(self, account: str) -> None:
        """Delete an account's token. Raises: ResolverError."""
        async with self._turn:
            await asyncio.to_thread(self._remove, account)

    def accounts(self) -> list[str]:
        """Return the accounts with a file, in order."""
        return sorted(self._accounts())

    def packed(self, now: int) -> Iterator[bytes]:
        """Yield ``account|token`` of every account whose token is not expired; ``now`` in seconds, Unix UTC."""
        for account in self.accounts():
            token = self.read(account)
            if not token:
                continue
            try:
                expires = decode_token(token).fields.integer("exp")
            except TokenError:
                expires = 0
            if not 0 < expires < now:
                yield f"{account}|{token}".encode()

    def digest(self) -> bytes:
        """Return a digest of the set of tokens: the exclusive-or of their SHA-256 sums."""
        sums = (int.from_bytes(hashlib.sha256(self.read(account).encode()).digest()) for account in self.accounts())
        total = 0
        for one in sums:
            total ^= one
        return total.to_bytes(32)

    def _accounts(self) -> Iterable[str]:
        names = (entry.name.removesuffix(_SUFFIX) for entry in os.scandir(self.path)
                 if entry.name.endswith(_SUFFIX) and not entry.is_dir())
        return (name for name in names if is_public_key(name, ACCOUNT))

    def _file(self, account: str) -> Path:
        return self.path / f"{account}{_SUFFIX}"

    def _save(self, account: str, token: str, *, only_newer: bool = False) -> None:
        before = self.read(account)
        if before == token:
            return
        if only_newer and before and not _is_newer(token, before):
            return
        try:
            if not before and 0 < self.settings.limit <= len(accounts := self.accounts()):
                if not self.caches:
                    raise ResolverError("jwt store is full")
                self._file(min(accounts, key=lambda name: self._file(name).lstat().st_mtime)).unlink(missing_ok=True)
            self._replace(self._file(account), token)
        except OSError as error:
            raise ResolverError(f"the token could not be written: {error.strerror or error}") from None

    def _replace(self, path: Path, text: str) -> None:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.path)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o640)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        self._sync()

    def _remove(self, account: str) -> None:
        if not self.settings.allow_delete and not self.caches:
            raise ResolverError("store is not set up to for delete")
        path = self._file(account)
        try:
            if self.settings.hard_delete or self.caches:
                path.unlink()
            else:
                path.replace(path.with_name(path.name + ".deleted"))
            self._sync()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ResolverError(f"{(error.strerror or str(error)).lower()}") from None

    def _sync(self) -> None:
        """Sync the directory, so that the files' names are on the disk."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class UrlResolver:
    """An account server. A request ends within the configured time, even if the server answers slowly."""

    local = False
    complete = False

    def __init__(self, url: str, timeout_ns: int, context: ssl.SSLContext | None = None) -> None:
        """Args: ``context`` verifies HTTPS; None: the system's certificates do."""
        self._url = url if url.endswith("/") else f"{url}/"
        self._context = context
        self._seconds = timeout_ns / 1e9
        self._connector: TCPConnector | None = None

    async def check(self) -> None:
        await self._get(self._url)

    async def fetch(self, account: str) -> str:
        if not is_public_key(account, ACCOUNT):
            raise ResolverError("will only fetch valid account keys")
        return await self._get(self._url + account)

    def preload(self, tokens: Mapping[str, str]) -> None:
        raise ResolverError("resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR")

    async def _get(self, url: str) -> str:
        # This import is late, because few brokers have such a resolver.
        from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

        shown, parts = shown_url(url), urlsplit(url)
        # Errors must not show the user and the password, which precede the host.
        user, _, host = parts.netloc.rpartition("@")
        own = {"Authorization": f"Basic {base64.b64encode(unquote(user).encode()).decode()}"} if user else {}
        if self._connector is None:
            # All requests share the connector, which caches the server's address and keeps no connections.
            self._connector = TCPConnector(limit=0, force_close=True, ssl=self._context or True)
        try:
            async with (ClientSession(connector=self._connector, connector_owner=False, trust_env=True,
                                      timeout=ClientTimeout(total=self._seconds)) as session,
                        session.get(urlunsplit(parts._replace(netloc=host)), headers=own) as answer):
                if answer.status != HTTPStatus.OK:
                    raise ResolverError(f'could not fetch <"{shown}">: {answer.status} {answer.reason}')
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > TOKEN_CHARS_MAX:
                        raise ResolverError(f'could not fetch <"{shown}">: the answer exceeds {TOKEN_CHARS_MAX} bytes')
        except TimeoutError:
            raise ResolverError(f'could not fetch <"{shown}">: no complete answer within {self._seconds:g} s') from None
        except (ClientError, OSError, ValueError) as error:
            refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
            why = "connection refused" if refused else error
            raise ResolverError(f'could not fetch <"{shown}">: {why}') from None
        return body.decode("ascii", "replace").strip()


def _context(settings: ResolverTlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the setting ``resolver_tls``; None if it is not set. Raises: ResolverError."""
    if settings == ResolverTlsSettings():
        return None
    try:
        context = client_context(ca_file=settings.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
        if settings.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if settings.cert_file or settings.key_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (settings.ca_file, settings.cert_file, settings.key_file)))
        raise ResolverError(f"resolver_tls: unusable files {files}: {error}") from None
    return context


def _is_newer(token: str, than: str) -> bool:
    try:
        claims, before = account_claims(token), account_claims(than)
    except TokenError:
        return True
    return claims.issued_at > before.issued_at
