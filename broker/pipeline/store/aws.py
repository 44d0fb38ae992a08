"""S3's endpoint, region and credentials from the environment, as the AWS tools read them.

    credentials, in order of precedence
        AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
        AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN           (a Kubernetes service account)
        the profile (AWS_PROFILE or "default") of the shared files: keys, or ``credential_process``
        the container's (ECS, EKS pod identity), then the instance's role

obstore handles all but the shared files. The shared files are read here, every quarter of an hour, since tools that
fetch short-lived keys store them there. A profile that assumes a role or signs in by SSO is refused; the error gives
the ``credential_process`` line to use instead.

Executors read their own environment: settings that only the driver has are not passed on.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from broker.pipeline.errors import Unreachable

__all__ = ["KEYS", "S3Environment"]

KEYS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile"
_READ_AGAIN = timedelta(minutes=15)
_PROCESS_TIMEOUT_S = 60
_ELSEWHERE = ("role_arn", "sso_session", "sso_start_url", "web_identity_token_file", "login_session")
"""Settings of profiles without keys, none of them supported here."""


class S3Environment(NamedTuple):
    """Settings for obstore. endpoint: "" for AWS itself. shown: the endpoint without secrets, for errors. credentials:
    None if obstore finds them itself. ca: PEM certificates, or None."""

    endpoint: str
    shown: str
    region: str
    credentials: Callable[[], dict[str, Any]] | None
    ca: bytes | None

    @classmethod
    def read(cls, url: str, environ: Mapping[str, str] = os.environ) -> S3Environment:
        """Read the environment and the shared files. Raises: Unreachable, naming ``url``, the fault and the remedy."""
        profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or ""
        found = _profile(profile or "default", environ)
        if profile and not found:
            raise Unreachable(f"{url}: AWS_PROFILE={profile}: no such profile in "
                              f"{' or '.join(map(str, _files(environ)))}; correct it here and on the executors")
        endpoint = (environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or found.get("endpoint_url")
                    or "")
        shown = ""
        if endpoint:
            try:
                parts = urlsplit(endpoint)
                shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
                sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                sound = False
            if not sound:
                raise Unreachable(f"{url}: the endpoint {shown!r} is no URL: write AWS_ENDPOINT_URL=http://HOST:PORT")
        region = (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or found.get("region") or "us-east-1")
        ca = None
        if bundle := environ.get("AWS_CA_BUNDLE") or found.get("ca_bundle"):
            try:
                ca = Path(bundle).read_bytes()
            except OSError as e:
                raise Unreachable(f"{url}: AWS_CA_BUNDLE={bundle}: {e.strerror}; "
                                  f"name a file of PEM certificates") from e
        return cls(endpoint, shown, region, _credentials(url, profile or "default", found, environ), ca)


def _credentials(url: str, profile: str, found: Mapping[str, str], environ: Mapping[str, str]
                 ) -> Callable[[], dict[str, Any]] | None:
    """Return a function that reads credentials from the shared files; None if they have none, or others take
    precedence."""
    if environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    if "aws_access_key_id" in found:
        return lambda: _keys(url, profile, environ)
    if "credential_process" in found:
        return lambda: _process(url, profile, found["credential_process"])
    if other := [name for name in _ELSEWHERE if name in found]:
        raise Unreachable(f"{url}: the profile {profile!r} has {other[0]}, which is not followed here: give it the "
                          f"line credential_process = aws configure export-credentials --profile "
                          f"{shlex.quote(profile)}, in a profile of another name, or export the keys")
    return None


def _keys(url: str, profile: str, environ: Mapping[str, str]) -> dict[str, Any]:
    found = _profile(profile, environ)
    try:
        return {"access_key_id": found["aws_access_key_id"], "secret_access_key": found["aws_secret_access_key"],
                "token": found.get("aws_session_token") or None, "expires_at": datetime.now(UTC) + _READ_AGAIN}
    except KeyError as e:
        raise Unreachable(f"{url}: the profile {profile!r} has no {e.args[0]}: {KEYS}") from None


def _process(url: str, profile: str, command: str) -> dict[str, Any]:
    try:
        done = subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=_PROCESS_TIMEOUT_S, check=True)
        answer = json.loads(done.stdout)
        until = answer.get("Expiration")
        return {"access_key_id": answer["AccessKeyId"], "secret_access_key": answer["SecretAccessKey"],
                "token": answer.get("SessionToken"),
                "expires_at": datetime.fromisoformat(until) if until else datetime.now(UTC) + _READ_AGAIN}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError, TypeError) as e:
        # The text shows neither the command nor its output: both may contain secrets.
        raise Unreachable(f"{url}: credential_process of the profile {profile!r} failed ({type(e).__name__}): run it "
                          f"by hand; it must print AccessKeyId and SecretAccessKey as JSON") from None


def _files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    home = Path(environ.get("HOME") or Path.home()) / ".aws"
    return (Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser(),
            Path(environ.get("AWS_CONFIG_FILE") or home / "config").expanduser())


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Read a profile's settings from both files; ``credentials`` takes precedence over ``config``."""
    found: dict[str, str] = {}
    credentials, config = _files(environ)
    for path, section in ((config, name if name == "default" else f"profile {name}"), (credentials, name)):
        parser = configparser.RawConfigParser(strict=False, default_section="\0", delimiters=("=",))
        try:
            parser.read_string(path.read_text("utf-8"))
        except (OSError, ValueError, configparser.Error):
            continue  # missing or malformed: without credentials, obstore will report an error
        if parser.has_section(section):
            found |= {key: value.strip() for key, value in parser.items(section)}
    return found
