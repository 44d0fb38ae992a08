"""Dialogues by name, with steps of ``tests.server.dialogue``; both servers must answer them alike."""

from __future__ import annotations

from typing import Any

from broker.access.accounts import User
from tests.server.dialogue import END, NO_ECHO, OLD, PARTIAL, PEDANTIC, QUIET, VERBOSE, Step

__all__ = ["ANY_ORDER", "CONFIGURED", "DIALOGUES", "GUARDED"]

DIALOGUES: dict[str, list[Step]] = {
    # CONNECT
    "connect defaults are verbose": [("a", b"CONNECT {}\r\n"), ("a", b"SUB foo 1\r\nPUB foo 2\r\nhi\r\n")],
    "connect null": [("a", b"CONNECT null\r\n")],
    "connect unknown fields": [("a", b'CONNECT {"verbose":false,"what":[1,{"a":2}]}\r\n')],
    "connect names in any case": [("a", b'CONNECT {"VERBOSE":false,"Pedantic":false}\r\nSUB foo 1\r\n')],
    "connect bad JSON": [("a", b"CONNECT {verbose}\r\n", END)],
    "connect not an object": [("a", b"CONNECT [1]\r\n", END)],
    "connect empty": [("a", b"CONNECT\r\n", END)],
    "connect wrong type": [("a", b'CONNECT {"verbose":"no"}\r\n', END)],
    "connect without a blank": [("a", b'CONNECT{"verbose":false}\r\nSUB foo 1\r\n')],
    "connect protocol 2": [("a", b'CONNECT {"verbose":false,"protocol":2}\r\n', END)],
    "connect no_responders without headers": [("a", b'CONNECT {"verbose":false,"no_responders":true}\r\n', END)],
    "connect account": [("a", b'CONNECT {"verbose":false,"account":"x"}\r\n', END)],
    "connect new_account": [("a", b'CONNECT {"verbose":false,"new_account":true}\r\n', END)],
    "connect repeated": [("a", OLD), ("a", b"SUB foo 1\r\n"), ("a", VERBOSE), ("a", b"PUB foo 1\r\nx\r\n"),
                         ("a", QUIET)],
    "no connect at all": [("a", b"SUB foo 1\r\n"), ("a", b"PUB foo 2\r\nhi\r\n"), ("a", b"UNSUB 1\r\n")],
    "second info once": [("a", QUIET), ("a", b"PING\r\n"), ("a", b"PING\r\n")],
    # Verbs and lines
    "verbs in any case": [("a", OLD), ("a", b"sub foo 1\r\nPuB foo 2\r\nhi\r\nunSUB 1\r\nping\r\nPonG\r\n")],
    "tabs and blanks": [("a", OLD), ("a", b"SUB \t foo\t \t1  \r\nPUB\tfoo  \t 2\t\r\nhi\r\n")],
    "LF alone": [("a", OLD), ("a", b"SUB foo 1\nPUB foo 2\nhi\r\nPING\n")],
    "payload needs CRLF": [("a", OLD), ("a", b"PUB foo 2\r\nhi\n", END)],
    "payload too long": [("a", OLD), ("a", b"PUB foo 2\r\nhiX", END)],
    "payload too short": [("a", OLD), ("a", b"PUB foo 5\r\nhi\r\nPING\r\n", END)],
    "unknown verb": [("a", OLD), ("a", b"FOO\r\n", END)],
    "unknown verb before its end": [("a", OLD), ("a", b"X", END)],
    "verb that begins well": [("a", OLD), ("a", b"SUX", END)],
    "server verb": [("a", OLD), ("a", b"MSG foo 1 2\r\nhi\r\n", END)],
    "http": [("a", b"GET / HTTP/1.1\r\n\r\n", END)],
    "empty line": [("a", OLD), ("a", b"\r\n", END)],
    "leading blank": [("a", OLD), ("a", b" PUB foo 2\r\nhi\r\n", END)],
    "pub without blank": [("a", OLD), ("a", b"PUB\r\n", END)],
    "pub without arguments": [("a", OLD), ("a", b"PUB \r\n", END)],
    "pub one argument": [("a", OLD), ("a", b"PUB foo\r\n", END)],
    "pub four arguments": [("a", OLD), ("a", b"PUB foo bar baz 2\r\nhi\r\n", END)],
    "pub bad size": [("a", OLD), ("a", b"PUB foo x\r\n", END)],
    "pub negative size": [("a", OLD), ("a", b"PUB foo -1\r\n", END)],
    "pub signed size": [("a", OLD), ("a", b"PUB foo +1\r\n", END)],
    "pub size of ten digits": [("a", OLD), ("a", b"PUB foo 0000000002\r\n", END)],
    "pub too large": [("a", OLD), ("a", b"SUB foo 1\r\nPUB foo 2\r\nhi\r\nPUB foo 1048577\r\n", END)],
    "pub nothing": [("a", OLD), ("a", b"SUB foo 1\r\nPUB foo 0\r\n\r\n")],
    "sub without arguments": [("a", OLD), ("a", b"SUB \r\n", END)],
    "sub one argument": [("a", OLD), ("a", b"SUB foo\r\n", END)],
    "sub four arguments": [("a", OLD), ("a", b"SUB foo q 1 2\r\n", END)],
    "unsub without arguments": [("a", OLD), ("a", b"UNSUB \r\n", END)],
    "unsub three arguments": [("a", OLD), ("a", b"UNSUB 1 2 3\r\n", END)],
    "unsub with a bad number": [("a", OLD), ("a", b"SUB foo 1\r\nUNSUB 1 x\r\nPUB foo 1\r\nx\r\n")],
    "control line too long": [("a", OLD), ("a", b"PUB " + b"a" * 5000 + b" 1\r\nx\r\n", END)],
    "control line too long and unfinished": [("a", OLD), ("a", b"SUB " + b"a" * 5000, END)],
    "control line just long enough": [("a", OLD), ("a", b"PUB " + b"a" * 4094 + b" 1\r\nx\r\n")],
    "ok and info are ignored": [("a", OLD), ("a", b"+OK\r\nINFO {}\r\n+ok whatever\r\nPING trailing\r\n")],
    "err closes": [("a", OLD), ("a", b"-ERR 'x'\r\n", END)],
    "err without text": [("a", OLD), ("a", b"-ERR\r\n", END)],
    "what came before an error is served": [("a", OLD), ("a", b"SUB foo 1\r\nPUB foo 1\r\nx\r\nNO\r\n", END)],
    "an operation in pieces": [("a", OLD), ("a", b"SUB fo", PARTIAL), ("a", b"o 1\r\nPU", PARTIAL),
                               ("a", b"B foo 5\r\nhe", PARTIAL), ("a", b"llo\r", PARTIAL), ("a", b"\n")],
    # Subjects and subscriptions
    "sub invalid subjects": [("a", OLD), ("a", b"SUB foo..bar 1\r\nSUB .foo 2\r\nSUB foo. 3\r\nSUB >.a 4\r\n"),
                             ("a", b"SUB a.>.b q 5\r\n")],
    "wildcards inside tokens are literal": [
        ("a", OLD), ("a", b"SUB foo* 1\r\nSUB a.>b 2\r\n"),
        ("a", b"PUB foobar 1\r\nx\r\nPUB foo* 1\r\ny\r\nPUB a.>b 1\r\nz\r\nPUB a.cb 1\r\nw\r\n")],
    "publish to a wildcard": [("a", OLD), ("a", b"SUB foo.* 1\r\nSUB foo.bar 2\r\n"), ("a", b"PUB foo.* 1\r\nx\r\n"),
                              ("a", b"PUB foo.> 1\r\ny\r\n")],
    "publish with empty tokens": [("a", OLD), ("a", b"SUB foo.*.bar 1\r\nSUB > 2\r\n"),
                                  ("a", b"PUB foo..bar 1\r\nx\r\n"),
                                  ("a", b"PUB .foo 1\r\ny\r\nPUB foo. 1\r\nz\r\n")],
    "pedantic": [("a", PEDANTIC), ("a", b"SUB foo.* 1\r\n"), ("a", b"PUB foo.* 1\r\nx\r\n"),
                 ("a", b"PUB foo..bar 1\r\nx\r\n"), ("a", b"PUB foo.bar 1\r\nx\r\n")],
    "wildcard matching": [
        ("a", OLD), ("a", b"SUB foo.* 1\r\n"),
        ("a", b"PUB foo.bar 1\r\nx\r\nPUB foo 1\r\nx\r\nPUB foo.a.b 1\r\nx\r\n")],
    "full wildcard matching": [
        ("a", OLD), ("a", b"SUB foo.> 1\r\n"),
        ("a", b"PUB foo.bar 1\r\nx\r\nPUB foo 1\r\nx\r\nPUB foo.a.b 1\r\nx\r\n")],
    "a sid in use": [("a", OLD), ("a", b"SUB foo 1\r\nSUB bar 1\r\n"), ("a", b"PUB foo 1\r\nx\r\nPUB bar 1\r\ny\r\n")],
    "sids are any text": [("a", OLD), ("a", b"SUB foo a%d%%b\r\nPUB foo 1\r\nx\r\nPUB foo r 1\r\ny\r\n")],
    "unsub of an unknown sid": [("a", VERBOSE), ("a", b"UNSUB 7\r\nUNSUB 7 3\r\n")],
    "unsub after": [("a", OLD), ("a", b"SUB foo 1\r\nUNSUB 1 2\r\n"),
                    ("a", b"PUB foo 1\r\n1\r\nPUB foo 1\r\n2\r\nPUB foo 1\r\n3\r\n"),
                    ("a", b"SUB foo 1\r\nPUB foo 1\r\n4\r\n")],
    "unsub after counts what was had": [
        ("a", OLD), ("a", b"SUB foo 1\r\nPUB foo 1\r\n1\r\nPUB foo 1\r\n2\r\nUNSUB 1 3\r\n"),
        ("a", b"PUB foo 1\r\n3\r\nPUB foo 1\r\n4\r\n"), ("a", b"SUB foo 2\r\nPUB foo 1\r\n5\r\nUNSUB 2 1\r\n"),
        ("a", b"PUB foo 1\r\n6\r\n")],
    "unsub after on a wildcard": [
        ("a", OLD), ("b", OLD), ("b", b"SUB foo.* 1\r\nPUB foo.a 1\r\n0\r\n"), ("b", b"UNSUB 1 3\r\n"),
        ("a", b"PUB foo.a 1\r\n1\r\nPUB foo.b 1\r\n2\r\nPUB foo.a 1\r\n3\r\nPUB foo.c 1\r\n4\r\n")],
    "two subscriptions of one connection": [
        ("a", OLD), ("a", b"SUB foo 1\r\nSUB foo 2\r\n"), ("a", b"PUB foo 1\r\nx\r\nPUB foo 1\r\ny\r\n")],
    "a queue group has one": [("a", OLD), ("a", b"SUB foo q 1\r\n"), ("a", b"PUB foo 1\r\nx\r\nPUB foo 1\r\ny\r\n")],
    "queue group beside plain": [("a", OLD), ("b", OLD), ("b", b"SUB foo q 7\r\n"), ("a", b"SUB foo 1\r\n"),
                                 ("a", b"PUB foo r 1\r\nx\r\nPUB foo 2\r\nyy\r\n")],
    "queue names are literal": [("a", OLD), ("a", b"SUB foo * 1\r\nSUB foo q.> 2\r\n"), ("a", b"UNSUB 2\r\n"),
                                ("a", b"PUB foo 1\r\nx\r\n")],
    "unsub of a queue member": [("a", OLD), ("b", OLD), ("a", b"SUB foo q 1\r\n"), ("b", b"SUB foo q 2\r\n"),
                                ("a", b"UNSUB 1\r\n"), ("a", b"PUB foo 1\r\nx\r\nPUB foo 1\r\ny\r\n")],
    # Delivery
    "mixed sizes, replies and headers in one read": [
        ("a", QUIET), ("b", QUIET), ("b", b"SUB foo.> 1\r\n"),
        ("a", b"PUB foo.a 1\r\nx\r\nPUB foo.b r 2\r\nyy\r\nHPUB foo.c 12 14\r\nNATS/1.0\r\n\r\nzz\r\n"
              b"HPUB foo.d r 12 12\r\nNATS/1.0\r\n\r\n\r\nPUB foo.e 0\r\n\r\n")],
    "fan-out": [("a", OLD), ("b", OLD), ("c", QUIET), ("a", b"SUB foo 1\r\n"), ("b", b"SUB foo 22\r\n"),
                ("c", b"SUB * 333\r\n"), ("a", b"PUB foo 3\r\nabc\r\nPUB foo 3\r\ndef\r\nPUB foo r 2\r\ngh\r\n")],
    "large payloads": [("a", OLD), ("b", OLD), ("b", b"SUB foo 1\r\n"),
                       ("a", b"".join(b"PUB foo r 20000\r\n%b\r\n" % (letter * 20000) for letter in (b"x", b"y")))],
    "headers to a client without": [
        ("a", QUIET), ("b", OLD), ("b", b"SUB foo 1\r\n"),
        ("a", b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nzz\r\nHPUB foo r 12 12\r\nNATS/1.0\r\n\r\n\r\nPUB foo 1\r\nx\r\n")],
    "header block of any bytes": [("a", QUIET), ("a", b"SUB foo 1\r\nHPUB foo 3 5\r\nabcde\r\n")],
    "header of size 0": [("a", QUIET), ("a", b"SUB foo 1\r\nHPUB foo 0 2\r\nhi\r\n")],
    "hpub without headers": [("a", OLD), ("a", b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nzz\r\n", END)],
    "hpub header larger than all": [("a", QUIET), ("a", b"HPUB foo 15 14\r\nNATS/1.0\r\n\r\nzz\r\n", END)],
    "hpub without header size": [("a", QUIET), ("a", b"HPUB foo 14\r\n", END)],
    "hpub bad header size": [("a", QUIET), ("a", b"HPUB foo x 14\r\n", END)],
    "no echo": [("a", NO_ECHO), ("b", OLD), ("a", b"SUB foo 1\r\n"), ("b", b"SUB foo 2\r\n"),
                ("a", b"PUB foo 1\r\nx\r\n"), ("b", b"PUB foo 1\r\ny\r\n")],
    "no echo in a queue group": [("a", NO_ECHO), ("b", OLD), ("a", b"SUB foo q 1\r\n"), ("b", b"SUB foo q 2\r\n"),
                                 ("a", b"PUB foo 1\r\nx\r\nPUB foo 1\r\ny\r\nPUB foo 1\r\nz\r\n")],
    "verbose answers each": [
        ("a", VERBOSE), ("a", b"SUB foo 1\r\nPUB foo 1\r\nx\r\nPUB bar 1\r\nx\r\nUNSUB 1\r\nPING\r\nSUB a..b 2\r\n")],
    # No responders
    "no responders": [("a", QUIET), ("a", b"SUB in.* 1\r\n"), ("a", b"PUB svc in.1 2\r\nhi\r\nPUB svc in.2 0\r\n\r\n")],
    "no responders without own subscription": [("a", QUIET), ("a", b"PUB svc in.1 2\r\nhi\r\n")],
    "no responders with a queue subscription": [("a", QUIET), ("a", b"SUB in.* q 1\r\nPUB svc in.1 2\r\nhi\r\n")],
    "no responders not asked for": [("a", OLD), ("a", b"SUB in.* 1\r\nPUB svc in.1 2\r\nhi\r\n")],
    "no responders to oneself without echo": [("a", NO_ECHO), ("a", b"SUB in.* 1\r\nSUB svc 2\r\n"),
                                              ("a", b"PUB svc in.1 2\r\nhi\r\n")],
    "a responder": [("a", QUIET), ("b", QUIET), ("a", b"SUB in.* 1\r\n"), ("b", b"SUB svc q 2\r\n"),
                    ("a", b"PUB svc in.1 2\r\nhi\r\n"), ("b", b"PUB in.1 3\r\nyes\r\n"), ("b", b"UNSUB 2\r\n"),
                    ("a", b"PUB svc in.1 2\r\nhi\r\n")],
    "inboxes": [("a", QUIET), ("b", QUIET), ("a", b"SUB _INBOX.x.* 1\r\n"),
                ("b", b"PUB _INBOX.x.1 1\r\na\r\nPUB _INBOX.x.2 1\r\nb\r\nPUB _INBOX.x.y.z 1\r\nc\r\n"),
                ("b", b"SUB _INBOX.x.2 5\r\n"), ("a", b"PUB _INBOX.x.1 1\r\na\r\nPUB _INBOX.x.2 1\r\nb\r\n"),
                ("b", b"UNSUB 5\r\n"), ("a", b"PUB _INBOX.x.2 1\r\nb\r\nUNSUB 1\r\nPUB _INBOX.x.2 1\r\nb\r\n")],
    "what looks like acks": [
        ("a", QUIET), ("b", QUIET), ("a", b"SUB $JS.ACK.S.C.> 1\r\n"),
        ("b", b"PUB $JS.ACK.S.C.1.2.3.4.5 1\r\na\r\nPUB $JS.ACK.S.C.2.3.4.5.6 1\r\nb\r\n"
              b"PUB $JS.ACK.S.D.1.2.3.4.5 1\r\nc\r\n"),
        ("b", b"SUB $JS.ACK.S.C.2.*.*.*.* 7\r\n"),
        ("a", b"PUB $JS.ACK.S.C.1.2.3.4.5 1\r\na\r\nPUB $JS.ACK.S.C.2.3.4.5.6 1\r\nb\r\n"
              b"PUB $JS.ACK.S.C.1 1\r\nc\r\n"),
        ("b", b"UNSUB 7\r\n"), ("a", b"PUB $JS.ACK.S.C.2.3.4.5.6 1\r\nb\r\n")],
    # Subjects that clients may not publish to
    "reserved replies": [
        ("a", OLD), ("a", b"SUB foo 1\r\n"),
        ("a", b"PUB foo _R_.abc 1\r\nx\r\nPUB foo ok 1\r\ny\r\n"
              b"PUB foo $JS.ACK.a.b 1\r\nz\r\nPUB foo _GR_.a.b 1\r\nw\r\n"),
        ("a", b"PUB foo _R_ 1\r\nx\r\nPUB foo $JS.ACK 1\r\ny\r\n")],
    "reserved subjects": [
        ("a", QUIET), ("a", b"SUB > 1\r\n"), ("a", b"PUB $NRG.a 1\r\nx\r\nPUB _GR_.a.b 1\r\ny\r\nPUB $NRG 1\r\nz\r\n")],
    "reserved, verbosely": [("a", VERBOSE), ("a", b"PUB $NRG.a 1\r\nx\r\nPUB foo _R_.a 1\r\ny\r\nPUB foo 1\r\nz\r\n")],
    "system queue group": [("a", OLD), ("a", b"SUB foo _sys_ 1\r\nPUB foo 1\r\nx\r\n")],
}

USER = ["--user", "u", "--pass", "secret"]
TOKEN = ["--auth", "t0ken"]
GUARDED: dict[str, tuple[list[str], dict[str, Any], list[Step]]] = {
    "user": (USER, {"user": "u", "password": "secret"},
             [("a", b'CONNECT {"verbose":false,"user":"u","pass":"secret"}\r\n'),
              ("a", b"SUB foo 1\r\nPUB foo 1\r\nx\r\n")]),
    "wrong password": (USER, {"user": "u", "password": "secret"},
                       [("a", b'CONNECT {"verbose":false,"user":"u","pass":"x"}\r\n', END)]),
    "no password": (USER, {"user": "u", "password": "secret"}, [("a", b'CONNECT {"verbose":false}\r\n', END)]),
    "ping first": (USER, {"user": "u", "password": "secret"}, [("a", b"PING\r\n", END)]),
    "connect in pieces": (USER, {"user": "u", "password": "secret"},
                          [("a", b"CONN", PARTIAL), ("a", b'ECT {"verbose":false,"user":"u","pass":"secret"}\r\n')]),
    "token": (TOKEN, {"token": "t0ken"}, [("a", b'CONNECT {"verbose":false,"auth_token":"t0ken"}\r\n')]),
    "wrong token": (TOKEN, {"token": "t0ken"}, [("a", b'CONNECT {"verbose":false,"auth_token":"token"}\r\n', END)]),
}

ANY_ORDER = {"two subscriptions of one connection"}
"""Dialogues in which nats-server serves subscriptions in the order of a Go map."""

CONFIGURED: dict[str, tuple[str, dict[str, Any], list[Step]]] = {
    "authentication timeout": ("authorization { user: u, password: p, timeout: 0.2 }",
                               {"user": "u", "password": "p", "timeout_ns": 200_000_000}, [("a", b"", END)]),
    "no auth user": ("authorization { timeout: 60, users: [ { user: u, password: p } ] }\nno_auth_user: u",
                     {"users": (User("u", "p"),), "no_auth_user": "u"},
                     [("a", b"PING\r\n"), ("b", OLD), ("b", b"SUB foo 1\r\nPUB foo 1\r\nx\r\n"),
                      ("c", b'CONNECT {"user":"u","pass":"q"}\r\n', END)]),
    "no headers": ("no_header_support: true", {"no_header_support": True},
                   [("a", b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n'),
                    ("a", b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nzz\r\n", END)]),
    "small payloads": ("max_payload: 10", {"max_payload": 10},
                       [("a", OLD), ("a", b"SUB foo 1\r\nPUB foo 10\r\n0123456789\r\nPUB foo 11\r\n", END)]),
    "one connection": ("max_connections: 1", {"max_connections": 1}, [("a", OLD), ("b", b"", END)]),
    "two subscriptions": ("max_subscriptions: 2", {"max_subscriptions": 2},
                          [("a", OLD), ("a", b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\n"), ("a", b"UNSUB 1\r\nSUB c 3\r\n")]),
    "stale": ('ping_interval: "100ms"\nping_max: 1', {"ping_interval_ns": 100_000_000, "ping_max": 1},
              [("a", OLD, END)]),
}

SHOWS: dict[str, tuple[str, ...]] = {
    "accounts.global": ("second info once",),
    "core.info": ("second info once",),
    "core.connect": ("connect *",),
    "core.verbose": ("verbose answers each",),
    "core.errors": ("unknown verb*", "err closes", "server verb", "what came before an error is served"),
    "core.pub": ("pub *", "hpub *", "verbs in any case", "tabs and blanks", "LF alone", "payload *",
                 "an operation in pieces"),
    "core.sub": ("sub *", "unsub *"),
    "core.wildcards": ("wildcard*", "full wildcard matching", "publish to a wildcard"),
    "core.no_header_support": ("no headers",),
    "core.max_connections": ("one connection",),
    "core.max_subscriptions": ("two subscriptions",),
    "core.ping": ("stale",),
    "auth.none": ("connect defaults are verbose",),
    "auth.password": ("user", "wrong password", "no password"),
    "auth.token": ("token", "wrong token"),
    "auth.timeout": ("authentication timeout",),
    "auth.no_auth_user": ("no auth user",),
    "core.no_echo": ("no echo*",),
    "core.no_responders": ("no responders*",),
    "core.pedantic": ("pedantic",),
    "core.reserved_replies": ("reserved replies",),
    "core.max_payload": ("pub too large", "small payloads"),
    "core.max_control_line": ("control line *",),
}
"""Features with the names of dialogues that show them, for docs/COMPATIBILITY.md (``*`` as in file names)."""
