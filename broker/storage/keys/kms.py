"""A master key of AWS KMS: the service wraps and unwraps, and the key never leaves it.

Credentials, region and endpoint come from the usual AWS settings (``AWS_ENDPOINT_URL_KMS`` for another endpoint). A
process makes one call to wrap at its start, and one to unwrap for each process that wrote keys before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from broker.storage.format.errors import KeyMissing
from broker.storage.objectstore.base import StoreRefused, Transient

__all__ = ["KmsKey"]

_CONTEXT: Final = {"jetblock": "keys"}
"""The encryption context, which appears in the service's audit log."""
_ATTEMPTS: Final = 6
_TIMEOUT_S: Final = 10
_NOT_OURS: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_REFUSED: Final = {
    "AccessDeniedException": "allow kms:Encrypt and kms:Decrypt on this key",
    "NotFoundException": "correct the key's id, or AWS_REGION",
    "DisabledException": "enable the key",
    "KMSInvalidStateException": "the key is not usable: cancel its deletion, or import its material",
    "InvalidKeyUsageException": "use a symmetric key for encryption",
    "UnrecognizedClientException": "renew the credentials",
    "InvalidSignatureException": "renew the credentials",
    "ExpiredTokenException": "renew the credentials",
}


class KmsKey:
    """A key of AWS KMS, by its id, ARN or alias."""

    local = False

    def __init__(self, key: str) -> None:
        self._key = key
        self.name = f"aws-kms:{key}"

    def wrap(self, secret: bytes) -> bytes:
        answer = self._call(lambda client: client.encrypt(KeyId=self._key, Plaintext=secret,
                                                          EncryptionContext=_CONTEXT))
        wrapped: bytes = answer["CiphertextBlob"]
        return wrapped

    def unwrap(self, wrapped: bytes) -> bytes:
        answer = self._call(lambda client: client.decrypt(KeyId=self._key, CiphertextBlob=wrapped,
                                                          EncryptionContext=_CONTEXT))
        secret: bytes = answer["Plaintext"]
        return secret

    def _call(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make one call, on a loop of its own: the caller's thread may run one. Raises: as ``MasterKey``."""
        with ThreadPoolExecutor(1, thread_name_prefix="kms") as thread:
            return thread.submit(lambda: asyncio.run(self._ask(ask))).result()

    async def _ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError, ClientError

        config = AioConfig(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S,
                           retries={"max_attempts": _ATTEMPTS, "mode": "standard"})
        try:
            async with get_session().create_client("kms", config=config) as client:
                return await ask(client)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _NOT_OURS:
                raise KeyMissing(b"", f"the master key {self.name} does not open it: KMS answers {code}") from None
            if code not in _REFUSED and error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (401, 403):
                raise StoreRefused(f"{self.name}: KMS answers {code}: renew the credentials, or "
                                   f"{_REFUSED['AccessDeniedException']}") from None
            if code in _REFUSED:
                raise StoreRefused(f"{self.name}: KMS answers {code}: {_REFUSED[code]}") from None
            raise Transient(f"{self.name}: KMS answers {code or error}") from None
        except BotoCoreError as error:
            if type(error).__name__ in ("NoRegionError", "NoCredentialsError", "PartialCredentialsError"):
                raise StoreRefused(f"{self.name}: {error}") from None
            raise Transient(f"{self.name}: {error}") from None
