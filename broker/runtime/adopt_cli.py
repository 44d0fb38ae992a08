"""``jetblock adopt STORE_URL``: carry out the requests in a store's inbox where no broker runs.

Exit status: 0: all requests were granted, or there were none; 1: some were refused, or stay in the inbox, with the
reasons; 2: the inbox could not be read, with the reason on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence

from broker.base.command import run_command
from broker.base.errors import StartError
from broker.base.output import count, printable
from broker.base.store_url import parse_store_url
from broker.config.environment import master_keys
from broker.config.flags import CommandLine
from broker.config.load import load
from broker.config.settings import ConfigError, Settings, make_settings
from broker.jetstream.inbox.inbox import Carried
from broker.runtime.adopt import Owned, adopt
from broker.storage.objectstore import StoreError

__all__ = ["main", "make_parser"]

_EPILOG = """\
Staged messages join their streams like published ones: limits and duplicate windows apply, and consumers receive them.
The configuration file sets max_payload and the limits of accounts; without the file, accounts have no limits, and
max_payload is 1 MiB. No broker may own the store, because an owner carries out the requests in its inbox itself.
status: 0 all requests were granted, 1 some were refused or remain, 2 the inbox could not be read
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out the requests in the inbox once; return the exit status."""
    return run_command("adopt", lambda _progress: _adopt(make_parser().parse_args(arguments)),
                       ConfigError, Owned, StartError, StoreError)


def _adopt(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="jetblock adopt: %(message)s")
    done = asyncio.run(adopt(_settings(options)))
    if options.json:
        json.dump({"store": options.store, "requests": [one.to_json() for one in done]}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(map(_line, done)) or "the inbox is empty")
    return 0 if all(one.answer is not None for one in done) else 1


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock adopt", epilog=_EPILOG,
                                     description="Adopt staged messages into their streams, on a store that no "
                                                 "broker owns.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", metavar="STORE_URL", help="file://DIR or s3://BUCKET/PREFIX")
    parser.add_argument("-c", "--config", metavar="FILE",
                        help="the broker's configuration, for limits and the store's settings")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    """Return the settings for the store. Raises: ConfigError."""
    url = str(options.store)
    if url.startswith("memory:"):
        raise ConfigError("memory:// exists only inside its broker: there is nothing to adopt from outside")
    try:
        parse_store_url(url)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if url.startswith("file://") and not os.path.isdir(url.removeprefix("file://")):
        raise ConfigError(f"{url}: there is no such directory")
    base = load(CommandLine(config=options.config), os.environ) if options.config else None
    if base is not None and (base.operator.tokens or base.operator.trusted_keys):
        raise ConfigError("accounts and their limits come with tokens here: let the broker carry out its requests")
    values = {"storage.url": url, "jetstream.enabled": True, "storage.compaction": False}
    return make_settings(values | master_keys(os.environ)) if base is None else make_settings(values, base)


def _line(one: Carried) -> str:
    request, where = f"request {one.request_id:016x}", printable(f"{one.account} > {one.stream}" if one.stream else "")
    if one.answer is None:
        return f"{request} {where}: {'stays' if one.stays else 'refused'}: {printable(one.why)}"
    answer = one.answer
    if answer.already:
        return f"{request} {where}: nothing joined, the stream has version {answer.version} of its writer already"
    notes = f", {count(answer.duplicates)} duplicates dropped" if answer.duplicates else ""
    if not answer.messages:
        return f"{request} {where}: nothing joined{notes}"
    notes += f", {count(answer.raised)} times raised" if answer.raised else ""
    joined = f"{count(answer.messages)} messages joined as {answer.first_seq} to {answer.last_seq}"
    return f"{request} {where}: {joined}{notes}"
