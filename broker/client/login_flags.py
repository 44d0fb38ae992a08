"""The flags with which a command logs in at a NATS server."""

from __future__ import annotations

import argparse
from typing import Any, Final

__all__ = ["add_login_flags", "login_of"]

_FIELDS: Final = ("creds", "nkey", "user", "password", "tls_ca")


def add_login_flags(parser: argparse.ArgumentParser, of: str, of_user: str = "") -> None:
    """Add ``--creds``, ``--nkey``, ``--user``, ``--password`` and ``--tls-ca``.

    Args: ``of`` ends the help of the credentials, such as "for --server"; ``of_user`` that of the user, if it differs.
    """
    parser.add_argument("--creds", default="", metavar="FILE", help=f"credentials (JWT and seed){of}")
    parser.add_argument("--nkey", default="", metavar="FILE", help=f"the seed of a user's nkey{of}")
    parser.add_argument("--user", default="", metavar="NAME", help=f"user{of_user or of}")
    parser.add_argument("--password", default="", metavar="TEXT", help="its password")
    parser.add_argument("--tls-ca", default="", metavar="FILE", help="the CA of the server's certificate")


def login_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return these flags as arguments of ``broker.client.connection.Login``."""
    return {name: getattr(options, name) for name in _FIELDS}
