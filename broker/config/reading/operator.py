"""A file's operators and the tokens of their accounts: ``operator``, ``resolver``, ``resolver_preload``,
``trusted_keys``, ….

The modules for tokens are imported only if there is a token: every start with a file imports this module.

Source: nats-server, server/opts.go (processConfigFileLine), server/jwt.go (readOperatorJWT, validateTrustedOperators).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from broker import NATS_SERVER_VERSION
from broker.access.accounts import SYSTEM_ACCOUNT
from broker.base.nkeys import ACCOUNT, OPERATOR, is_public_key
from broker.config import kinds
from broker.config.operator import ResolverSettings
from broker.config.reading.findings import Findings, aliases, go_type
from broker.config.reading.refused import ALONE
from broker.config.settings import Settings
from broker.config.syntax import Value
from broker.jwt.token import TokenError, undecorated

if TYPE_CHECKING:
    from broker.jwt.claims import OperatorClaims

__all__ = ["operator_contradictions", "read_operators", "read_pinned", "read_preload", "read_resolver", "read_trusted"]

_RESOLVER = aliases("type", "dir", "allow_delete", "hard_delete", "limit", "ttl", "interval", "timeout")
_URL = re.compile(r'URL\(\s*"?([^\s"]*)"?\s*\)\s*', re.IGNORECASE)
_MEMORY = re.compile(r"(MEM|MEMORY)\s*", re.IGNORECASE)
_TOKEN_BEGINS = "eyJ"


def read_operators(value: Value, found: Findings, read: Callable[[str], str]) -> tuple[str, ...]:
    """Read the operators' tokens, each of which is the path of a file or the token itself."""
    from broker.jwt.claims import operator_claims

    rows = value.value if isinstance(value.value, list) else [value]
    tokens = []
    for row in rows:
        if not isinstance(row.value, str):
            found.wrong(row, f"error parsing operators: unsupported type {go_type(row)}")
            continue
        try:
            token = undecorated(_file_or_token(row.value, read))
            operator_claims(token)
        except TokenError as error:
            found.wrong(row, f"error parsing operator JWT: {error}")
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            found.wrong(row, f"error parsing operator JWT: open {row.value}: {why}")
        except ValueError:
            found.wrong(row, "error parsing operator JWT: expected 3 chunks")
        else:
            tokens.append(token)
    return tuple(tokens)


def _file_or_token(text: str, read: Callable[[str], str]) -> str:
    try:
        return read(text)
    except (OSError, ValueError):
        # ValueError: a token is no valid path. A path is tried first, as by nats-server.
        if text.startswith(_TOKEN_BEGINS):
            return text
        raise


def read_resolver(value: Value, found: Findings) -> ResolverSettings | None:
    given = value.value
    if isinstance(given, str):
        if _MEMORY.match(given):
            return ResolverSettings("memory")
        url = _URL.match(given)
        if url is not None:
            return _at_url(url[1], value, found)
    elif isinstance(given, dict):
        return _read_directory(value, found)
    else:
        found.wrong(value, f"error parsing operator resolver, wrong type {go_type(value)}")
        return None
    found.wrong(value, 'error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type '
                       "state=[FULL|CACHE])")
    return None


def _at_url(url: str, value: Value, found: Findings) -> ResolverSettings | None:
    from urllib.parse import urlsplit  # takes 10 ms to import, and is rarely needed

    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        found.wrong(value, f'error parsing account resolver url ["{url}"]: it must be http://host or https://host')
        return None
    return ResolverSettings("url", url=url)


def _read_directory(value: Value, found: Findings) -> ResolverSettings | None:
    before = len(found.errors)
    given: dict[str, Any] = {}
    for name, written, inner in found.fields(value, _RESOLVER):
        kind = (kinds.text if name in ("type", "dir") else kinds.boolean if name.endswith("delete") else
                kinds.size(0) if name == "limit" else kinds.duration_ns())
        given[name] = found.convert(kind, written, inner)
        if name == "interval":
            found.notice(inner, f"{written} has no effect here: {ALONE.partition(', ')[0]}")
    if len(found.errors) > before:
        return None
    word = given.get("type", "").upper()
    if word in ("MEM", "MEMORY"):
        return ResolverSettings("memory")
    wrong = list(_directory_problems(word, given))
    for why in wrong:
        found.wrong(value, why)
    if wrong:
        return None
    kind_name: Any = word.lower()
    return ResolverSettings(
        kind_name, given["dir"], allow_delete=given.get("allow_delete", False),
        hard_delete=given.get("hard_delete", False),
        limit=given.get("limit", 0) or (1000 if word == "CACHE" else 0), ttl_ns=given.get("ttl", 0),
        timeout_ns=given.get("timeout", ResolverSettings("full").timeout_ns))


def _directory_problems(word: str, given: dict[str, Any]) -> Iterator[str]:
    if word not in ("FULL", "CACHE"):
        yield ('error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type '
               "state=[FULL|CACHE])")
        return
    if not given.get("dir"):
        yield "dir has no value and needs to point to a directory"
    if word == "CACHE":
        for name, shown in (("interval", "sync"), ("allow_delete", "allow_delete")):
            if given.get(name):
                yield f"CACHE does not accept {shown}"
        if "hard_delete" in given:
            yield "CACHE does not accept hard_delete"
    else:
        if given.get("ttl"):
            yield "FULL does not accept ttl"
        if "hard_delete" in given and not given.get("allow_delete"):
            yield "hard_delete has no effect without delete"


def read_preload(value: Value, found: Findings) -> tuple[tuple[str, str], ...]:
    """Read account tokens, by account."""
    from broker.jwt.claims import account_claims

    if not isinstance(value.value, dict):
        found.wrong(value, "preload should be a map of account_public_key:account_jwt")
        return ()
    tokens = []
    for account, inner in value.value.items():
        if inner.used:  # a variable's value
            continue
        if not isinstance(inner.value, str):
            found.wrong(inner, "preload map value should be a string JWT")
            continue
        try:
            account_claims(inner.value)
        except TokenError:
            found.wrong(inner, "invalid account JWT")
        else:
            tokens.append((account, inner.value))
    return tuple(tokens)


def read_trusted(value: Value, found: Findings) -> tuple[str, ...]:
    keys = _texts(value, "trusted", found)
    for key in keys:
        if not is_public_key(key, OPERATOR):
            found.wrong(value, f'trust key "{key}" required to be a valid public operator nkey')
    return keys


def read_pinned(value: Value, found: Findings) -> tuple[str, ...]:
    return _texts(value, "resolver_pinned_accounts", found)


def _texts(value: Value, what: str, found: Findings) -> tuple[str, ...]:
    if isinstance(value.value, dict | bool | int | float):
        found.wrong(value, f"error parsing {what}: unsupported type {go_type(value)}")
        return ()
    return tuple(found.texts(what, value) or ())


def operator_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the paths of contradicting settings, and the reason in nats-server's words."""
    operator, auth = settings.operator, settings.auth
    here = ("operator.tokens",)
    if not operator.tokens:
        if operator.default_sentinel:
            yield ("operator.default_sentinel",), "default sentinel requires operators and accounts"
        return
    from broker.jwt.claims import operator_claims

    claims = [operator_claims(token) for token in operator.tokens]
    if operator.default_sentinel and (why := _sentinel_problem(operator.default_sentinel)):
        yield ("operator.default_sentinel",), why
    if auth.no_auth_user:
        yield ("auth.no_auth_user",), "no_auth_user not compatible with Trusted Operator"
    if operator.resolver is None:
        yield here, "operators require an account resolver to be configured"
    elif operator.resolver.kind == "url" and operator.preload:
        yield (("operator.preload",), "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR")
    if settings.accounts.configured:
        yield here, "operators do not allow Accounts to be configured directly"
    if auth.users or auth.nkeys:
        yield here, "operators do not allow users to be configured directly"
    if operator.trusted_keys:
        yield ("operator.trusted_keys", *here), "conflicting options for 'TrustedKeys' and 'TrustedOperators'"
    yield from ((here, why) for why in _system_problems(settings, claims))
    for one in claims:
        if one.assert_server_version and (why := _version_problem(one)):
            yield here, why
    for key in operator.pinned_accounts:
        if not is_public_key(key, ACCOUNT):
            yield ("operator.pinned_accounts",), f'pinned account key "{key}" is not a valid public account nkey'


def _sentinel_problem(token: str) -> str:
    from broker.jwt.claims import UserPermissions, user_claims

    try:
        claims = user_claims(token)
    except TokenError:
        return "default sentinel JWT not valid"
    scoped = bool(claims.issuer_account) and claims.limits == UserPermissions()
    return "" if claims.limits.bearer or scoped else "default sentinel must be a bearer token"


def _system_problems(settings: Settings, claims: list[OperatorClaims]) -> Iterator[str]:
    operator, wanted = settings.operator, settings.accounts.system
    named = {one.system_account for one in claims if one.system_account}
    if wanted != SYSTEM_ACCOUNT:
        if named and wanted not in named:
            yield "system_account in config and operator JWT must be identical"
    elif operator.resolver is not None and operator.resolver.kind in ("full", "cache"):
        yield ("using nats based account resolver - the system account needs to be specified in configuration or the "
               "operator jwt")


def _version_problem(claims: OperatorClaims) -> str:
    try:
        wanted = tuple(map(int, claims.assert_server_version.split(".")))
    except ValueError:
        wanted = ()
    if len(wanted) != 3:
        return (f"operator {claims.subject} expects version {claims.assert_server_version} got error instead: asserted "
                "server version must be of the form <major>.<minor>.<update>")
    own = tuple(map(int, NATS_SERVER_VERSION.split(".")))
    for one, other, name in zip(wanted, own, ("major", "minor", "update"), strict=True):
        if one != other:
            return (f"operator {claims.subject} expected {name} version {one} > server {name} version {other}"
                    if one > other else "")
    return ""
