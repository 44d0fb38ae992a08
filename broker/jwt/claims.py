"""The claims of tokens (operators, accounts, users and activations) as values.

A missing number is 0. As a limit, -1 means "no limit", 0 and other negative numbers mean "nothing". ``validation``
checks the values together.

Source: nats-io/jwt, v2/account_claims.go, user_claims.go, operator_claims.go, activation_claims.go, imports.go,
exports.go, and their decoder_*.go for version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.access.accounts import NO_LIMIT
from broker.base.gojson.decoding import kind_of
from broker.jwt.fields import Fields
from broker.jwt.token import Token, TokenError, decode_token

__all__ = ["ANY", "AccountClaims", "AccountLimits", "ActivationClaims", "Claims", "ExportClaim",
           "ExternalAuthorization", "ImportClaim", "JetStreamLimits", "Mapped", "OperatorClaims", "PermissionClaims",
           "ResponseClaims", "Responses", "UserClaims", "UserPermissions", "account_claims", "activation_claims",
           "operator_claims", "response_claims", "user_claims"]

ANY: Final = "*"
"""Stands for every user in revocations, and for every account in allowed accounts."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of every token. Times are in seconds since 1970; 0: none."""

    subject: str
    issuer: str = ""
    name: str = ""
    audience: str = ""
    issued_at: int = 0
    expires: int = 0
    not_before: int = 0
    tags: tuple[str, ...] = ()
    version: int = 2


@dataclass(frozen=True, slots=True)
class OperatorClaims(Claims):
    signing_keys: tuple[str, ...] = ()
    account_server_url: str = ""
    service_urls: tuple[str, ...] = ()
    system_account: str = ""
    assert_server_version: str = ""
    strict_signing_keys: bool = False


@dataclass(frozen=True, slots=True)
class Responses:
    max_msgs: int = 0
    expires_ns: int = 0


@dataclass(frozen=True, slots=True)
class PermissionClaims:
    """Allowed and denied patterns; those of a scope may contain templates."""

    publish_allow: tuple[str, ...] = ()
    publish_deny: tuple[str, ...] = ()
    subscribe_allow: tuple[str, ...] = ()
    subscribe_deny: tuple[str, ...] = ()
    responses: Responses | None = None


@dataclass(frozen=True, slots=True)
class UserPermissions:
    """The rights and limits of a user. If all fields are zero, the scope of the signing key applies."""

    permissions: PermissionClaims = PermissionClaims()
    src: tuple[str, ...] = ()
    """The networks (CIDR) from which the user may connect."""

    times: tuple[tuple[str, str], ...] = ()
    """Beginnings and ends of the daily times at which the user may connect, ``15:04:05``."""

    locale: str = ""
    """The time zone of ``times``; "": the server's."""

    subs: int = 0
    data: int = 0
    payload: int = 0
    bearer: bool = False
    proxy_required: bool = False
    connection_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserClaims(Claims):
    limits: UserPermissions = UserPermissions()
    issuer_account: str = ""

    @property
    def account(self) -> str:
        """The account that the user is in."""
        return self.issuer_account or self.issuer


@dataclass(frozen=True, slots=True)
class JetStreamLimits:
    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False

    @property
    def enabled(self) -> bool:
        return self.mem_storage != 0 or self.disk_storage != 0


@dataclass(frozen=True, slots=True)
class AccountLimits:
    subs: int = 0
    data: int = 0
    payload: int = 0
    imports: int = 0
    exports: int = 0
    wildcards: bool = False
    disallow_bearer: bool = False
    conn: int = 0
    leaf: int = 0
    jetstream: JetStreamLimits = JetStreamLimits()
    tiers: tuple[tuple[str, JetStreamLimits], ...] = ()


@dataclass(frozen=True, slots=True)
class ExportClaim:
    """An export; ``kind`` is stream or service, "": unknown."""

    kind: str
    subject: str
    name: str = ""
    token_req: bool = False
    revocations: Mapping[str, int] = field(default_factory=dict)
    response_type: str = ""
    response_threshold_ns: int = 0
    latency: tuple[int, str] | None = None
    """The sampling in percent (0: by headers), and the subject of the results."""

    account_token_position: int = 0
    allow_trace: bool = False
    description: str = ""
    info_url: str = ""


@dataclass(frozen=True, slots=True)
class ImportClaim:
    kind: str
    subject: str
    account: str = ""
    token: str = field(default="", repr=False)
    to: str = ""
    local_subject: str = ""
    share: bool = False
    allow_trace: bool = False


@dataclass(frozen=True, slots=True)
class Mapped:
    """A weighted destination of a mapping; a weight of 0 means 100."""

    subject: str
    weight: int = 0
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class ExternalAuthorization:
    auth_users: tuple[str, ...] = ()
    allowed_accounts: tuple[str, ...] = ()
    xkey: str = ""

    @property
    def enabled(self) -> bool:
        return bool(self.auth_users)


@dataclass(frozen=True, slots=True)
class AccountClaims(Claims):
    limits: AccountLimits = AccountLimits()
    signing_keys: Mapping[str, UserPermissions | None] = field(default_factory=dict)
    """The permissions of the users that each key may sign; None: those in the user's token."""

    revocations: Mapping[str, int] = field(default_factory=dict)
    """Users by public key, and the time up to which their tokens are revoked."""

    default_permissions: PermissionClaims = PermissionClaims()
    exports: tuple[ExportClaim, ...] = ()
    imports: tuple[ImportClaim, ...] = ()
    mappings: tuple[tuple[str, tuple[Mapped, ...]], ...] = ()
    authorization: ExternalAuthorization = ExternalAuthorization()
    trace: tuple[str, int] | None = None
    cluster_traffic: str = ""
    description: str = ""
    info_url: str = ""

    def revoked(self, user: str, issued_at: int) -> bool:
        """Return whether a token issued to ``user`` at that time is revoked."""
        return any(issued_at <= self.revocations.get(key, -1 << 63) for key in (user, ANY))


@dataclass(frozen=True, slots=True)
class ActivationClaims(Claims):
    kind: str = ""
    import_subject: str = ""
    issuer_account: str = ""


@dataclass(frozen=True, slots=True)
class ResponseClaims(Claims):
    """The claims of an authorization service's response."""

    jwt: str = field(default="", repr=False)
    error: str = ""
    issuer_account: str = ""


def operator_claims(text: str) -> OperatorClaims:
    """Decode an operator's token. Raises: TokenError."""
    token, nats, common = _decoded(text, "operator", "not operator claim")
    return OperatorClaims(
        **common, signing_keys=nats.texts("signing_keys"), account_server_url=nats.text("account_server_url"),
        service_urls=nats.texts("operator_service_urls"), system_account=nats.text("system_account"),
        assert_server_version=nats.text("assert_server_version") if token.version > 1 else "",
        strict_signing_keys=token.version > 1 and nats.boolean("strict_signing_key_usage"))


def user_claims(text: str) -> UserClaims:
    """Decode a user's token. Raises: TokenError."""
    token, nats, common = _decoded(text, "user", "not user claim")
    old = token.version == 1
    account = nats.text("issuer_account") if not old else token.fields.text("issuer_account")
    limits = _user_permissions(nats, NO_LIMIT if old else 0)
    return UserClaims(**common, limits=replace(limits, proxy_required=False, connection_types=()) if old else limits,
                      issuer_account=account)


def account_claims(text: str) -> AccountClaims:
    """Decode an account's token. Raises: TokenError."""
    token, nats, common = _decoded(text, "account", "not account claim")
    old = token.version == 1
    limits = _account_limits(nats.inner("limits"))
    parts: dict[str, Any] = {
        "signing_keys": dict.fromkeys(nats.texts("signing_keys")) if old else _signing_keys(nats),
        "revocations": nats.numbers("revocations"), "exports": tuple(map(_export, nats.objects("exports"))),
        "imports": tuple(map(_import, nats.objects("imports")))}
    if old:
        return AccountClaims(**common, **parts, limits=replace(limits, jetstream=JetStreamLimits(), tiers=(),
                                                               disallow_bearer=False))
    authorization, trace = nats.inner("authorization"), nats.pointer("trace")
    return AccountClaims(
        **common, **parts, limits=limits, default_permissions=_permissions(nats.inner("default_permissions")),
        mappings=_mappings(nats), authorization=ExternalAuthorization(
            authorization.texts("auth_users"), authorization.texts("allowed_accounts"), authorization.text("xkey")),
        trace=(trace.text("dest"), trace.integer("sampling")) if trace is not None else None,
        cluster_traffic=nats.text("cluster_traffic"), description=nats.text("description"),
        info_url=nats.text("info_url"))


def activation_claims(text: str) -> ActivationClaims:
    """Decode an activation token. Raises: TokenError."""
    token, nats, common = _decoded(text, "activation", "not activation claim")
    old = token.version == 1
    kind = _kind(nats, "type" if old else "kind")
    account = token.fields.text("issuer_account") if old else nats.text("issuer_account")
    return ActivationClaims(**common, kind=kind, import_subject=nats.text("subject"), issuer_account=account)


def response_claims(text: str) -> ResponseClaims:
    """Decode an authorization service's response. Raises: TokenError."""
    _, nats, common = _decoded(text, "authorization_response", "not an authorization request claim")
    return ResponseClaims(**common, jwt=nats.text("jwt"), error=nats.text("error"),
                          issuer_account=nats.text("issuer_account"))


def _decoded(text: str, kind: str, otherwise: str) -> tuple[Token, Fields, dict[str, Any]]:
    """Decode a token; return it, its ``nats`` member, and the values of ``Claims``."""
    token = decode_token(text)
    if token.kind != kind:
        raise TokenError(otherwise)
    fields = token.fields
    nats = fields.inner("nats")
    return token, nats, {
        "subject": fields.text("sub"), "issuer": fields.text("iss"), "name": fields.text("name"),
        "audience": fields.text("aud"), "issued_at": fields.integer("iat"), "expires": fields.integer("exp"),
        "not_before": fields.integer("nbf"), "tags": (fields if token.version == 1 else nats).texts("tags"),
        "version": token.version}


def _permissions(fields: Fields) -> PermissionClaims:
    publish, subscribe = fields.inner("pub"), fields.inner("sub")
    responses = fields.pointer("resp")
    return PermissionClaims(
        publish.texts("allow"), publish.texts("deny"), subscribe.texts("allow"), subscribe.texts("deny"),
        Responses(responses.integer("max"), responses.integer("ttl")) if responses is not None else None)


def _user_permissions(fields: Fields, unset: int = 0) -> UserPermissions:
    return UserPermissions(
        _permissions(fields), _networks(fields),
        tuple((one.text("start"), one.text("end")) for one in fields.objects("times")),
        fields.text("times_location"), fields.integer("subs", unset), fields.integer("data", unset),
        fields.integer("payload", unset), fields.boolean("bearer_token"), fields.boolean("proxy_required"),
        fields.texts("allowed_connection_types"))


def _networks(fields: Fields) -> tuple[str, ...]:
    """Read a list, or one text with commas; each assignment replaces the earlier ones."""
    found: tuple[str, ...] = ()
    for value in fields.given("src"):
        if kind_of(value) == "string":
            found = tuple(word.strip() for word in value.lower().split(",") if word.strip())
        else:
            found = Fields({"src": value}).texts("src")
    return found


def _signing_keys(nats: Fields) -> dict[str, UserPermissions | None]:
    keys: dict[str, UserPermissions | None] = {}
    for value in nats.given("signing_keys"):
        for row in Fields({"signing_keys": value}).rows("signing_keys"):
            if kind_of(row) == "string":
                keys[row] = None
            elif isinstance(row, dict):
                scope = Fields.untyped(row)
                if "kind" not in row or any(kind != "user_scope" for kind in scope.given("kind")):
                    raise TokenError(f'unknown signing key scope "{scope.values.get("type")}"')
                keys[scope.text("key")] = _user_permissions(scope.inner("template"), NO_LIMIT)
    return keys


def _account_limits(fields: Fields) -> AccountLimits:
    tiers = tuple((name, _jetstream(tier)) for name, tier in fields.maps("tiered_limits").items())
    return AccountLimits(
        fields.integer("subs"), fields.integer("data"), fields.integer("payload"), fields.integer("imports"),
        fields.integer("exports"), fields.boolean("wildcards"), fields.boolean("disallow_bearer"),
        fields.integer("conn"),
        fields.integer("leaf"), JetStreamLimits() if tiers else _jetstream(fields), tiers)


def _jetstream(fields: Fields) -> JetStreamLimits:
    return JetStreamLimits(
        fields.integer("mem_storage"), fields.integer("disk_storage"), fields.integer("streams"),
        fields.integer("consumer"),
        fields.integer("max_ack_pending"), fields.integer("mem_max_stream_bytes"),
        fields.integer("disk_max_stream_bytes"),
        fields.boolean("max_bytes_required"))


def _export(fields: Fields) -> ExportClaim:
    latency = fields.pointer("service_latency")
    return ExportClaim(
        _kind(fields, "type"), fields.text("subject"), fields.text("name"), fields.boolean("token_req"),
        fields.numbers("revocations"), fields.text("response_type"), fields.integer("response_threshold"),
        _latency(latency) if latency is not None else None,
        fields.integer("account_token_position"), fields.boolean("allow_trace"), fields.text("description"),
        fields.text("info_url"))


def _latency(fields: Fields) -> tuple[int, str]:
    """Read the sampling: the word ``headers`` stands for 0, and so does null."""
    sampling = 0
    for value in fields.given("sampling"):
        by_headers = isinstance(value, str) and value.lower() == "headers"
        sampling = 0 if by_headers else Fields({"sampling": value}).integer("sampling")
    return sampling, fields.text("results")


def _import(fields: Fields) -> ImportClaim:
    return ImportClaim(
        _kind(fields, "type"), fields.text("subject"), fields.text("account"), fields.text("token"), fields.text("to"),
        fields.text("local_subject"), fields.boolean("share"), fields.boolean("allow_trace"))


def _mappings(nats: Fields) -> tuple[tuple[str, tuple[Mapped, ...]], ...]:
    return tuple((source, tuple(Mapped(one.text("subject"), _weight(one), one.text("cluster")) for one in destinations))
                 for source, destinations in nats.lists("mappings").items())


def _weight(fields: Fields) -> int:
    weight = fields.integer("weight")
    if not 0 <= weight < 256:
        raise TokenError(f"json: cannot unmarshal number {weight} into field weight of type uint8")
    return weight


def _kind(fields: Fields, name: str) -> str:
    """Return the text; "" only if the field is missing."""
    for value in fields.given(name):
        if value not in ("stream", "service"):
            raise TokenError(f'unknown export type "{value or ""}"')
    return fields.text(name)
