"""Fetches messages that were delivered by reference: see docs/REFERENCES.md.

    message = await js.…               a pull with the header Jetblock-Deliver: reference
    headers, payload = await fetched(message.headers, message.data)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from urllib.request import Request, urlopen
from zlib import crc32

__all__ = ["DELIVER", "REFERENCE", "BadReference", "fetched"]

DELIVER: Final = "Jetblock-Deliver"
"""The header of a pull request, with the value ``reference``."""
REFERENCE: Final = "reference"
_SECONDS: Final = 30.0


class BadReference(Exception):
    """A referenced message cannot be read; pull it again without the header."""


async def fetched(headers: Mapping[str, str] | None, payload: bytes, get: Callable[[str, str], bytes] | None = None
                  ) -> tuple[bytes, bytes]:
    """Return the header block and the payload of a delivered message, fetched from the store if it is a reference.

    Args: ``headers`` and ``payload`` as delivered; ``get(url, range)`` makes the request, in a thread.
    Returns: the header block as it was published, b"" without headers or if the message was delivered whole; the
        payload.
    Raises: BadReference, also if the URL has expired or the object was deleted.
    """
    if headers is None or "Jetblock-Url" not in headers:
        return b"", payload
    try:
        data = await asyncio.to_thread(get or _get, headers["Jetblock-Url"], headers["Jetblock-Range"])
    except OSError as error:
        raise BadReference(f"the object cannot be read: {error}") from None
    if crc32(data) != int(headers["Jetblock-Crc32"], 16):
        raise BadReference("the checksum does not match")
    if headers["Jetblock-Codec"] == "zstd":
        import zstandard

        data = zstandard.ZstdDecompressor().decompress(data)
    elif headers["Jetblock-Codec"] != "none":
        raise BadReference(f"codec {headers['Jetblock-Codec']} is not known")
    start, hlen = int(headers["Jetblock-Offset"]), int(headers["Jetblock-Header-Length"])
    end = start + int(headers["Jetblock-Length"])
    return data[start:start + hlen], data[start + hlen:end]


def _get(url: str, byte_range: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise BadReference("the URL is not one of HTTP")
    with urlopen(Request(url, headers={"Range": byte_range}), timeout=_SECONDS) as answer:
        return bytes(answer.read())
