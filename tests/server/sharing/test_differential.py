"""Accounts that share, beside the real nats-server: one configuration file, the same dialogues, the same messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsServerProcess
from tests.server.sharing.dialogue import Step, both, hpub

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
server_name: s
authorization { timeout: 60 }
accounts {
  A {
    users: [ {user: a, password: a}, {user: ares, password: ares, permissions: {
                publish: {deny: ">"}, subscribe: ["req.>", "_INBOX.>"], allow_responses: true}} ]
    exports: [
      {service: "req.*"}, {service: "two.*.*"}, {service: "rest.>"}, {service: "private", accounts: [B]}
      {service: "many", response_type: stream}, {service: "chunks", response_type: chunked}
      {service: "slow", response_threshold: "300ms"}, {service: "shared"}
      {service: "mine.*", account_token_position: 2}
      {service: "timed", latency: {subject: "lat.timed", sampling: 100}}
      {service: "asked", latency: {subject: "lat.asked", sampling: headers}}
      {service: "timedslow", response_threshold: "300ms", latency: "lat.slow"}
      {service: "traced", allow_trace: true}, {service: "mapped.*"}
      {stream: "ev.>"}, {stream: "lit"}, {stream: "swap.*.*"}, {stream: "only", accounts: [B]}, {stream: "sometoken.*"}
      {stream: "open"}
    ]
    mappings: { "mapped.*": "target.{{wildcard(1)}}" }
  }
  B {
    users: [ {user: b, password: b}, {user: deny, password: deny, permissions: {
                publish: {deny: "api.no"}, subscribe: {deny: "from.a.ev.no"}}}
             {user: sub, password: sub, permissions: {subscribe: ["from.a.ev.yes", "_INBOX.>"]}} ]
    imports: [
      {service: {account: A, subject: "req.*"}, to: "api.*"}
      {service: {account: A, subject: "two.*.*"}, to: "flip.$2.$1"}
      {service: {account: A, subject: "rest.>"}}
      {service: {account: A, subject: "private"}}, {service: {account: A, subject: "many"}}
      {service: {account: A, subject: "chunks"}}, {service: {account: A, subject: "slow"}}
      {service: {account: A, subject: "shared"}, share: true}, {service: {account: A, subject: "mine.B"}}
      {service: {account: A, subject: "timed"}}, {service: {account: A, subject: "asked"}, share: true}
      {service: {account: A, subject: "timedslow"}}
      {service: {account: A, subject: "traced"}}, {service: {account: A, subject: "mapped.*"}}
      {stream: {account: A, subject: "ev.>"}, prefix: "from.a"}
      {stream: {account: A, subject: "lit"}, to: "local.lit"}
      {stream: {account: A, subject: "swap.*.*"}, to: "swapped.$2.$1"}
      {stream: {account: A, subject: "only"}}
      {stream: {account: A, subject: "sometoken.*"}, to: "{{wildcard(1)}}.token"}
      {stream: {account: A, subject: "open"}, allow_trace: true}
      {service: {account: D, subject: "both"}}, {service: {account: E, subject: "both"}}
      {stream: {account: D, subject: "st.*"}, prefix: "x"}, {stream: {account: E, subject: "st.*"}, prefix: "x"}
      {service: {account: D, subject: "lit"}, to: "wide.*"}, {stream: {account: D, subject: "evs"}, to: "back"}
    ]
    exports: [ {service: "api.*"}, {stream: "loop"} ]
  }
  D {
    users: [ {user: d, password: d} ]
    exports: [ {service: "both"}, {stream: "st.*"}, {service: "lit"}, {service: "own"}, {stream: "evs"} ]
    imports: [ {service: {account: D, subject: "own"}, to: "self"}
               {stream: {account: B, subject: "loop"}, to: "evs2"} ]
  }
  E { users: [ {user: e, password: e} ], exports: [ {service: "both"}, {stream: "st.*"} ] }
  C {
    users: [ {user: c, password: c} ]
    imports: [ {service: {account: B, subject: "api.*"}, to: "far.*", share: true}
               {stream: {account: A, subject: "ev.x"}} ]
  }
  M {
    users: [ {user: m, password: m}, {user: mp, password: mp, permissions: {publish: ["plain", "to.allowed"]}} ]
    mappings: {
      plain: to.plain
      "swap.*.*": "to.$2.$1"
      "rest.>": "to.rest.>"
      "part.*": "to.part.{{partition(5,1)}}"
      "left.*": "to.{{left(1,2)}}.{{right(1,2)}}"
      "split.*": "to.{{split(1,-)}}"
      "cut.*": "to.{{splitFromLeft(1,3)}}"
      "slice.*": "to.{{sliceFromRight(1,2)}}"
      "none": [ {destination: "to.never", weight: 0} ]
      "lost": [ {destination: "lost", weight: 0} ]
      "all": [ {destination: "to.all", weight: 100} ]
      "clustered": [ {destination: "to.clustered", weight: 100, cluster: east} ]
      "allowed": to.allowed
      "denied": to.denied
      "loop.a": "loop.b"
      "loop.b": "loop.c"
    }
  }
}
"""

INBOX = ("b", b"SUB _INBOX.> 1\r\n")

DIALOGUES: dict[str, list[Step]] = {
    # Service imports
    "a request and its response": [
        INBOX, ("a", b"SUB req.* 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"), ("a", b"PUB {R} 3\r\nyes\r\n"),
        ("a", b"PUB {R} 5\r\nagain\r\n")],
    "a second response is not delivered": [
        INBOX, ("a", b"SUB req.* 1\r\nSUB x 2\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} x 3\r\nyes\r\nPUB {R} x 5\r\nagain\r\n")],
    "a request with headers": [
        INBOX, ("a", b"SUB req.* 1\r\n"), ("b", hpub(b"api.u", b"_INBOX.1", {"X": "1", "Y": "2"}, b"hi")),
        ("a", hpub(b"{R}", b"", {"Z": "3"}, b"yes"))],
    "request information of the client's own is replaced": [
        INBOX, ("a", b"SUB req.* 1\r\n"),
        ("b", hpub(b"api.u", b"_INBOX.1", {"Nats-Request-Info": '{"acc":"X"}', "Y": "2"}, b""))],
    "a request without a reply subject": [("a", b"SUB req.* 1\r\n"), ("b", b"PUB api.u 2\r\nhi\r\n")],
    "nobody responds": [INBOX, ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"), ("b", b"PUB nothing _INBOX.2 2\r\nhi\r\n")],
    "somebody responds in the own account": [
        INBOX, ("b2", b"SUB api.u 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("b2", b"PUB _INBOX.1 2\r\nok\r\n")],
    "both accounts respond": [
        INBOX, ("a", b"SUB req.* 1\r\n"), ("b2", b"SUB api.u 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("b2", b"PUB _INBOX.1 2\r\nok\r\n"), ("a", b"PUB {R} 3\r\nyes\r\n")],
    "tokens change places": [
        INBOX, ("a", b"SUB two.> 1\r\n"), ("b", b"PUB flip.x.y _INBOX.1 2\r\nhi\r\n"), ("a", b"PUB {R} 0\r\n\r\n")],
    "the rest of a subject": [INBOX, ("a", b"SUB > 1\r\n"), ("b", b"PUB rest.x.y.z 2\r\nhi\r\nPUB rest 1\r\nx\r\n")],
    "a private service": [INBOX, ("a", b"SUB private 1\r\n"), ("b", b"PUB private _INBOX.1 2\r\nhi\r\n")],
    "an account's own token": [
        INBOX, ("a", b"SUB mine.* 1\r\n"), ("b", b"PUB mine.B _INBOX.1 2\r\nhi\r\nPUB mine.C _INBOX.1 2\r\nhi\r\n")],
    "a stream of responses": [
        INBOX, ("a", b"SUB many 1\r\n"), ("b", b"PUB many _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 1\r\n1\r\nPUB {R} 1\r\n2\r\n"), ("a", b"PUB {R} 1\r\n3\r\n"), ("a", b"PUB {R} 0\r\n\r\n"),
        ("a", b"PUB {R} 1\r\n4\r\n")],
    "chunks of a response": [
        INBOX, ("a", b"SUB chunks 1\r\n"), ("b", b"PUB chunks _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 1\r\n1\r\n"), ("a", hpub(b"{R}", b"", {"End": "no"}, b"")),
        ("a", b"PUB {R} 0\r\n\r\nPUB {R} 1\r\n4\r\n")],
    "a stream of responses that nobody wants any more": [
        INBOX, ("a", b"SUB many 1\r\nSUB x 2\r\n"), ("b", b"PUB many _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} x 1\r\n1\r\n"),
        ("b", b"UNSUB 1\r\n"), ("a", b"PUB {R} x 1\r\n2\r\n"), ("b", b"SUB _INBOX.> 1\r\n"),
        ("a", b"PUB {R} x 1\r\n3\r\n")],
    "shared information": [INBOX, ("a", b"SUB shared 1\r\n"), ("b", b"PUB shared _INBOX.1 2\r\nhi\r\n")],
    "a queue group responds": [
        INBOX, ("a", b"SUB req.* q 1\r\n"), ("a2", b"SUB other q 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 3\r\nyes\r\n")],
    "through two imports": [
        ("c", b"SUB _INBOX.> 1\r\n"), ("a", b"SUB req.* 1\r\n"), ("c", b"PUB far.u _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 3\r\nyes\r\n")],
    "nobody responds behind two imports": [("c", b"SUB _INBOX.> 1\r\n"), ("c", b"PUB far.u _INBOX.1 2\r\nhi\r\n")],
    "a response that is a request": [
        INBOX, ("a", b"SUB req.* 1\r\nSUB _INBOX.a 2\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} _INBOX.a 3\r\nand\r\n"), ("b", b"PUB {R} 4\r\nthen\r\n")],
    "many requests at once": [
        INBOX, ("a", b"SUB req.* 1\r\n"),
        ("b",
         b"".join(b"PUB api.u%d _INBOX.%d 1\r\nx\r\n" % (i, i) for i in range(20)) + b"PUB none _INBOX.n 0\r\n\r\n")],
    "reserved replies": [("b", b"PUB api.u _R_.x 2\r\nhi\r\nPUB _R_.xxxxxx.y 2\r\nhi\r\n")],
    "a reply for acks is passed on": [("a", b"SUB req.* 1\r\n"), ("b", b"PUB api.u $JS.ACK.x 1\r\n1\r\n")],
    "a mapping in the exporting account": [
        INBOX, ("a", b"SUB mapped.* 1\r\nSUB target.* 2\r\n"), ("b", b"PUB mapped.u _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 3\r\nyes\r\n")],
    "imported requests do not go on into stream imports": [
        ("b", b"SUB from.a.ev.> 1\r\n"), ("a", b"PUB ev.x 1\r\nx\r\n"), ("b", b"PUB rest.ev 1\r\nx\r\n")],
    "permissions are the importing account's": [
        ("deny", b"SUB _INBOX.> 1\r\n"), ("a", b"SUB req.* 1\r\n"), ("deny", b"PUB api.no _INBOX.1 2\r\nhi\r\n"),
        ("deny", b"PUB api.yes _INBOX.1 2\r\nhi\r\n")],
    "permission to respond": [
        INBOX, ("ares", b"SUB req.* 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("ares", b"PUB {R} 3\r\nyes\r\n"),
        ("ares", b"PUB {R} 3\r\nyes\r\n")],
    # Stream imports
    "a prefix": [
        ("b", b"SUB from.a.ev.> 1\r\nSUB from.a.ev.x 2\r\nSUB ev.x 3\r\n"),
        ("a", b"PUB ev.x 2\r\nhi\r\nPUB ev 2\r\nno\r\n"),
        ("a", b"PUB ev.x.y reply 2\r\nhi\r\n"), ("b", b"PUB from.a.ev.x 3\r\nown\r\n"), ("b", b"UNSUB 1\r\n"),
        ("a", b"PUB ev.x 2\r\nhi\r\n")],
    "wider subscriptions": [
        ("b", b"SUB > 1\r\nSUB from.> 2\r\nSUB *.a.*.* 3\r\nSUB *.*.ev.x 4\r\nSUB from.a.x.> 5\r\n"),
        ("a", b"PUB ev.x 2\r\nhi\r\n"),
        ("a", b"PUB ev.y 2\r\nhi\r\nPUB other 2\r\nno\r\n")],
    "a literal": [("b", b"SUB local.* 1\r\nSUB lit 2\r\n"), ("a", b"PUB lit 2\r\nhi\r\n")],
    "streams' tokens change places": [
        ("b", b"SUB swapped.*.x 1\r\nSUB swapped.y.* 2\r\nSUB swapped.> 3\r\nSUB swapped.y.z 4\r\n"),
        ("a", b"PUB swap.x.y 2\r\nhi\r\n")],
    "a token at the front": [
        ("b", b"SUB *.token 1\r\nSUB z.token 2\r\nSUB y.* 3\r\n"),
        ("a", b"PUB sometoken.z 2\r\nhi\r\nPUB sometoken.y 2\r\nhi\r\n")],
    "an import of a part": [("c", b"SUB ev.> 1\r\nSUB ev.* 2\r\nSUB ev.x 3\r\n"),
        ("a", b"PUB ev.x 2\r\nhi\r\nPUB ev.y 2\r\nno\r\n")],
    "queue groups": [
        ("b", b"SUB from.a.ev.x q 1\r\n"), ("b2", b"SUB from.a.ev.y q 1\r\n"),
        ("a", b"PUB ev.x 2\r\nhi\r\nPUB ev.y 2\r\nhi\r\n")],
    "headers": [("b", b"SUB from.> 1\r\n"), ("a", hpub(b"ev.x", b"rep", {"X": "1"}, b"hi"))],
    "subscribers elsewhere are responders": [
        ("b", b"SUB from.> 1\r\n"), ("a", b"SUB _INBOX.> 1\r\n"),
        ("a", b"PUB ev.x _INBOX.1 2\r\nhi\r\nPUB lit _INBOX.1 1\r\nx\r\n")],
    "denied deliveries": [("deny", b"SUB from.> 1\r\nSUB from.a.ev.no 2\r\n"),
        ("a", b"PUB ev.no 2\r\nno\r\nPUB ev.ok 2\r\nhi\r\n")],
    "permitted subscriptions": [("sub", b"SUB from.> 1\r\nSUB from.a.ev.yes 2\r\n"),
        ("a", b"PUB ev.yes 2\r\nhi\r\nPUB ev.no 2\r\nno\r\n")],
    "imports do not chain": [("c", b"SUB from.> 1\r\n"), ("a", b"PUB ev.x 2\r\nhi\r\n")],
    "a private stream": [("b", b"SUB only 1\r\n"), ("c", b"SUB only 1\r\n"), ("a", b"PUB only 2\r\nhi\r\n")],
    "the same message for two subscriptions of a connection": [
        ("b", b"SUB from.a.ev.x 1\r\nSUB from.a.ev.x 2\r\nSUB from.a.ev.* 3\r\n"),
        ("a", b"PUB ev.x 1\r\n1\r\nPUB ev.x 1\r\n2\r\n")],
    "two accounts have the service": [
        INBOX, ("d", b"SUB both 1\r\n"), ("b", b"PUB both _INBOX.1 1\r\n1\r\n"), ("e", b"SUB both 1\r\n"),
        ("b", b"PUB both _INBOX.2 1\r\n2\r\n"), ("d", b"PUB {R} 1\r\nd\r\n"), ("e", b"PUB {R} 1\r\ne\r\n")],
    "two accounts have the stream": [
        ("b", b"SUB x.st.* 1\r\nSUB x.st.1 q 2\r\n"), ("d", b"PUB st.1 1\r\nd\r\n"), ("e", b"PUB st.1 1\r\ne\r\n")],
    "a wide subject for a literal one": [
        INBOX, ("d", b"SUB lit 1\r\n"), ("b", b"PUB wide.x _INBOX.1 1\r\n1\r\nPUB wide.y 1\r\n2\r\n"),
        ("d", b"PUB {R} 1\r\nd\r\n")],
    "an account imports its own service": [
        ("d", b"SUB own 1\r\nSUB _INBOX.> 2\r\n"), ("d", b"PUB self _INBOX.1 1\r\n1\r\n"),
        ("d", b"PUB {R} 1\r\nd\r\n")],
    "clients without headers": [
        ("a", b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\nSUB req.* 1\r\n'), INBOX,
        ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"), ("a", b"PUB {R} 3\r\nyes\r\n")],
    "verbose clients": [
        ("b", b'CONNECT {"headers":true,"no_responders":true,"user":"b","pass":"b"}\r\nSUB _INBOX.> 1\r\n'),
        ("a", b"SUB req.* 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\nPUB none _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 3\r\nyes\r\n")],
    "no echo": [
        ("b", b'CONNECT {"verbose":false,"echo":false,"user":"b","pass":"b"}\r\nSUB _INBOX.> 1\r\nSUB api.u 2\r\n'),
        ("a", b"SUB req.* 1\r\n"), ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"), ("a", b"PUB {R} 3\r\nyes\r\n")],
    "a subscription ends after some messages in its own account": [
        ("b", b"SUB from.a.ev.x 1\r\nUNSUB 1 2\r\n"), ("b2", b"PUB from.a.ev.x 1\r\n1\r\nPUB from.a.ev.x 1\r\n2\r\n"),
        ("a", b"PUB ev.x 1\r\n3\r\n"), ("b2", b"PUB from.a.ev.x 1\r\n4\r\n")],
    "connections end": [
        ("b", b"SUB from.a.ev.x 1\r\nSUB _INBOX.> 2\r\n"), ("a", b"SUB req.* 1\r\n"),
        ("b", b"PUB api.u _INBOX.1 2\r\nhi\r\n"),
        ("b", b"UNSUB 1\r\nUNSUB 2\r\n"), ("a", b"PUB ev.x 1\r\nx\r\nPUB {R} 1\r\nx\r\n")],
    # Mappings
    "subjects are mapped": [
        ("m", b"SUB > 1\r\n"),
        ("m", b"PUB plain 1\r\nx\r\nPUB swap.1.2 1\r\nx\r\nPUB rest.1.2 1\r\nx\r\nPUB other 1\r\nx\r\n"),
        ("m", b"PUB part.a 1\r\nx\r\nPUB part.b 1\r\nx\r\nPUB part.abc 1\r\nx\r\n"),
        ("m",
         b"PUB left.abcdef 1\r\nx\r\nPUB split.a-b-c 1\r\nx\r\nPUB cut.abcdef 1\r\nx\r\nPUB slice.abcde 1\r\nx\r\n"),
        ("m", b"PUB none 1\r\nx\r\nPUB lost 1\r\nx\r\nPUB all 1\r\nx\r\nPUB clustered 1\r\nx\r\n"),
        ("m", b"PUB loop.a 1\r\nx\r\nPUB loop.b 1\r\nx\r\n")],
    "no responders name the mapped subject": [
        ("m", b"SUB _INBOX.> 1\r\n"),
        ("m", b"PUB plain _INBOX.1 1\r\nx\r\nPUB other _INBOX.1 1\r\nx\r\nPUB lost _INBOX.1 1\r\nx\r\n")],
    "the source has no subscribers": [("m", b"SUB plain 1\r\nSUB to.plain 2\r\n"), ("m", b"PUB plain 1\r\nx\r\n")],
    "permissions are for mapped subjects": [
        ("mp", b"SUB > 1\r\n"), ("mp", b"PUB plain 1\r\nx\r\n"), ("mp", b"PUB allowed 1\r\nx\r\n"),
        ("mp", b"PUB denied 1\r\nx\r\n"),
        ("mp", b"PUB to.allowed 1\r\nx\r\n")],
    # Latency
    "a measured request": [
        INBOX, ("a2", b"SUB lat.> 1\r\n"), ("a", b"SUB timed 1\r\n"), ("b", b"PUB timed _INBOX.1 2\r\nhi\r\n"),
        ("a", b"PUB {R} 3\r\nyes\r\n"), ("a2", b"", b"}\r\n")],
    "a measured request without a reply subject": [
        ("a2", b"SUB lat.> 1\r\n"), ("a", b"SUB timed 1\r\n"), ("b", b"PUB timed 2\r\nhi\r\n"), ("a2", b"", b"}\r\n")],
    "a measured request that nobody receives": [
        INBOX, ("a2", b"SUB lat.> 1\r\n"), ("b", b"PUB timed _INBOX.1 2\r\nhi\r\n"), ("a2", b"", b"}\r\n")],
    "a measured request without a response": [
        INBOX, ("a2", b"SUB lat.> 1\r\n"), ("a", b"SUB timedslow 1\r\n"), ("b", b"PUB timedslow _INBOX.1 2\r\nhi\r\n"),
        ("a2", b"", b"}\r\n"), ("a", b"PUB {R} 4\r\nlate\r\n")],
    "a measured request whose sender is gone": [
        ("b", b"SUB _INBOX.1 1\r\n"), ("a2", b"SUB lat.> 1\r\n"), ("a", b"SUB timed 1\r\n"),
        ("b", b"PUB timed _INBOX.1 2\r\nhi\r\n"),
        ("b", b"UNSUB 1\r\n"), ("a2", b"", b"}\r\n")],
    **{f"measured because of {name}": [
        INBOX, ("a2", b"SUB lat.> 1\r\n"), ("a", b"SUB asked 1\r\n"),
        ("b", hpub(b"asked", b"_INBOX.1", {**given, "Other": "x"}, b"")),
        ("a", b"PUB {R} 3\r\nyes\r\n"), ("a2", b"", b"}\r\n")] for name, given in {
            "uber": {"Uber-Trace-Id": "479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:1", "Uberctx-X": "alice"},
            "b3": {"b3": "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90"},
            "b3 in parts": {"X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7", "X-B3-SpanId": "e457b5a2e4d86bd1",
                            "X-B3-Sampled": "1"},
            "b3 without a decision": {"X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7"},
            "traceparent": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "Tracestate": "x=y"},
        }.items()},
    **{f"not measured because of {name}": [
        INBOX, ("a2", b"SUB lat.> 1\r\nSUB end 2\r\n"), ("a", b"SUB asked 1\r\n"),
        ("b", hpub(b"asked", b"_INBOX.1", given, b"")),
        ("a", b"PUB {R} 3\r\nyes\r\nPUB end 0\r\n\r\n")] for name, given in {
            "uber": {"Uber-Trace-Id": "479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:0"},
            "b3": {"b3": "0"}, "b3 with a span": {"B3": "a-b-0"},
            "b3 sampled": {"X-B3-Sampled": "0", "X-B3-TraceId": "a"},
            "traceparent": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"},
            "nothing": {"X": "1"},
        }.items()},
    # Requests of users about themselves
    "user information": [
        ("sub", b"SUB _INBOX.> 1\r\n"), ("sub", b"PUB $SYS.REQ.USER.INFO _INBOX.1 0\r\n\r\n", b"}\r\n"),
        ("c", b"SUB _INBOX.> 1\r\n"), ("c", b"PUB $SYS.REQ.USER.INFO _INBOX.1 0\r\n\r\n", b"}\r\n"),
        ("c", b"PUB $SYS.REQ.USER.INFO 0\r\n\r\n")],
    # Expiry
    "a response that comes too late": [
        INBOX, ("a", b"SUB slow 1\r\nSUB x 2\r\n"), ("a2", b"SUB lat.slow 1\r\nSUB timedslow 2\r\n"),
        ("b", b"PUB slow _INBOX.1 2\r\nhi\r\nPUB timedslow _INBOX.1 2\r\nhi\r\n"), ("a2", b"", b"}\r\n"),
        ("a", b"PUB {R} x 4\r\nlate\r\n")],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ports(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[int, int]]:
    path = tmp_path_factory.mktemp("sharing") / "sharing.conf"
    path.write_text(CONFIG)
    async with NatsServerProcess("-c", str(path)) as real, BrokerProcess("-c", str(path)) as ours:
        yield real.port, ours.port


@pytest.mark.shows("accounts.stream_sharing", "accounts.service_sharing", "accounts.mappings")
@pytest.mark.parametrize("name", DIALOGUES)
async def test_dialogue(name: str, ports: tuple[int, int]) -> None:
    """Both servers send the same messages in a dialogue."""
    real, ours = await both(*ports, DIALOGUES[name])
    assert ours == real
    assert any(frames for _, frames in real) or "not" in name
