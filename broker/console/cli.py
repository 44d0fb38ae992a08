"""``jetblock console``: pages in the browser for a NATS server.

Exit status: 0; 2 for wrong arguments, or if the console cannot start.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from broker.base.store_url import parse_store_url

__all__ = ["main", "make_parser"]

_WEEK_MINUTES = 7 * 24 * 60
_NOT_INSTALLED = "the console's packages are not installed: pip install 'jetblock[console]'"


def main(arguments: Sequence[str]) -> int:
    """Serve the console; return the exit status."""
    try:
        options = make_parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        return _serve(options)
    except _CannotStart as error:
        print(f"jetblock console: {error}", file=sys.stderr)
        return 2


class _CannotStart(Exception):
    pass


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="jetblock console", description="Serve pages in the browser for a NATS server; more if it is jetblock.")
    parser.add_argument("--server", default="nats://127.0.0.1:4222", metavar="URL", help="default: %(default)s")
    parser.add_argument("--creds", metavar="FILE", help="credentials; without any, the pages ask for a login")
    parser.add_argument("--user", metavar="NAME", help="user; the password is JETBLOCK_CONSOLE_PASSWORD")
    parser.add_argument("--no-login", action="store_true", help="use the server without credentials, and ask for none")
    parser.add_argument("--ca", metavar="FILE", help="certificate authority of the server (PEM)")
    parser.add_argument("--domain", default="", help="JetStream domain")
    parser.add_argument("--inbox-prefix", default="", metavar="PREFIX",
                        help="for users who may not subscribe to _INBOX.>")
    parser.add_argument("--monitor", default="", metavar="URL", help="the server's monitoring port, for live figures")
    parser.add_argument("--store", default="", metavar="URL", help="the store of jetblock, to show what is in it")
    parser.add_argument("--read-only", action="store_true", help="offer nothing that changes something")
    parser.add_argument("--session-minutes", type=float, default=30, metavar="N",
                        help="how long a session lasts that nobody uses; default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8080, help="default: %(default)s")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="a name by which browsers reach the console, besides addresses and localhost")
    return parser


def _serve(options: argparse.Namespace) -> int:
    # NiceGUI keeps files only for what this console does not use; if it ever does, they are not in the current folder.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", "/nonexistent")
    if not all(find_spec(package) for package in ("nicegui", "re2")):
        raise _CannotStart(_NOT_INSTALLED)
    from broker.console.login import BadLogin, Login
    from broker.console.session import Settings

    login = Login(options.server, user=options.user or "",
                  password=os.environ.get("JETBLOCK_CONSOLE_PASSWORD", "") if options.user else "",
                  creds=_read(options.creds) if options.creds else "", ca=_read(options.ca) if options.ca else "",
                  domain=options.domain, inbox_prefix=options.inbox_prefix)
    try:
        login.options()
    except BadLogin as error:
        raise _CannotStart(str(error).rstrip(".")) from None
    logged_in = bool(options.creds or options.user or options.no_login)
    if logged_in and not _is_loopback(options.host):
        raise _CannotStart(f"with credentials of its own the console asks nobody for a login, so it may not listen on "
                           f"{options.host}: leave out --creds, --user and --no-login, or listen on 127.0.0.1")
    _check_port(options.host, options.port)
    if not 0 < options.session_minutes <= _WEEK_MINUTES:
        raise _CannotStart("--session-minutes must be more than 0, and a week at most")
    if options.monitor and urlsplit(options.monitor).scheme not in ("http", "https"):
        raise _CannotStart("--monitor must look like http://127.0.0.1:8222")
    if options.store:
        try:
            if parse_store_url(options.store).scheme == "memory":
                raise _CannotStart("--store: memory:// exists only inside its broker")
        except ValueError as error:
            raise _CannotStart(f"--store: {error}") from None
    settings = Settings(login, logged_in, options.monitor, options.store, options.read_only,
                        options.session_minutes * 60)
    from broker.console.app import run

    print(f"jetblock console: http://{options.host}:{options.port} for {login.shown}; Ctrl-C ends it", flush=True)
    run(settings, options.host, options.port, options.allow_host)
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise _CannotStart(f"{path} cannot be read: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_port(host: str, port: int) -> None:
    """Check that the port is free. Raises: _CannotStart: the web server's own message is a traceback."""
    if not 0 < port < 65_536:
        raise _CannotStart(f"--port must be from 1 to 65535, not {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(found[4])
    except OSError as error:
        raise _CannotStart(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
