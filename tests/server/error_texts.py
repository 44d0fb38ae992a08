"""Every text that nats-server 2.15 sends to a client as -ERR, found by the calls of ``sendErr`` and the like in its
sources.

Each text has a dialogue that shows it, or the name of its test. Otherwise it has the reason why no client of a server
without a cluster can get it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.server.dialogue import BETWEEN, END, OLD, PEDANTIC, QUIET, Step

__all__ = ["ELSEWHERE", "SHOWN", "UNREACHABLE", "Group"]

_LOGIN = b'CONNECT {"verbose":false,"user":"u","pass":"p"}\r\n'
_TRACED = b"NATS/1.0\r\nNats-Trace-Dest: denied\r\n\r\n"

_USERS = """
authorization {
  timeout: 60
  users: [ { user: u, password: p,
             permissions: { publish: { deny: denied }, subscribe: { allow: [ "ok.>", "ok.> q" ] } } } ]
}
accounts { ONE { limits: { max_connections: 1 }, users: [ { user: one, password: p } ] } }
"""
_ONE = _LOGIN.replace(b'"u"', b'"one"')


@dataclass(frozen=True)
class Group:
    """Dialogues with one configuration; ``then`` is the configuration that ``BETWEEN`` loads."""

    config: str
    texts: dict[str, list[Step]]
    then: str = ""
    flags: tuple[str, ...] = field(default=())


SHOWN: dict[str, Group] = {
    "defaults": Group("", {
        "Unknown Protocol Operation": [("a", OLD), ("a", b"FOO\r\n", END)],
        "maximum control line exceeded": [("a", OLD), ("a", b"SUB " + b"a" * 5000, END)],
        "Maximum Payload Violation": [("a", OLD), ("a", b"PUB foo 1048577\r\n", END)],
        "Invalid Subject": [("a", OLD), ("a", b"SUB foo..bar 1\r\n")],
        "Invalid Publish Subject": [("a", PEDANTIC), ("a", b"PUB foo.* 1\r\nx\r\n")],
        "invalid client protocol": [("a", b'CONNECT {"verbose":false,"protocol":2}\r\n', END)],
        "no responders requires headers support": [("a", b'CONNECT {"verbose":false,"no_responders":true}\r\n', END)],
        'Permissions Violation for Publish to "$NRG.a"': [("a", OLD), ("a", b"PUB $NRG.a 1\r\nx\r\n")],
        'Permissions Violation for Publish with Reply of "_R_.a"': [("a", OLD), ("a", b"PUB foo _R_.a 1\r\nx\r\n")],
        'Permissions Violation for Subscription to "foo" using queue "_sys_"': [("a", OLD),
                                                                                ("a", b"SUB foo _sys_ 1\r\n")],
    }),
    "limits": Group("max_subscriptions: 2, max_sub_tokens: 3", {
        "maximum subscriptions exceeded": [("a", OLD), ("a", b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\n")],
        'Permissions Violation for Subscription to "a.*.c.>", too many tokens': [
            ("a", OLD), ("a", b"SUB a.*.c 1\r\nSUB a.*.c.> 2\r\nSUB a.*.c.> q 3\r\nSUB b 4\r\nSUB a.b.c.d 5\r\n"),
            ("a", b"PUB a.b.c 1\r\nx\r\nPUB a.b.c.d 1\r\nx\r\n")],
    }),
    "one connection": Group("max_connections: 1", {
        "maximum connections exceeded": [("a", OLD), ("b", b"", END)],
    }),
    "silent clients": Group('ping_interval: "100ms", ping_max: 1', {
        "Stale Connection": [("a", OLD, END)],
    }),
    "silent strangers": Group("authorization { user: u, password: p, timeout: 0.2 }", {
        "Authentication Timeout": [("a", b"", END)],
    }),
    "users": Group(_USERS, {
        "Authorization Violation": [("a", _LOGIN.replace(b'"p"', b'"q"'), END)],
        "maximum account active connections exceeded": [("a", _ONE), ("b", _ONE, END)],
        'Permissions Violation for Publish to "denied"': [("a", _LOGIN),
                                                          ("a", b"PUB denied 1\r\nx\r\nPUB yes 1\r\nx\r\n")],
        'Permissions Violation for Subscription to "denied"': [("a", _LOGIN), ("a", b"SUB denied 1\r\nSUB ok.a 2\r\n")],
        'Permissions Violation for Subscription to "ok.a" using queue "r"': [("a", _LOGIN), ("a", b"SUB ok.a r 1\r\n")],
    }),
    "permissions that shrink": Group(_USERS, {
        'Permissions Violation for Subscription to "ok.b" (sid "2")': [
            ("a", _LOGIN), ("a", b"SUB ok.a 1\r\nSUB ok.b 2\r\nSUB ok.b q 3\r\n"), BETWEEN,
            ("a", b"PUB ok.a 1\r\nx\r\nPUB ok.b 1\r\nx\r\n")],
        'Permissions Violation for Subscription to "ok.b" using queue "q" (sid "3")': [],
    }, then=_USERS.replace('[ "ok.>", "ok.> q" ]', '[ "ok.a" ]')),
    "trace to a denied subject": Group(_USERS, {
        'Permissions Violation for Publish to "denied"': [
            ("a", QUIET[:-3] + b',"user":"u","pass":"p"}\r\n'),
            ("a", b"HPUB yes %d %d\r\n%b\r\n" % (len(_TRACED), len(_TRACED), _TRACED))],
    }),
}
"""Each text with its dialogue. A text without steps is shown by another dialogue of its group."""

ELSEWHERE: dict[str, str] = {
    "Connection throttling is active. Please try again later.":
        "tests/server/listeners/test_tls.py::test_handshakes_can_be_limited_to_so_many_a_second",
    "User Authentication Expired": "tests/server/auth/test_permissions.py::test_expiry",
    "Account Authentication Expired": "tests/server/operator/test_claims_requests.py::test_an_account_is_deleted",
    "User Authentication Revoked": "tests/server/operator/test_claims_requests.py::test_an_update_ends_clients",
}
"""Texts that need more than a configuration file, with the tests that show them."""

UNREACHABLE: dict[str, str] = {
    "Secure Connection - TLS Required": "written into the TLS that the client has not begun, so it does not arrive",
    "Failed Account Registration": "an account that a login names always exists when users come from the configuration",
    "Account absent from receive-all-subscriptions-%s command": "gateways",
    "Attempt to connect to gateway %q using wrong port": "gateways",
    "Connection from %q rejected, wanted to connect to %q, this is %q": "gateways",
    "Connection to gateway %q rejected": "gateways",
    "attempted to connect to gateway port": "gateways",
    "Invalid Subscription": "routes and leaf nodes",
    "No route for account %q": "routes",
    "Unable to lookup account %q: %v": "routes",
    "attempted to connect to route port": "routes",
    "cluster name cannot contain spaces": "leaf nodes",
    "remote leafnode has same cluster name": "leaf nodes",
    "attempted to connect to leaf node port": "leaf nodes",
    "connection rejected since minimum version required is": "leaf nodes",
    "Permissions Violation for Publish to %q, of a leaf node": "leaf nodes",
    "Stale Leaf Node Connection - Closing": "leaf nodes",
}
"""Texts that no client gets, with the reason."""
