"""The TLS context with which a client connects.

From 3.13 on, Python's default context refuses certificates that break a rule of RFC 5280 in form, such as those without
an Authority Key Identifier. nats-server and its clients accept them, and so do older versions of Python.
"""

from __future__ import annotations

import ssl

__all__ = ["client_context"]


def client_context(*, ca_file: str = "", ca_data: str = "") -> ssl.SSLContext:
    """Return a context that trusts the authorities of a file and of a text in PEM; if both are empty, the system's.

    Raises: OSError, of which ``ssl.SSLError`` is one.
    """
    context = ssl.create_default_context(cafile=ca_file or None, cadata=ca_data or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
