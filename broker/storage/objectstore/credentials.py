"""Credentials: given keys, or those of the AWS chain, which is searched again when the store refuses the current ones.

botocore renews credentials that expire (roles, web identity, ``credential_process`` with an ``Expiration``) shortly
before they do. It reads keys in a file only once, and it does not expect credentials to end early. So a request that
was refused calls ``find_others``:

    a request is refused ──> find_others(): search the whole chain ──> other credentials: retry with those
                                                                   └──> the same, or none: report the refusal
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.exceptions import NoCredentialsError

from broker.base.clock import Clock

__all__ = ["Credentials", "S3Keys"]

_log = logging.getLogger(__name__)

_PAUSE_NS = 2_000_000_000
"""The pause between two searches of the chain, which may ask other processes and servers."""


class S3Keys(NamedTuple):
    """An access key, its secret and, if the key is temporary, its session token."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    async def find(self) -> Any:
        """Return these keys as credentials of botocore; they are the same each time."""
        return AioCredentials(*self, method="jetblock")


async def _search_aws_chain() -> Any:
    # Each search has a session of its own, because a session reads the configuration and credentials files only once.
    return await AioSession().get_credentials()


class Credentials(AioCredentials):
    """An object that botocore uses both as the provider of credentials and as the credentials that it provides.

    Args: find returns the credentials, or None if there are none; by default, it searches the AWS chain.
    """

    def __init__(self, where: str, clock: Clock, *, timeout_s: float,
                 find: Callable[[], Awaitable[Any]] | None = None) -> None:
        super().__init__("", "", method="jetblock")  # has no keys of its own
        self.version = 0
        """A number that grows by one each time that other credentials are found."""
        self._where = where
        self._clock = clock
        self._timeout_s = timeout_s
        self._find = find or _search_aws_chain
        self._found: Any = None
        self._searched_ns: int | None = None
        self._searching: asyncio.Task[None] | None = None
        self._logged_reason = ""
        """The reason of the last failed search, as it was logged."""

    async def load_credentials(self) -> Credentials:
        """Find the first credentials; botocore calls this when a client is made."""
        self._found = await self._find()
        return self

    async def get_frozen_credentials(self) -> Any:  # type: ignore[override]
        """Return the keys that sign the next request; botocore calls this for each one."""
        if self._found is None:
            raise NoCredentialsError
        return await self._found.get_frozen_credentials()

    async def find_others(self, version: int) -> bool:
        """Return True if there are other credentials than those of ``version``, which the store refused.

        Searches the chain, unless it was searched a short time ago. Concurrent callers share one search.
        """
        if self.version == version:
            if self._searching is None:
                now_ns = self._clock.monotonic_ns()
                if self._searched_ns is not None and now_ns - self._searched_ns < _PAUSE_NS:
                    return False
                self._searched_ns = now_ns
                self._searching = asyncio.create_task(self._search(), name="credentials")
            # A caller that is cancelled does not end the search, because others may wait for it.
            await asyncio.wait((self._searching,))
        return self.version != version

    async def close(self) -> None:
        """End a search in progress; its callers get False."""
        if self._searching is not None:
            self._searching.cancel()
            await asyncio.gather(self._searching, return_exceptions=True)

    async def _search(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._find()
                if found is None or await found.get_frozen_credentials() == await self._frozen():
                    return
        except Exception as error:  # e.g. a half-written file, a silent server: the next refusal starts another search
            why = f"{type(error).__name__}: {error}"
            if why != self._logged_reason:
                self._logged_reason = why
                _log.warning("%s: the credentials were refused, and no others could be found: %s", self._where, why)
            return
        finally:
            self._searching = None
        self._found = found
        self._logged_reason = ""
        self.version += 1
        _log.warning("%s: the credentials were refused; others were found, and are used from now on", self._where)

    async def _frozen(self) -> Any:
        """Return the keys that sign requests now; None if there are none, or if renewing them failed."""
        try:
            return await self.get_frozen_credentials()
        except Exception:
            return None
