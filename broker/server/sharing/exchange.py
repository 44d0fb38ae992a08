"""Sharing between accounts: keeps their routers connected according to their settings, while these change.

    put(accounts)    their mappings, exports and imports apply at once, as do other accounts' imports of their exports
    remove(name)     nothing of the account is shared any more

An import that may not exist (of an unknown account, not permitted, forming a cycle) is left out. It comes into use
when the cause has changed, because accounts of JWTs are added and removed in any order. A configuration file with such
an import is refused earlier.

Source: nats-server, server/accounts.go (updateAccountClaimsWithRefresh), server/server.go (configureAccounts).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.access.sharing import (
    Export,
    Import,
    SubjectMapping,
    export_of,
    import_problem,
    imports_in_use,
    mapping_problem,
)
from broker.access.sharing_index import ImportList
from broker.protocol.subject_transform import TransformError
from broker.server.routing.router import Router
from broker.server.sharing.lost_interest import LostInterest
from broker.server.sharing.mapping import Mappings
from broker.server.sharing.request_info import OwnClient
from broker.server.sharing.responses import CallLater
from broker.server.sharing.service_imports import Service, ServiceImport
from broker.server.sharing.stream_imports import StreamImport, StreamImports

__all__ = ["Exchange"]

_log = logging.getLogger(__name__)


class Sharer(Protocol):
    """The settings of an account."""

    @property
    def name(self) -> str: ...

    @property
    def exports(self) -> tuple[Export, ...]: ...

    @property
    def imports(self) -> tuple[Import, ...]: ...

    @property
    def mappings(self) -> tuple[SubjectMapping, ...]: ...


@dataclass(eq=False, slots=True)
class _Member:
    """An account; ``imports`` are the imports in use."""

    settings: Sharer
    router: Router
    streams: StreamImports
    lost: LostInterest
    own: OwnClient
    services: dict[Export, Service] = field(default_factory=dict)
    imports: dict[Import, ServiceImport | StreamImport] = field(default_factory=dict)


class Exchange:
    """All accounts.

    ``call_later`` and ``now_ns`` end the wait for responses that never come; ``own_client`` describes a new client of
    the broker itself (``OwnClient``).
    """

    def __init__(self, rng: random.Random, call_later: CallLater, now_ns: Callable[[], int],
                 own_client: Callable[[], dict[str, Any]]) -> None:
        self._own_client = own_client
        self._passing: list[ServiceImport] = []
        self._rng = rng
        self._call_later = call_later
        self._now_ns = now_ns
        self._members: dict[str, _Member] = {}
        # By account name: its settings; its imports in use; the accounts that import from it, which may be unknown.
        self._settings: dict[str, Sharer] = {}
        self._used: dict[str, ImportList[Import]] = {}
        self._importers: dict[str, set[str]] = {}

    def put(self, *accounts: tuple[Sharer, Router]) -> None:
        """Add accounts, or change them, together; an account must keep the same router."""
        changed = []
        for settings, router in accounts:
            member = self._members.get(settings.name)
            if member is None:
                member = self._members[settings.name] = _Member(
                    settings, router, StreamImports(router), LostInterest(router, self._call_later),
                    OwnClient(settings.name, self._own_client))
                router.mapper = self._mappings(settings)
            elif member.settings == settings:
                continue
            elif member.settings.mappings != settings.mappings:
                router.mapper = self._mappings(settings)
            self._set(member, settings)
            for export in member.services.keys() - set(settings.exports):
                member.services.pop(export).responses.close()
            changed.append(member)
        # Remove old imports first: a new one might form a cycle with them.
        for member in changed:
            wanted = set(member.settings.imports)
            self._use(member, {one: used for one, used in member.imports.items() if one in wanted})
        names = {member.settings.name: None for member in changed}
        for name in list(names):
            names.update(dict.fromkeys(sorted(self._importers.get(name, ()))))
        for name in names:
            self._connect(self._members[name])

    def _set(self, member: _Member, settings: Sharer) -> None:
        name = settings.name
        for one in member.settings.imports:
            self._importers.get(one.account, set()).discard(name)
        for one in settings.imports:
            self._importers.setdefault(one.account, set()).add(name)
        member.settings = self._settings[name] = settings

    def remove(self, name: str) -> None:
        """Remove an account; an unknown one is ignored."""
        member = self._members.pop(name, None)
        if member is None:
            return
        self._use(member, {})
        member.router.mapper = None
        for service in member.services.values():
            service.responses.close()
        del self._settings[name], self._used[name]
        for one in member.settings.imports:
            self._importers.get(one.account, set()).discard(name)
        for other in sorted(self._importers.get(name, ())):
            self._connect(self._members[other])

    def in_use(self, name: str) -> Collection[Import]:
        """Return the imports in use of the account of that name."""
        return frozenset(self._used.get(name, ()))

    def imports_service(self, name: str, subject: bytes) -> bool:
        """Return whether the account of that name has a service import for the literal ``subject``."""
        member = self._members.get(name)
        return member is not None and any(
            isinstance(one, ServiceImport) and one.covers(subject) for one in member.imports.values())

    def _mappings(self, settings: Sharer) -> Mappings | None:
        usable = []
        for one in settings.mappings:
            if why := mapping_problem(one):
                _log.error("Account %s: the mapping of %r does not apply: %s", settings.name, one.source, why)
            else:
                usable.append(one)
        if not usable:
            return None
        try:
            return Mappings(usable, self._rng)
        except TransformError as error:
            _log.error("Account %s: its mappings do not apply: %s", settings.name, error)
            return None

    def _connect(self, member: _Member) -> None:
        """Make the imports in use agree with the settings; unchanged imports are not touched."""
        wanted: dict[Import, ServiceImport | StreamImport] = {}
        used = self._used[member.settings.name] = imports_in_use()
        for one in dict.fromkeys(member.settings.imports):
            why = import_problem(member.settings, one, self._settings, self._used)
            if not why:
                try:
                    wanted[one] = self._import(member, one)
                    used.append(one)
                    continue
                except TransformError as error:
                    why = str(error)
            # An unknown account may be added later, so its absence is not worth a warning.
            level = logging.WARNING if one.account in self._members else logging.DEBUG
            _log.log(level, "Account %s does not import %s %r of account %s: %s", member.settings.name, one.kind,
                     one.subject, one.account, why)
        self._use(member, wanted)

    def _import(self, member: _Member, one: Import) -> ServiceImport | StreamImport:
        exporter = self._members[one.account]
        known = member.imports.get(one)
        if one.kind == "stream":
            return known if isinstance(known, StreamImport) else StreamImport(one, exporter.router)
        export = export_of(exporter.settings, one)
        assert export is not None, "an import without an export has a problem"
        service = exporter.services.get(export)
        if service is None:
            service = exporter.services[export] = Service(export, exporter.router, self._rng, self._call_later,
                                                          self._now_ns)
        return known if isinstance(known, ServiceImport) and known.service is service else ServiceImport(
            one, service, member.router, member.lost, member.own, self._passing)

    def _use(self, member: _Member, wanted: dict[Import, ServiceImport | StreamImport]) -> None:
        in_use = self._used[member.settings.name] = imports_in_use()
        for imported in wanted:
            in_use.append(imported)
        before, member.imports = member.imports, wanted
        kept = {id(one) for one in wanted.values()}
        known = {id(one) for one in before.values()}
        for one in before.values():
            if isinstance(one, ServiceImport) and id(one) not in kept:
                one.stop()
        for one in wanted.values():
            if isinstance(one, ServiceImport) and id(one) not in known:
                one.start()
        streams = [one for one in wanted.values() if isinstance(one, StreamImport)]
        if streams != [one for one in before.values() if isinstance(one, StreamImport)]:
            member.streams.set(streams)
