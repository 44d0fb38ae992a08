"""Tokens from strangers cause no error but ``TokenError``, and wrong claims are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.base.nkeys import ACCOUNT, OPERATOR, encode_base64url
from broker.jwt import validation
from broker.jwt.access import account_settings, may_come_from, permissions_of, seconds_left
from broker.jwt.claims import (
    AccountClaims,
    UserClaims,
    account_claims,
    activation_claims,
    operator_claims,
    response_claims,
    user_claims,
)
from broker.jwt.fields import Fields
from broker.jwt.scope import TemplateError, filled_in
from broker.jwt.token import TOKEN_CHARS_MAX, TokenError, decode_token, encode_token, undecorated
from broker.jwt.validation import (
    account_issues,
    activation_issues,
    contained,
    operator_issues,
    overlapping,
    response_issues,
    user_issues,
)
from broker.server.auth.login import Refusal
from tests import tokens
from tests.keys import key

DECODERS: dict[str, tuple[Callable[[str], Any], Callable[[Any, int], Any], str]] = {
    "operator": (operator_claims, operator_issues, OPERATOR), "account": (account_claims, account_issues, ACCOUNT),
    "user": (user_claims, user_issues, ACCOUNT), "activation": (activation_claims, activation_issues, ACCOUNT),
    "authorization_response": (response_claims, response_issues, ACCOUNT)}

NAMES = [
    "type", "version", "tags", "sub", "iss", "exp", "nbf", "iat", "nats", "aud", "name", "pub", "sub", "allow", "deny",
    "resp", "max", "ttl", "src", "times", "start", "end", "times_location", "subs", "data", "payload", "bearer_token",
    "allowed_connection_types", "issuer_account", "signing_keys", "kind", "key", "template", "limits", "imports",
    "exports", "subject", "account", "token", "to", "local_subject", "share", "revocations", "service_latency",
    "sampling", "results", "mappings", "weight", "tiered_limits", "R1", "mem_storage", "authorization", "auth_users",
    "trace", "dest", "default_permissions", "system_account", "jwt", "error", "operator_service_urls",
    "account_server_url", "assert_server_version", "info_url", "account_token_position"]
words = st.sampled_from(["", "a.b", "a..b", ">", "*", "a.*", "{{name()}}", "stream", "service", "user_scope",
                         "10.0.0.0/8", "x/99",
                         "12:00:00", "25:00:00", "Asia/Tokyo", "../etc/passwd", "http://[", "\ud800", "é", "$1",
                         "Singleton"])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)),
    max_leaves=25)
OLD = b'{"typ":"jwt","alg":"ed25519"}'
bodies = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)

texts = st.lists(words, max_size=3)
numbers = st.one_of(st.integers(-2, 3), st.integers(-1 << 63, (1 << 63) - 1))
sides = st.fixed_dictionaries({}, optional={"allow": texts, "deny": texts})
permissions = {"pub": sides, "sub": sides, "resp": st.fixed_dictionaries({}, optional={"max": numbers, "ttl": numbers})}
windows = st.lists(st.fixed_dictionaries({"start": words, "end": words}), max_size=2)
users = {**permissions, "src": st.one_of(texts, words), "times": windows, "times_location": words, "subs": numbers,
         "payload": numbers, "bearer_token": st.booleans(), "allowed_connection_types": texts}
jetstream = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer", "max_ack_pending"), numbers)
limits = {**jetstream, **dict.fromkeys(("subs", "payload", "imports", "exports", "conn"), numbers),
          "wildcards": st.booleans(),
          "tiered_limits": st.dictionaries(st.sampled_from(["", "R1", "R3"]),
                                           st.fixed_dictionaries({}, optional=jetstream))}
revocations = st.dictionaries(words, numbers, max_size=2)
exports = st.fixed_dictionaries({}, optional={
    "subject": words, "type": words, "token_req": st.booleans(), "revocations": revocations, "response_type": words,
    "response_threshold": numbers, "account_token_position": numbers, "allow_trace": st.booleans(), "info_url": words,
    "service_latency": st.fixed_dictionaries({},
                                             optional={"sampling": st.one_of(numbers, st.just("headers")),
                                                       "results": words})})
imports = st.fixed_dictionaries({}, optional={
    "subject": words, "account": words, "type": words, "token": words, "to": words, "local_subject": words,
    "share": st.booleans(),
    "allow_trace": st.booleans()})
SHAPES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "operator": {"signing_keys": texts, "account_server_url": words, "operator_service_urls": texts,
                 "system_account": words,
                 "assert_server_version": st.one_of(words, st.just("2.1.3"))},
    "user": {**users, "issuer_account": words},
    "account": {
        "limits": st.fixed_dictionaries({}, optional=limits), "imports": st.lists(imports, max_size=3),
        "exports": st.lists(exports, max_size=3), "revocations": revocations, "description": words, "info_url": words,
        "signing_keys": st.lists(st.one_of(words, st.fixed_dictionaries({"kind": words}, optional={
            "key": words, "template": st.fixed_dictionaries({}, optional=users)})), max_size=2),
        "default_permissions": st.fixed_dictionaries({}, optional=permissions),
        "mappings": st.dictionaries(words, st.lists(st.fixed_dictionaries(
            {"subject": words}, optional={"weight": numbers, "cluster": words}), max_size=3), max_size=2),
        "authorization": st.fixed_dictionaries({},
                                               optional={"auth_users": texts, "allowed_accounts": texts,
                                                         "xkey": words}),
        "trace": st.fixed_dictionaries({}, optional={"dest": words, "sampling": numbers}), "cluster_traffic": words},
    "activation": {"subject": words, "kind": words, "type": words, "issuer_account": words},
    "authorization_response": {"jwt": words, "error": words, "issuer_account": words}}
"""The fields of each kind of token, with values mostly of their types."""


@st.composite
def claims_of(draw: st.DrawFn) -> tuple[str, int, dict[str, Any]]:
    """Draw a kind, a version, and claims that mostly fit them."""
    kind = draw(st.sampled_from(sorted(SHAPES)))
    version = draw(st.sampled_from([1, 2, 2, 2]))
    nats = draw(st.fixed_dictionaries({}, optional=SHAPES[kind]))
    if draw(st.integers(0, 4)) == 0:
        nats |= draw(bodies)
    times = draw(st.fixed_dictionaries({}, optional={"exp": numbers, "nbf": numbers, "iat": numbers, "name": words,
                                                     "tags": texts}))
    if version == 2:
        nats |= {"type": kind, "version": 2}
    own = {"type": kind} if version == 1 else {}
    return kind, version, {"sub": key(ACCOUNT).public, **times, **own, "iss": key(DECODERS[kind][2]).public,
                           "nats": nats}


def signed(payload: bytes, kind: str, header: bytes = b'{"typ":"JWT","alg":"ed25519-nkey"}') -> str:
    """Return a token of any claims with a valid signature."""
    text = f"{encode_base64url(header)}.{encode_base64url(payload)}"
    return f"{text}.{encode_base64url(key(kind).sign(text.encode()))}"


@given(st.one_of(st.text(max_size=50), st.text("eyJ.abc-_=\n", max_size=50)))
def test_any_text(text: str) -> None:
    """No text without a valid signature is a token."""
    with pytest.raises(TokenError):
        decode_token(text)
    with pytest.raises(TokenError):
        decode_token(text, generic=True)
    undecorated(text)


@given(st.binary(max_size=60), st.sampled_from(sorted(DECODERS)))
@example(b"[" * 5000, "user")
@example(b'{"exp":' + b"9" * 5000 + b"}", "user")
@example(b'{"a":NaN}', "user")
@example(b'{"name":"\\ud800"}', "user")
def test_any_payload(payload: bytes, kind: str) -> None:
    """A payload that is no JSON object of the kind is refused."""
    decode, _, signer = DECODERS[kind]
    with pytest.raises(TokenError):
        decode(signed(payload, signer))


@settings(max_examples=300, deadline=None)
@given(claims_of())
def test_any_claims(drawn: tuple[str, int, dict[str, Any]]) -> None:
    """Decoded claims can be validated, and claims without issues can be used."""
    kind, version, claims = drawn
    decode, issues_of, signer = DECODERS[kind]
    try:
        payload = json.dumps(claims).encode()
        if version == 1:
            text = f"{encode_base64url(OLD)}.{encode_base64url(payload)}"
            found = decode(f"{text}.{encode_base64url(key(signer).sign(text.split('.')[1].encode()))}")
        else:
            found = decode(signed(payload, signer))
    except TokenError:
        return
    issues = issues_of(found, 1_000_000_000)
    assert all(issue.why for issue in issues)
    if isinstance(found, AccountClaims) and not issues:
        try:
            account_settings(found)
        except ValueError:
            pass  # subjects of permissions are checked more closely where they are used
    if isinstance(found, UserClaims) and not issues:
        may_come_from(found.limits, "127.0.0.1")
        assert (seconds_left(found.limits, 10**18) or 0.0) >= 0
        try:
            permissions_of(filled_in(found.limits, found, AccountClaims("A")).permissions)
        except (TemplateError, ValueError):
            pass


@given(bodies)
def test_any_fields(values: dict[str, Any]) -> None:
    """Each reader of a field returns a value of its type or raises TokenError."""
    fields = Fields(values)
    for name in values:
        for read, kind in ((fields.text, str), (fields.integer, int), (fields.boolean, bool), (fields.texts, tuple),
                           (fields.inner, Fields), (fields.numbers, dict)):
            try:
                assert isinstance(read(name), kind)
            except TokenError:
                pass


def test_a_number_is_no_text() -> None:
    """A number with a fraction is neither the text of networks nor a signing key."""
    def decoded(kind: str, **fields: Any) -> Any:
        decode, _, signer = DECODERS[kind]
        claims = {"sub": key(ACCOUNT).public, "iss": key(signer).public, "nats": {"type": kind, "version": 2, **fields}}
        return decode(signed(json.dumps(claims).encode(), signer))

    with pytest.raises(TokenError, match="cannot unmarshal number into field src"):
        decoded("user", src=1.5)
    assert decoded("user", src="10.0.0.0/8").limits.src == ("10.0.0.0/8",)
    assert list(decoded("account", signing_keys=["A1", 1.5, 1]).signing_keys) == ["A1"]


WRONG = {
    "a.b": "expected 3 chunks",
    "a.b.c.d": "expected 3 chunks",
    "?.b.c": "illegal base64 data at input byte 0",
    "x" * (TOKEN_CHARS_MAX + 1): f"token size {TOKEN_CHARS_MAX + 1} exceeds maximum of {TOKEN_CHARS_MAX} bytes",
    signed(b"{}", ACCOUNT, b'{"typ":"JWS","alg":"ed25519-nkey"}'): 'not supported type "JWS"',
    signed(b"{}", ACCOUNT, b'{"typ":"JWT","alg":"none"}'): 'unexpected "none" algorithm',
    signed(b"{}", ACCOUNT, b'{"typ":"JWT","alg":"HS256"}'): 'unexpected "HS256" algorithm',
    signed(b'{"nats":{"type":"user","version":3}}', ACCOUNT): "JWT was generated by a newer version",
    signed(b'{"nats":{"type":"server","version":2}}', ACCOUNT): "ServerClaims are not supported",
    signed(b'{"nats":{"type":"user","version":2}}', ACCOUNT): "claim failed V2 signature verification",
    encode_token({"sub": "x", "nats": {"type": "user"}}, key(OPERATOR),
                 1): "unable to validate expected prefixes - [0]",
    tokens.account(signer=key("U")): "unable to validate expected prefixes - [0 112]",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:20])
def test_why(text: str) -> None:
    """The reasons are those of nats-io/jwt."""
    with pytest.raises(TokenError) as caught:
        decode_token(text)
    assert str(caught.value).startswith(WRONG[text])


def test_reasons_are_one_line() -> None:
    """Text from a stranger cannot begin a line of the log."""
    with pytest.raises(TokenError) as caught:
        decode_token(signed(b"{}", ACCOUNT, b'{"typ":"a\\nb\\u001b[31m","alg":"x"}'))
    assert str(caught.value).isprintable()
    assert Refusal("a\nb").why.isprintable()


def test_a_changed_token() -> None:
    """A token with any changed character is refused."""
    text = tokens.user()
    for at in range(0, len(text), 7):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1:]
        if changed.rstrip("AQgw") != text.rstrip("AQgw"):
            with pytest.raises(TokenError):
                user_claims(changed)


def test_a_decorated_file() -> None:
    """The token of a file is between lines of dashes; a last newline is optional, and Windows' line ends are
    allowed."""
    text = tokens.operator()
    for end in ("\n\n", "\n", ""):
        file = f"-----BEGIN NATS OPERATOR JWT-----\n{text}\n------END NATS OPERATOR JWT------{end}"
        assert undecorated(file) == undecorated(file.replace("\n", "\r\n")) == text
    assert undecorated(f"\n{text}\n") == text


@given(st.lists(st.lists(st.sampled_from(["a", "b", "*", ">", "a>", ""]), min_size=1, max_size=4).map(".".join),
                max_size=6))
def test_overlapping_subjects(subjects: list[str]) -> None:
    """The result is the same as a comparison of all pairs."""
    assert overlapping(subjects) == [one for i, one in enumerate(subjects) if any(
        i != j and (contained(one, other) or contained(other, one)) for j, other in enumerate(subjects))]


def test_thousands_of_exports_and_imports_do_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation compares only a small part of all pairs."""
    compared = 0

    def counted(subject: str, other: str) -> bool:
        nonlocal compared
        compared += 1
        return contained(subject, other)

    monkeypatch.setattr(validation, "contained", counted)
    subjects = [f"of.{i}.*" for i in range(3000)]
    claims = account_claims(tokens.account("A",
                                           exports=[{"type": "service", "subject": subject} for subject in subjects],
                                           imports=[
        {"type": "service", "subject": subject, "account": key(ACCOUNT, "B").public} for subject in subjects]))
    assert account_issues(claims, 0) == []
    assert compared < 10 * len(subjects)
