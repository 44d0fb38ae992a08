"""Credentials: given keys, or those of the AWS chain, which is asked again when the store refuses those in use.

botocore renews credentials that expire (roles, web identity, ``credential_process`` with an ``Expiration``), shortly before
they do. Keys in a file it reads once, and expiry that came early it does not expect. So whoever is refused asks here:

    refused with what found() gave ──> renewed(): the whole chain again ──> other credentials: try again with those
                                                                        └──> the same, or none: the refusal stands
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
"""Between two looks at the chain, which may ask other processes and servers."""


class S3Keys(NamedTuple):
    """An access key, its secret and, if the key is temporary, its session token."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    async def find(self) -> Any:
        """The same credentials each time, as ``Credentials`` asks for them."""
        return AioCredentials(*self, method="jetblock")


async def _of_the_chain() -> Any:
    # A session of its own: each reads the configuration and the files of credentials once.
    return await AioSession().get_credentials()


class Credentials(AioCredentials):
    """What botocore takes for a provider of credentials, and for the credentials that it provides.

    Args: find: returns the credentials, or None if there are none; by default, it asks the AWS chain.
    """

    def __init__(self, where: str, clock: Clock, *, timeout_s: float,
                 find: Callable[[], Awaitable[Any]] | None = None) -> None:
        super().__init__("", "", method="jetblock")  # has no keys of its own
        self.version = 0
        """Raised each time that others were found."""
        self._where = where
        self._clock = clock
        self._timeout_s = timeout_s
        self._find = find or _of_the_chain
        self._found: Any = None
        self._looked_ns: int | None = None
        self._looking: asyncio.Task[None] | None = None
        self._told = ""
        """Why the last look failed, as the log has it."""

    async def load_credentials(self) -> Credentials:
        """For botocore, when a client is made."""
        self._found = await self._find()
        return self

    async def get_frozen_credentials(self) -> Any:  # type: ignore[override]
        """For botocore: what the next request is signed with."""
        if self._found is None:
            raise NoCredentialsError
        return await self._found.get_frozen_credentials()

    async def renewed(self, version: int) -> bool:
        """Whether there are others than those of ``version``, with which a request was refused."""
        if self.version == version:
            if self._looking is None:
                now_ns = self._clock.monotonic_ns()
                if self._looked_ns is not None and now_ns - self._looked_ns < _PAUSE_NS:
                    return False
                self._looked_ns = now_ns
                self._looking = asyncio.create_task(self._look(), name="credentials")
            # Whoever asked may give up, without ending the look for the others and the next one.
            await asyncio.wait((self._looking,))
        return self.version != version

    async def close(self) -> None:
        """End a look that is going on; whoever waits for it has found nothing."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._find()
                if found is None or await found.get_frozen_credentials() == await self._frozen():
                    return
        except Exception as error:  # a file half written, a server that does not answer: the next refusal looks again
            why = f"{type(error).__name__}: {error}"
            if why != self._told:
                self._told = why
                _log.warning("%s: the credentials were refused, and no others could be found: %s", self._where, why)
            return
        finally:
            self._looking = None
        self._found = found
        self._told = ""
        self.version += 1
        _log.warning("%s: the credentials were refused; others were found, and are used from now on", self._where)

    async def _frozen(self) -> Any:
        """What requests are signed with now; None if there is nothing, or what there is cannot be renewed."""
        try:
            return await self.get_frozen_credentials()
        except Exception:
            return None
