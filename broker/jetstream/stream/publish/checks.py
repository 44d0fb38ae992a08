"""The checks that a publish passes before it becomes a message: those of nats-server, in the same order.

Owns: the table of checks, and the selection of checks by a stream's configuration and a message's headers.
Does not own: the checks (sibling modules), the handling of an accepted or refused candidate (sequencer).

    TABLE ── configuration ──> the stream's checks ── its headers ──> the message's checks ── all return ──> accepted

A check is a function of the candidate. It returns, or raises

    ApiError    the message is refused
    Duplicate   it was stored before, and its publisher gets that sequence
    BatchMember it belongs to an atomic batch, whose commit checks it by ATOMIC
    Unwanted    it is acknowledged and not stored, because no consumer waits for it
    NotLoaded   data must be loaded first; then the decision is repeated from the first check

A check changes only the candidate: its subject, headers and body (together with ``size``), or its follow-up
(``after``). ``context.live`` does not include messages of the same run that were accepted just before. A check either
adds them (``candidate.pending``), or calls ``context.commit_pending`` first.

To add a feature, write a module with a function ``(context, config) -> Check | None`` (None: this configuration does
not need the check). Add a row to TABLE at the place where nats-server does the same, and a row to ATOMIC for the
messages of atomic batches. The columns of a row:

    make      that function
    headers   the headers that the check reads: it is called for messages with one of them. ANY: it is called for every
              message with headers; None: for every message. ``candidate.headers`` has the headers that any check reads.
              If an earlier check writes a header that this one reads, this row lists the earlier check's headers, too
    bulk      for ANY and None: True if ``Sequencer._bulk`` and ``Sequencer.run_one`` may skip the check, because they
              test the same for a whole run, or do not handle such runs. False is always correct: a stream that needs
              such a check decides every run message by message, as it does a run with a ``Nats-`` header other than an
              id

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; server/filestore.go, storeRawMsg.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.jetstream.stream.publish import (
    atomic_checks,
    batches,
    counters,
    duplicates,
    expectations,
    limits,
    republish,
    rollup,
    schedules,
    sources,
    transform,
    ttl,
    unwanted,
)
from broker.jetstream.stream.publish.headers import HINT, MSG_ID, find
from broker.jetstream.stream.publish.totals import SOURCES

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["ANY", "ATOMIC", "COPIED", "FAST", "TABLE", "Checks", "Rule", "may_go_in_bulk"]

ANY: Final[frozenset[bytes]] = frozenset()
"""Value for ``headers``: messages that have any headers."""

_COMBINATIONS_MAX: Final = 64
"""Combinations of headers whose checks are cached: publishers use few of them, but could send any number."""


Make = Callable[["CheckContext", "StreamConfig"], "Check | None"]
"""Function that makes a check, or returns None if the configuration does not need it."""


class Rule(NamedTuple):
    """A row of the table; the module's docstring explains its columns."""

    make: Make
    headers: Collection[bytes] | None = None
    bulk: bool = False


TABLE: Final = (
    Rule(transform.transform),
    Rule(limits.trim_before, bulk=True),
    Rule(limits.record_size, bulk=True),                                                            # 10077
    Rule(batches.fast_ingest, bulk=True),                                                           # 10205
    Rule(batches.atomic, batches.HEADERS),                                             # 10174; otherwise to the batch
    Rule(limits.sealed),                                                                            # 10109
    Rule(limits.payload_size, bulk=True),                                                           # 10054
    Rule(limits.header_size, ANY, bulk=True),                                                       # 10097
    Rule(counters.valid, {counters.INCREMENT, SOURCES}),                                           # 10171, 10168, 10170
    Rule(expectations.stream, {expectations.STREAM}),                                               # 10060
    Rule(ttl.disabled, {ttl.TTL}),                                                                  # 10166
    Rule(expectations.last_subject_sequence,
         {expectations.LAST_SUBJECT_SEQUENCE, expectations.SUBJECT}),                               # 10071, 10193
    Rule(expectations.last_sequence, {expectations.LAST_SEQUENCE}),                                 # 10071
    Rule(schedules.valid, schedules.HEADERS),                               # 10188 to 10192, 10166, 10203, 10212, 10223
    Rule(sources.forged, {sources.SOURCE}),                                                         # 10227
    Rule(duplicates.duplicate, {MSG_ID}),                                                           # duplicate, 10167
    Rule(expectations.last_msg_id, {expectations.LAST_MSG_ID}),                                     # 10070
    Rule(rollup.requested, {rollup.ROLLUP, schedules.PATTERN}),                                     # 10111
    Rule(counters.add),                                                                             # 10169, 10172
    Rule(counters.fits),                                                                            # 10054, 10097
    Rule(limits.storage, bulk=True),                                                                # 10023
    Rule(unwanted.unwanted, bulk=True),                                                             # not stored
    Rule(ttl.valid, {ttl.TTL}),                                                                     # 10165
    Rule(ttl.marker, {ttl.TTL}),
    # On nats-server, the following checks are in its store.
    Rule(limits.subject_index, bulk=True),
    Rule(limits.last_sequence),                                                                     # 10077
    Rule(limits.subject_full),                                                                      # 10077
    Rule(limits.discard_new, bulk=True),                                                            # 10077
    Rule(rollup.plan, {rollup.ROLLUP, schedules.PATTERN}),
    Rule(schedules.plan, schedules.HEADERS),
    Rule(republish.republish),
)
"""All checks of a single message, in order; the comment of a row lists the errors that its check raises."""

ATOMIC: Final = (
    Rule(transform.transform),
    Rule(atomic_checks.last_msg_id, {expectations.LAST_MSG_ID}),                                    # 10177
    Rule(limits.record_size),                                                                       # 10077
    Rule(limits.header_size, ANY),                                                                  # 10097
    Rule(counters.valid, {counters.INCREMENT, SOURCES}),                                           # 10171, 10168, 10170
    Rule(expectations.stream, {expectations.STREAM}),                                               # 10060
    Rule(atomic_checks.ttl_disabled, {ttl.TTL}),                                                    # 10166
    Rule(ttl.valid, {ttl.TTL}),                                                                     # 10165
    Rule(atomic_checks.duplicate, {MSG_ID}),                                                        # 10201, 10167
    Rule(sources.forged, {sources.SOURCE}),                                                         # 10227
    Rule(counters.add),                                                                             # 10169, 10172
    Rule(counters.fits),                                                                            # 10054, 10097
    Rule(atomic_checks.last_sequence, {expectations.LAST_SEQUENCE}),                                # 10071, 10164
    Rule(atomic_checks.last_subject_sequence,
         {expectations.LAST_SUBJECT_SEQUENCE, expectations.SUBJECT}),                              # 10071, 10164, 10193
    Rule(schedules.valid, schedules.HEADERS),                               # 10188 to 10192, 10166, 10203, 10212, 10223
    Rule(rollup.requested, {rollup.ROLLUP, schedules.PATTERN}),                                     # 10111
    Rule(atomic_checks.first_of_subject, {rollup.ROLLUP, schedules.PATTERN}),                       # 10111
    Rule(limits.subject_index),
    Rule(atomic_checks.discard_new),                                                                # 10077
    Rule(limits.last_sequence),                                                                     # 10077
    Rule(atomic_checks.storage),                                                                    # 10023, 10002
    Rule(atomic_checks.plan, {rollup.ROLLUP, schedules.PATTERN}),
    Rule(schedules.plan, schedules.HEADERS),
    Rule(republish.republish),
)
"""The checks of each message of an atomic batch, at the commit, before any message is stored."""

FAST: Final = tuple(rule for rule in TABLE if rule.make not in (batches.fast_ingest, batches.atomic, unwanted.unwanted))
"""The checks of a message of a fast-ingest batch, after it got its place; an unwanted one is stored and then
removed."""

_OF_CLIENTS: Final = frozenset((
    batches.fast_ingest, batches.atomic, counters.valid, ttl.disabled, schedules.valid, schedules.plan, sources.forged,
    unwanted.unwanted))
"""Checks for clients only: the origin has already accepted a copied message. A copy that no consumer waits for is
stored and then removed."""

_COUNTED: Final = frozenset((sources.SOURCE, counters.INCREMENT))

COPIED: Final = tuple(Rule(counters.add_copied, _COUNTED) if rule.make is counters.add else rule
                      for rule in TABLE if rule.make not in _OF_CLIENTS)
"""The checks of messages copied from another stream, which come without headers of expectations and batches."""

_READ: Final = frozenset(name for rule in (*TABLE, *ATOMIC) for name in rule.headers or ())
"""The headers that some check reads."""

_ONE_BY_ONE: Final = tuple(rule.make for rule in TABLE if not rule.bulk and not rule.headers)


def may_go_in_bulk(context: CheckContext, config: StreamConfig) -> bool:
    """Return whether a stream's runs may skip its checks: see ``bulk`` in the module's docstring."""
    return not any(make(context, config) for make in _ONE_BY_ONE)


class Checks:
    """The checks of one stream under one configuration.

    Each check is made for the first message that needs it: there may be thousands of streams, and most of them get only
    messages that are sequenced in bulk.

    Attributes: ``without_headers``: the checks of a message without headers.
    """

    __slots__ = ("_by_headers", "_config", "_context", "_made", "_table", "without_headers")

    def __init__(self, context: CheckContext, config: StreamConfig, table: Sequence[Rule] = TABLE) -> None:
        self._context = context
        self._config = config
        self._table = table
        self._made: dict[Make, Check | None] = {}
        self._by_headers: dict[tuple[bytes, ...], tuple[Check, ...]] = {}
        self.without_headers = self._of_rules(rule for rule in table if rule.headers is None)

    def for_headers(self, candidate: Candidate) -> tuple[Check, ...]:
        """Return the checks that a message with headers has to pass, in order; parse its headers for them."""
        names: tuple[bytes, ...] = ()
        body, hlen = candidate.body, candidate.hlen
        if body.find(HINT, 0, hlen) >= 0:
            headers = candidate.headers = find(body[:hlen], _READ)
            names = tuple(headers)
        checks = self._by_headers.get(names)
        if checks is None:
            if len(self._by_headers) >= _COMBINATIONS_MAX:
                self._by_headers.clear()
            checks = self._by_headers[names] = self._of_rules(
                rule for rule in self._table if not rule.headers or any(name in rule.headers for name in names))
        return checks

    def _of_rules(self, rules: Iterable[Rule]) -> tuple[Check, ...]:
        made, found = self._made, []
        for make, _, _ in rules:
            if make not in made:
                made[make] = make(self._context, self._config)
            if (check := made[make]) is not None:
                found.append(check)
        return tuple(found)
