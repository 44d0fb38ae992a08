"""GETs and PUTs of a bucket's objects, which are composed and signed here. botocore does it for all other requests.

botocore resolves the endpoint and derives the signing key anew for each request: half of the processor time of a small
one. Here both are done once:

    the first request ── botocore signs and sends it ──> Form: the bucket's address and the region of the signature
    later ones ── Form.sign: key, headers, time ── botocore's HTTP session ──> Answer, or botocore's ClientError

The session is botocore's, so connections, time-outs, proxies, certificates and the types of errors are the same. An
error response is parsed by botocore. Where more is needed than Signature Version 4 (directory buckets, access points of
several regions), or if the bucket turns out to be in another region, botocore sends the requests.

docs/adr/0020-composed-s3-requests.md has the alternatives.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from botocore import exceptions as boto
from botocore.parsers import create_parser

__all__ = ["Answer", "BucketObjects", "Form"]

_EMPTY_SHA256 = sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"
URL_SECONDS = 900

_OTHER_REGION = frozenset(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
                           "TemporaryRedirect", "301", "302", "307"))
"""Error codes after which botocore may find the bucket in another region, and repeat the request there."""

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


_KEY: ContextVar[str] = ContextVar("_KEY", default="")
"""The key of the request that botocore is composing for the present task."""


class Answer(NamedTuple):
    """A response without an error. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Form:
    """The address of a bucket, and the signature of requests to it.

    Args: ``address``: the URL to which a key is appended.
    """

    def __init__(self, address: str, region: str) -> None:
        parts = urlsplit(address)
        self._address = address
        self._path = parts.path
        self._host = parts.netloc.rpartition("@")[2].lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, ":"))
        self._region = region
        self._key: tuple[str, str, bytes] = "", "", b""
        """The secret key and the day from which the signing key was derived, and the signing key."""

    @classmethod
    def of_signed(cls, url: str, key: str, signature_version: str, signing_name: str, region: str) -> Form | None:
        """Derive the form from a request of botocore for ``key``; None if it needs more than this class can do."""
        quoted = _quote(key)
        if (signature_version, signing_name) != ("s3v4", "s3") or not url.endswith(f"/{quoted}"):
            return None
        return cls(url.removesuffix(quoted), region)

    def sign(self, method: str, key: str, headers: Mapping[str, str], payload: str, credentials: Any,
             unix_s: float) -> tuple[str, dict[str, str]]:
        """Return the URL and all headers of a request.

        Args: ``headers`` have names in lower case. ``payload`` is the SHA-256 of the body in hexadecimal, or
            UNSIGNED-PAYLOAD. ``credentials`` are botocore's ReadOnlyCredentials.
        Source: AWS, "Signature Version 4 signing process" and "Authenticating Requests (AWS Signature Version 4)".
        """
        secret, token = credentials.secret_key, credentials.token
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(unix_s))
        day, quoted = at[:8], _quote(key)
        signed = {"host": self._host, **headers, "x-amz-content-sha256": payload, "x-amz-date": at}
        if token:
            signed["x-amz-security-token"] = token
        names = sorted(signed)
        listed, lines = ";".join(names), "".join([f"{name}:{signed[name]}\n" for name in names])
        scope = f"{day}/{self._region}/s3/aws4_request"
        request = f"{method}\n{self._path}{quoted}\n\n{lines}\n{listed}\n{payload}"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._signing_key(secret, day), text).hex()
        signed["authorization"] = (f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
                                   f"SignedHeaders={listed}, Signature={signature}")
        return self._address + quoted, signed

    def presign(self, key: str, byte_range: str, credentials: Any, unix_s: float) -> str:
        """Return a URL that gets ``key`` with exactly this Range header.

        It is valid for ``URL_SECONDS``, or for as long as temporary credentials are.

        Source: AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)".
        """
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(unix_s))
        day, quoted = at[:8], _quote(key)
        scope = f"{day}/{self._region}/s3/aws4_request"
        query = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{credentials.access_key}/{scope}",
                 "X-Amz-Date": at, "X-Amz-Expires": str(URL_SECONDS), "X-Amz-SignedHeaders": "host;range"}
        if credentials.token:
            query["X-Amz-Security-Token"] = credentials.token
        listed = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(query.items()))
        lines = f"host:{self._host}\nrange:{byte_range}\n"
        request = f"GET\n{self._path}{quoted}\n{listed}\n{lines}\nhost;range\n{_UNSIGNED}"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._signing_key(credentials.secret_key, day), text).hex()
        return f"{self._address}{quoted}?{listed}&X-Amz-Signature={signature}"

    def _signing_key(self, secret: str, day: str) -> bytes:
        of_secret, of_day, key = self._key
        if of_secret != secret or of_day != day:
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = _hmac(key, part)
            self._key = secret, day, key
        return key


class _Request(NamedTuple):
    """A request as botocore's HTTP session takes it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    stream_output: bool = True
    """True: the session does not read the body."""


class BucketObjects:
    """The objects of one bucket.

    Args: ``client`` is botocore's client, ``session`` its HTTP session, ``credentials`` returns the keys for the next
        request. ``signs_payloads``: the body of a PUT is part of its signature, so botocore sends it.
    """

    def __init__(self, client: Any, session: Any, bucket: str, credentials: Callable[[], Awaitable[Any]], *,
                 signs_payloads: bool) -> None:
        self._client = client
        self._session = session
        self._bucket = bucket
        self._credentials = credentials
        self._signs_payloads = signs_payloads
        self._last_credentials: Any = None
        """The credentials of the last request that was composed here."""
        self._form: Form | None = None
        """None: botocore sends the requests; each of them may give a form."""
        for operation in ("GetObject", "PutObject"):
            client.meta.events.register(f"before-sign.s3.{operation}", self._learn)

    def url_of(self, key: str, byte_range: str) -> str | None:
        """Return a URL that gets this part of ``key``; None if no request was composed here yet."""
        if self._form is None or self._last_credentials is None:
            return None
        return self._form.presign(key, byte_range, self._last_credentials, time.time())

    async def get(self, key: str, byte_range: str) -> Answer:
        """Get a part of an object. Raises: botocore's exceptions, and aiohttp's while the body is read."""
        answer = await self._send("GET", key, {"range": byte_range}, None)
        if answer is None:
            _KEY.set(key)
            got = await self._client.get_object(Bucket=self._bucket, Key=key, Range=byte_range)
            async with got["Body"] as stream:
                answer = Answer(*_metadata(got), await stream.read())
        return answer

    async def put(self, key: str, body: bytes) -> Answer:
        """Put an object whose key must be new. Raises: as ``get``."""
        answer = None if self._signs_payloads else await self._send("PUT", key, {"if-none-match": "*"}, body)
        if answer is None:
            _KEY.set(key)
            put = await self._client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*")
            answer = Answer(*_metadata(put), b"")
        return answer

    async def _send(self, method: str, key: str, headers: Mapping[str, str], body: bytes | None) -> Answer | None:
        """Compose and send a request; None: botocore must send it. Raises: as ``get``."""
        if self._form is None:
            return None
        credentials = self._last_credentials = await self._credentials()
        url, signed = self._form.sign(method, key, headers, _EMPTY_SHA256 if body is None else _UNSIGNED,
                                      credentials, time.time())
        signed["user-agent"] = "jetblock"
        response = await self._session.send(_Request(method, url, signed, body))
        status, data = response.status_code, await response.raw.read()
        if status < 300:
            return Answer(status, response.headers, data)
        model = self._client.meta.service_model.operation_model("GetObject" if body is None else "PutObject")
        parsed = create_parser("rest-xml").parse(
            {"status_code": status, "headers": response.headers, "body": data}, model.output_shape)
        if parsed["Error"]["Code"] in _OTHER_REGION:
            self._form = None
            return None
        raise boto.ClientError(parsed, model.name)

    def _learn(self, request: Any, signature_version: str, signing_name: str, region_name: str, **_: object) -> None:
        """Derive the form from a request that botocore is about to sign."""
        region = request.context.get("signing", {}).get("region") or region_name
        self._form = Form.of_signed(request.url, _KEY.get(), signature_version, signing_name, region)


def _metadata(answer: Mapping[str, Any]) -> tuple[int, Mapping[str, str]]:
    metadata = answer["ResponseMetadata"]
    return metadata["HTTPStatusCode"], metadata["HTTPHeaders"]


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _quote(key: str) -> str:
    return quote(key, safe="/~")
