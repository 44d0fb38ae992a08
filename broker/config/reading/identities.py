"""A file's users and accounts, read in the file's order and then checked as a whole.
"""

from __future__ import annotations

from typing import Any

from broker.access.accounts import DEFAULT_ACCOUNT, AccountSettings, NkeyUser, Permissions, User
from broker.config.reading.accounts import Directory, read_accounts
from broker.config.reading.findings import Findings
from broker.config.reading.sharing import read_mappings
from broker.config.reading.users import AnyUser, read_permissions, read_users, with_defaults
from broker.config.syntax import Value

__all__ = ["Identities"]


class Identities:
    """Collects the values of keys, by a method for each key; ``settings`` returns the result."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._own_users: list[AnyUser] = []
        self._default_permissions: Permissions | None = None
        self._directory = Directory()
        self._own_mappings: list[AccountSettings] = []
        self._users_at: Value | None = None
        self._accounts_at: Value | None = None

    def users(self, value: Value) -> None:
        """Read ``authorization { users }``, the default account's users."""
        self._users_at = value
        self._own_users = read_users(value, self._found)

    def permissions(self, value: Value) -> None:
        """Read ``authorization { default_permissions }``."""
        self._default_permissions = read_permissions(value, self._found)

    def accounts(self, value: Value) -> None:
        self._accounts_at = value
        self._directory = read_accounts(value, self._found)

    def mappings(self, value: Value) -> None:
        """Read the default account's mappings."""
        mappings = read_mappings(value, self._found)
        self._own_mappings = [AccountSettings(DEFAULT_ACCOUNT, mappings=mappings)] if mappings else []

    def settings(self, *, user: str, token: str) -> dict[str, Any]:
        """Return settings by path, checked against each other and against the single user or token in the file."""
        directory = self._directory
        users = [*with_defaults(self._own_users, self._default_permissions), *directory.users]
        at, several = (self._users_at, "a users array") if self._own_users else (self._accounts_at, "accounts")
        if at is None:
            return {"accounts.configured": tuple(self._own_mappings)} if self._own_mappings else {}
        if users and user:
            self._found.wrong(at, f"Can not have a single user/pass and {several}")
        if users and token:
            self._found.wrong(at, f"Can not have a token and {several}")
        seen = set()
        for one in users:
            name, what = (one.user, "user") if isinstance(one, User) else (one.nkey, "nkey")
            if name in seen:
                self._found.wrong(directory.places.get(f"{one.account}.users", at),
                                  f'Duplicate {what} "{name}" detected')
            seen.add(name)
        for value, written, why in directory.unsupported:
            self._found.wrong(value, f'"{written}" {why}')
        return {"auth.users": tuple(one for one in users if isinstance(one, User)),
                "auth.nkeys": tuple(one for one in users if isinstance(one, NkeyUser)),
                "accounts.configured": (*self._own_mappings, *directory.accounts)}
