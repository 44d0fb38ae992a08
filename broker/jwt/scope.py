"""Fills in the templates, such as ``{{name()}}``, in a scoped signing key's permissions for one user.

    {{name()}} {{subject()}}                    of the user's token
    {{account-name()}} {{account-subject()}}    of its account
    {{tag(x)}} {{account-tag(x)}}               the values of all tags ``x:value``: a subject for each

If a subject is invalid when it is filled in, it is left out where it would allow, and is an error where it would deny.

Source: nats-server, server/auth.go (processUserPermissionsTemplate).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from broker.jwt.claims import AccountClaims, UserClaims, UserPermissions
from broker.protocol.subject import is_valid

__all__ = ["TEMPLATE_SUBJECTS_MAX", "TemplateError", "filled_in"]

TEMPLATE_SUBJECTS_MAX: Final = 4096
_TEMPLATE: Final = re.compile(r"\{\{([^}]+)\}\}")
_TAG: Final = re.compile(r"(tag|account-tag)\((.*)\)", re.IGNORECASE | re.DOTALL)


class TemplateError(ValueError):
    """The templates cannot be filled in for a user. The text is the reason."""


def filled_in(scope: UserPermissions, user: UserClaims, account: AccountClaims) -> UserPermissions:
    """Return the permissions of ``user`` under ``scope``. Raises: TemplateError."""
    given = scope.permissions
    expand = _Expansion(user, account)
    publish_allow, publish_deny = expand.all(given.publish_allow), expand.all(given.publish_deny, strict=True)
    subscribe_allow, subscribe_deny = expand.all(given.subscribe_allow), expand.all(given.subscribe_deny, strict=True)
    # If no allowed subject is left, that must not mean that everything is allowed.
    if given.publish_allow and not publish_allow:
        publish_deny = (*publish_deny, ">")
    if given.subscribe_allow and not subscribe_allow:
        subscribe_deny = (*subscribe_deny, ">")
    return replace(scope, permissions=replace(
        given, publish_allow=publish_allow, publish_deny=publish_deny, subscribe_allow=subscribe_allow,
        subscribe_deny=subscribe_deny))


class _Expansion:
    def __init__(self, user: UserClaims, account: AccountClaims) -> None:
        self._account = account
        self._user = user

    def all(self, patterns: tuple[str, ...], *, strict: bool = False) -> tuple[str, ...]:
        """Fill in the patterns; with ``strict``, an invalid subject is an error."""
        if not any(map(_TEMPLATE.search, patterns)):
            return patterns
        found: list[str] = []
        for pattern in patterns:
            for subject in self._subjects(pattern, strict, len(found)):
                # This check does not accept a pattern with a queue group, as on nats-server.
                if is_valid(subject.encode()):
                    found.append(subject)
                elif strict:
                    raise TemplateError("generated invalid subject")
        return tuple(found)

    def _subjects(self, pattern: str, strict: bool, before: int) -> Iterator[str]:
        sources = [found[0] for found in _TEMPLATE.finditer(pattern)]
        values = [self._values(source, pattern, strict) for source in sources]
        count = 1
        for one in values:
            count *= len(one)
            if count > TEMPLATE_SUBJECTS_MAX - before:
                raise TemplateError(f"template expansion exceeds limit: {TEMPLATE_SUBJECTS_MAX}")
        for chosen in itertools.product(*values):
            subject = pattern
            for source, value in zip(sources, chosen, strict=True):
                subject = subject.replace(source, value)
            yield subject

    def _values(self, source: str, pattern: str, strict: bool) -> list[str]:
        operation = source[2:-2].strip()
        known = {"name()": self._user.name, "subject()": self._user.subject, "account-name()": self._account.name,
                 "account-subject()": self._user.issuer_account}.get(operation.lower())
        if known is not None:
            return [known]
        tag = _TAG.fullmatch(operation)
        if tag is None:
            raise TemplateError(f'template operation in "{pattern}": "{operation}" is not defined')
        values = _tag_values(self._account.tags if tag[1].lower() == "account-tag" else self._user.tags, tag[2])
        if not values and strict:
            raise TemplateError(f'generated invalid subject "{pattern}": "{tag[2]}" is not defined')
        # A blank makes the subject invalid.
        return values or [" "]


def _tag_values(tags: Iterable[str], name: str) -> list[str]:
    prefix = f"{name.lower()}:"
    return [tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)]
