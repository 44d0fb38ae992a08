"""Plays scenarios of publishing and consuming to a server, over a raw connection, and records the answers.

A scenario is a list of steps, one a line, for a stream S on servers without streams. ``200ms`` within JSON stands for
200000000. The compared results are in brackets.

    stream {…}                  STREAM.CREATE.S of {"name": "S", "subjects": ["s.>"], …}                   [its answer]
    consumer C {…}              CONSUMER.CREATE.S.C of {"durable_name": "C", "ack_policy": "explicit", …}  [its answer]
    make NAME {…}               STREAM.CREATE.NAME of {"name": NAME, …}                                    [its answer]
    grown NAME N                wait until its last sequence is N and its origins are active                 [its info]
    failed NAME                 wait until an origin of it has an error                                      [its info]
    msgs NAME                   each message of the stream: sequence, subject, headers, payload           [all of them]
    api SUBJECT BODY            a request to $JS.API.SUBJECT                                               [its answer]
    tell SUBJECT BODY           the same without a reply subject
    pub[Name: value; …] SUBJECT BODY        a JetStream publish                                            [its PubAck]
    into[Name: value; …] REPLY SUBJECT BODY     a publish with this reply subject (``-``: none), without waiting
    fill N SUBJECT              N publishes with bodies 1..N; a ``#`` in the subject becomes the number   [last PubAck]
    sub BOX SUBJECT QUEUE       subscribe under a name of its own (SUBJECT: that of the box; QUEUE: none)
    unsub BOX
    pull C BOX BODY             CONSUMER.MSG.NEXT.S.C answered into the box; ``@pin2`` is the second pin received
    get BOX N                   wait for N messages of the box                                            [all of them]
    until BOX TEXT              wait for a message with TEXT in its headers                       [all up to that one]
    rest BOX                    other messages within a short time                                        [all of them]
    drop BOX                    forget the messages received so far, undelivered or not
    ack BOX N PAYLOAD           answer the Nth delivery of the box
    ask BOX N PAYLOAD           the same with a reply subject                                               [the reply]
    nxt BOX N TO BODY           answer it with +NXT, the next messages going to box TO
    flow BOX SEQ CSEQ           answer the last flow control request of the box; with sequences, that acks up to them
    info C                      CONSUMER.INFO, once it no longer changes                                     [its info]
    state                       STREAM.INFO's state, once it no longer changes                              [the state]
    sleep 100ms

Ack subjects, times, ids and the player's reply subjects are normalized; everything else is compared, to the byte. Steps
that wait until something no longer changes send any number of requests: if a box receives requests, ``api`` sends one.

Servers are compared by ``compare``, which plays more and more slowly: all times in ms are then multiplied.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from tests.jetstream.schemas import broken

__all__ = ["Played", "Player", "compare", "steps_of"]

SECONDS = 5.0
PATIENT_SECONDS = 30.0
"""The timeout of requests that are not compared."""
GROWN_SECONDS = 5.0
"""The time until a stream has grown: nats-server retries a missing origin after some time."""
SILENCE_SECONDS = 0.15
"""The time after which no more messages are expected in a box."""
SILENT_SECONDS = 0.8
"""The time after which a publish gets no answer any more."""
STILL_SECONDS = 0.02
TAKEN_SECONDS = 0.02
"""A pause after steps without answers: nats-server has queues of their own for acks, pulls and API requests."""
NOT_GONE_YET = 10049
"""The code of nats-server's "error creating store": it removes the directory of a deleted stream after answering."""
NOT_GONE_TRIES = 100
"""The tries, some 5 s, after which the error has another reason: a name that no directory can have."""

_STEP = re.compile(r"(\w+)(?:\[([^]]*)\])? ?(.*)", re.DOTALL)
_CONTINUED = re.compile(r"([,;])\n {12,}")
_MILLISECONDS = re.compile(r"\b(\d+)ms\b")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_NANOS = re.compile(r"\b\d{19}\b")
_FLOW_ID = re.compile(r"(\$JS\.FC\.\w+\.\w+\.)\w+")
_SOURCE_IDENTITY = re.compile(r"(Nats-Stream-Source: [^ \r]+ \d+ [^ \r]+ [^ \r]+ [^ \r]+ )\w{8}")
_AUTO_ACK = re.compile(r"(\$JS\.ACK\.\w+\.)[0-9A-Za-z]{8}\.")
_PIN = re.compile(r"(Nats-Pin-Id: )[0-9A-Za-z]{22}")
_IDENTITY = re.compile(r"(Nats-Stream-Identity: |identity does not match: )\w{8}")
_PIN_NUMBER = re.compile(r"@pin(\d)")
_ANSWER = re.compile(r"\b_R\.\d+")
_AUTO_NAME = re.compile(r"[0-9A-Za-z]{8}")
_NUID = re.compile(r"[0-9A-Za-z]{22}")
_NOT_COMPARED = {"id", "server", "api", "ack_time", "ts", "created", "last_active", "first_ts", "last_ts", "leader",
                 "_nats.ver", "pause_remaining", "raft_group"}
_TRIES = (1, 1, 2, 4, 8)
"""The slowness of each try."""

Played = list[tuple[str, Any]]
"""The steps of a scenario, with their compared results."""


def steps_of(scenario: str) -> str:
    """Return a scenario with each step in one line.

    A step that is written over several lines breaks after a comma or semicolon, and is indented by 12 spaces or more.
    """
    return _CONTINUED.sub(r"\1 ", scenario)


@dataclass
class Received:
    """A message as it was received."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes

    @property
    def delivery(self) -> bool:
        return self.reply.startswith("$JS.ACK.")

    def shown(self) -> list[Any]:
        return [plain(self.subject), plain(self.reply), plain(self.headers.decode()).split("\r\n"),
                value(self.payload)]


@dataclass
class Box:
    sid: int
    subject: str
    came: list[Received] = field(default_factory=list)
    read: int = 0


class Player:
    """A connection to one server; ``user``: its name and password."""

    def __init__(self, port: int, user: str = "") -> None:
        self.port = port
        self.user = user
        self.slowness = 1
        """The factor of all times in ms and of each wait: on a busy machine servers are late."""
        self.broken: set[str] = set()
        """The rules of schemas that messages of the scenario broke."""

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
                   "name": "player", "lang": "bytes", "version": "1.0"}
        if self.user:
            options |= {"user": self.user, "pass": self.user}
        self._sids: dict[int, Box] = {}
        self._boxes: dict[str, Box] = {}
        self._pins: list[str] = []
        self._next_sid = 1
        self._next_reply = 0
        self._received = asyncio.Event()
        self._pong = asyncio.Event()
        self._errors: list[str] = []
        self._send(f"CONNECT {json.dumps(options)}\r\n".encode())
        self._listen("answers", "_R.*")
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._writer.close()

    # ---- the connection

    def _send(self, data: bytes) -> None:
        self._writer.write(data)

    async def _read(self) -> None:
        reader = self._reader
        while line := await reader.readline():
            verb, *args = line.decode().split()
            if verb == "PING":
                self._send(b"PONG\r\n")
            elif verb == "PONG":
                self._pong.set()
            elif verb == "-ERR":
                self._errors.append(line.decode().strip())
            elif verb in ("MSG", "HMSG"):
                size = int(args[-1])
                hlen = int(args[-2]) if verb == "HMSG" else 0
                data = await reader.readexactly(size + 2)
                self.broken |= broken(data[hlen:size])
                numbers = 2 if verb == "HMSG" else 1
                reply = args[2] if len(args) == 3 + numbers else ""
                if (pin := _PIN.search(data[:hlen].decode())) and pin[0].split()[1] not in self._pins:
                    self._pins.append(pin[0].split()[1])
                box = self._sids.get(int(args[1]))
                if box is not None:
                    box.came.append(Received(args[0], reply, data[:hlen], data[hlen:size]))
                    self._received.set()

    def _listen(self, name: str, subject: str, queue: str = "") -> Box:
        box = self._boxes.get(name) or Box(0, subject)
        box.sid, self._next_sid = self._next_sid, self._next_sid + 1
        box.subject = subject
        self._boxes[name] = self._sids[box.sid] = box
        self._send(f"SUB {subject} {queue} {box.sid}\r\n".encode())
        return box

    def _publish(self, subject: str, payload: bytes, reply: str = "", headers: str = "") -> None:
        if headers:
            block = b"NATS/1.0\r\n" + "".join(f"{one.strip()}\r\n" for one in headers.split(";")).encode() + b"\r\n"
            self._send(f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode()
                       + block + payload + b"\r\n")
        else:
            self._send(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")

    async def _until(self, box: Box, count: int, seconds: float = 0.0) -> bool:
        """Wait until ``count`` messages of the box are unread."""
        deadline = asyncio.get_running_loop().time() + (seconds or min(SECONDS * self.slowness, PATIENT_SECONDS))
        while len(box.came) - box.read < count:
            self._received.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._received.wait(), left)
            except TimeoutError:
                return False
        return True

    async def _request(self, subject: str, payload: bytes, headers: str = "", seconds: float = 0.0) -> Received | None:
        """Return the answer, or None for silence."""
        self._next_reply += 1
        reply = f"_R.{self._next_reply}"
        box = self._boxes["answers"]
        self._publish(subject, payload, reply, headers)
        while await self._until(box, 1, seconds):
            msg = box.came[box.read]
            box.read += 1
            if msg.subject == reply:
                return msg
        return None

    async def _api(self, subject: str, body: str, seconds: float = 0.0) -> Any:
        for tries in count(1):
            msg = await self._request("$JS.API." + subject, _json(body), seconds=seconds)
            if msg is None:
                return "silence"
            answer = value(msg.payload) if not msg.headers else msg.shown()[2:]
            error = answer.get("error", {}) if isinstance(answer, dict) else {}
            if error.get("err_code") == NOT_GONE_YET and "store" in error["description"] and tries < NOT_GONE_TRIES:
                await asyncio.sleep(0.05)
                continue
            return answer
        raise AssertionError("unreachable")

    # ---- steps

    async def clear(self) -> None:
        """Remove all streams and subscriptions."""
        self._pins.clear()
        for name in [name for name in self._boxes if name != "answers"]:
            self._send(f"UNSUB {self._boxes.pop(name).sid}\r\n".encode())
        answer = await self._api("STREAM.NAMES", "", PATIENT_SECONDS)
        for name in answer["streams"] or ():
            await self._api(f"STREAM.DELETE.{name}", "", PATIENT_SECONDS)

    async def play(self, scenario: str) -> Played:
        """Play the steps; a step that cannot be played has an error as its result."""
        self.broken.clear()
        played: Played = []
        for line in filter(str.strip, scenario.splitlines()):
            step = _STEP.fullmatch(line.strip())
            assert step is not None, f"no step: {line}"
            verb, option, rest = step.groups()
            rest = _MILLISECONDS.sub(lambda one: f"{int(one[1]) * self.slowness}ms", rest)
            came: Any
            try:
                came = await getattr(self, "do_" + verb)(*([option or "", rest] if verb in ("pub", "into") else [rest]))
            except Exception as error:  # its precondition is missing: the error equals no other result
                came = error
            played.append((line.strip(), came))
        played.append(("errors of the connection", list(self._errors)))
        self._errors.clear()
        return played

    async def do_stream(self, rest: str) -> Any:
        config = {"name": "S", "subjects": ["s.>"]} | json.loads(_json(rest or "{}"))
        return await self._api("STREAM.CREATE.S", json.dumps(config))

    async def do_make(self, rest: str) -> Any:
        name, _, config = rest.partition(" ")
        return await self._api(f"STREAM.CREATE.{name}", json.dumps({"name": name} | json.loads(_json(config or "{}"))))

    async def do_grown(self, rest: str) -> Any:
        name, last_seq = rest.split()
        deadline = asyncio.get_running_loop().time() + GROWN_SECONDS * self.slowness
        while True:
            answer = await self._stable(f"STREAM.INFO.{name}")
            upstream = [*answer.get("sources", ()), *filter(None, [answer.get("mirror")])]
            grown = answer["state"]["last_seq"] >= int(last_seq) and all(one["active"] != "never" for one in upstream)
            if grown or asyncio.get_running_loop().time() > deadline:
                return answer
            await asyncio.sleep(STILL_SECONDS * self.slowness)

    async def do_failed(self, rest: str) -> Any:
        while True:
            answer = await self._stable(f"STREAM.INFO.{rest}")
            upstream = [*answer.get("sources", ()), *filter(None, [answer.get("mirror")])]
            if any("error" in one for one in upstream):
                return answer
            await asyncio.sleep(STILL_SECONDS * self.slowness)

    async def do_msgs(self, rest: str) -> list[Any]:
        state = (await self._api(f"STREAM.INFO.{rest}", ""))["state"]
        found = []
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            answer = await self._api(f"STREAM.MSG.GET.{rest}", f'{{"seq": {seq}}}')
            if "message" in answer:
                msg = answer["message"]
                headers = plain(b64decode(msg.get("hdrs", "")).decode()).split("\r\n")
                found.append([seq, msg["subject"], headers, b64decode(msg.get("data", "")).decode()])
        return found

    async def do_consumer(self, rest: str) -> Any:
        name, _, config = rest.partition(" ")
        given = {"durable_name": name, "ack_policy": "explicit"} | json.loads(_json(config or "{}"))
        request = {"stream_name": "S", "config": {k: v for k, v in given.items() if v is not None}}
        return await self._api(f"CONSUMER.CREATE.S.{name}", json.dumps(request))

    async def do_api(self, rest: str) -> Any:
        subject, _, body = rest.partition(" ")
        return await self._api(subject, body)

    async def do_tell(self, rest: str) -> None:
        subject, _, body = rest.partition(" ")
        self._publish("$JS.API." + subject, _json(body))

    async def do_pub(self, headers: str, rest: str) -> Any:
        subject, _, body = rest.partition(" ")
        msg = await self._request(subject, body.encode(), headers, SILENT_SECONDS * self.slowness)
        return "silence" if msg is None else msg.shown()[2:]

    async def do_into(self, headers: str, rest: str) -> None:
        reply, subject, body = [*rest.split(" ", 2), ""][:3]
        self._publish(subject, body.encode(), "" if reply == "-" else reply, headers)

    async def do_fill(self, rest: str) -> Any:
        count, subject = rest.split()
        msg = None
        for i in range(1, int(count) + 1):
            msg = await self._request(subject.replace("#", str(i)), str(i).encode())
        return "silence" if msg is None else msg.shown()[2:]

    async def do_sub(self, rest: str) -> None:
        name, subject, queue = [*rest.split(), "", ""][:3]
        self._listen(name, subject or name, queue)
        await self._round_trip()

    async def do_unsub(self, rest: str) -> None:
        self._send(f"UNSUB {self._boxes[rest].sid}\r\n".encode())
        await self._round_trip()

    async def do_pull(self, rest: str) -> None:
        consumer, name, body = [*rest.split(maxsplit=2), ""][:3]
        box = self._boxes.get(name) or self._listen(name, name)
        body = _PIN_NUMBER.sub(lambda one: self._pins[int(one[1]) - 1], body)
        self._publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", _json(body), box.subject)
        await asyncio.sleep(TAKEN_SECONDS * self.slowness)

    async def do_get(self, rest: str) -> list[Any]:
        name, count = rest.split()
        box = self._boxes[name]
        await self._until(box, int(count))
        return self._unread(box, box.read + int(count))

    async def do_until(self, rest: str) -> list[Any]:
        name, text = rest.split(maxsplit=1)
        box, at = self._boxes[name], 0
        while await self._until(box, at + 1):
            if text.encode() in box.came[box.read + at].headers:
                return self._unread(box, box.read + at + 1)
            at += 1
        return self._unread(box, len(box.came))

    async def do_rest(self, rest: str) -> list[Any]:
        await asyncio.sleep(SILENCE_SECONDS * self.slowness)
        box = self._boxes[rest]
        return self._unread(box, len(box.came))

    async def do_drop(self, rest: str) -> None:
        await asyncio.sleep(SILENCE_SECONDS * self.slowness)
        box = self._boxes[rest]
        box.came.clear()
        box.read = 0

    async def do_ack(self, rest: str) -> None:
        reply, payload = self._answer(rest)
        self._publish(reply, payload)
        await asyncio.sleep(TAKEN_SECONDS * self.slowness)

    async def do_ask(self, rest: str) -> Any:
        reply, payload = self._answer(rest)
        msg = await self._request(reply, payload, seconds=SILENT_SECONDS * self.slowness)
        return "silence" if msg is None else msg.shown()[2:]

    async def do_nxt(self, rest: str) -> None:
        name, number, to, body = [*rest.split(maxsplit=3), ""][:4]
        reply, _ = self._answer(f"{name} {number}")
        box = self._boxes.get(to) or self._listen(to, to)
        self._publish(reply, b"+NXT" + _json(body), box.subject)
        await asyncio.sleep(TAKEN_SECONDS * self.slowness)

    async def do_flow(self, rest: str) -> None:
        name, *numbers = rest.split()
        request = [one for one in self._boxes[name].came if one.reply.startswith("$JS.FC.")][-1]
        acked = "Nats-Last-Stream: {}; Nats-Last-Consumer: {}".format(*numbers) if numbers else ""
        self._publish(request.reply, b"", headers=acked)

    async def do_info(self, rest: str) -> Any:
        return await self._stable(f"CONSUMER.INFO.S.{rest}")

    async def do_state(self, _: str) -> Any:
        answer = await self._stable("STREAM.INFO.S", '{"deleted_details": true, "subjects_filter": ">"}')
        return answer.get("state", answer)

    async def do_sleep(self, rest: str) -> None:
        await asyncio.sleep(int(rest.removesuffix("ms")) / 1e3)

    # ---- parts

    def _answer(self, rest: str) -> tuple[str, bytes]:
        name, number, payload = [*rest.split(maxsplit=2), ""][:3]
        deliveries = [one for one in self._boxes[name].came if one.delivery]
        assert len(deliveries) >= int(number), f"{rest}: only {len(deliveries)} deliveries came"
        reply = deliveries[int(number) - 1].reply
        return reply, _json(payload) if "{" in payload else payload.encode()

    async def _stable(self, subject: str, body: str = "") -> Any:
        """Return the answer once two in a row are equal: acks without a reply are processed some time later."""
        before = None
        while True:
            answer = await self._api(subject, body)
            if answer == before:
                return answer
            before = answer
            await asyncio.sleep(STILL_SECONDS * self.slowness)

    async def _round_trip(self) -> None:
        """Wait until the server has processed everything sent before."""
        self._pong.clear()
        self._send(b"PING\r\n")
        await asyncio.wait_for(self._pong.wait(), PATIENT_SECONDS)

    @staticmethod
    def _unread(box: Box, end: int) -> list[Any]:
        shown = [one.shown() for one in box.came[box.read:end]]
        box.read = min(end, len(box.came))
        return shown


async def compare(players: Iterable[Player], play: Callable[[], Awaitable[Sequence[Played]]]) -> Played:
    """Compare the results of ``play`` for each server, the real one's first, and fail at the first step that differs.

    Return the real server's results. ``players`` are all players that it uses. nats-server's goroutines race, and a
    server may be late for steps of some ms. So a difference gets more tries, slower ones in the end, and only a
    difference found each time is reported.
    """
    players = list(players)
    for slowness in _TRIES:
        for player in players:
            player.slowness = slowness
        expected, *got = await play()
        if all(one == expected for one in got):
            return expected
    for one in got:
        for (step, theirs), (_, ours) in zip(expected, one, strict=True):
            assert ours == theirs, f"{step}\n  ours:        {ours}\n  nats-server: {theirs}"
    raise AssertionError("unreachable")


def _json(body: str) -> bytes:
    return _MILLISECONDS.sub(lambda one: one[1] + "000000", body).encode()


def plain(text: str) -> str:
    """Return ``text`` without the parts in which two servers must differ."""
    text = _SOURCE_IDENTITY.sub(r"\1ID", text)
    text = _AUTO_ACK.sub(r"\1AUTO.", text)
    text = _IDENTITY.sub(r"\1ID", text)
    text = _PIN.sub(r"\1NUID", text)
    text = _ANSWER.sub("_R.N", text)
    return _FLOW_ID.sub(r"\1ID", _NANOS.sub("NANOS", _TIME.sub("TIME", text)))


def value(payload: bytes) -> Any:
    """Return a payload as a value: JSON decoded and made comparable, anything else as text."""
    text = payload.decode()
    return normal(json.loads(text)) if text[:1] == "{" and text[-1:] == "}" else plain(text)


def normal(given: Any, key: str = "") -> Any:
    """Return ``given`` with everything normalized in which two servers must differ."""
    if key in ("id", "pinned_id", "pinned_client_id") and isinstance(given, str):
        return "NUID" if _NUID.fullmatch(given) else given
    if key in _NOT_COMPARED:
        return key
    if key == "response" and isinstance(given, str):
        return normal(json.loads(given))
    if isinstance(given, dict):
        if "active" in given and "lag" in given:
            given = given | {"active": "active" if given["active"] >= 0 else "never"}
        # A round trip is shown once it was measured: when the server's first PING, two seconds after CONNECT, was
        # answered.
        return {name: normal(inner, name) for name, inner in given.items() if name != "rtt"}
    if isinstance(given, list):
        # nats-server shows sources in any order.
        return sorted(map(normal, given), key=str) if key == "sources" else [normal(inner) for inner in given]
    if isinstance(given, str):
        return "AUTO" if key == "name" and _AUTO_NAME.fullmatch(given) else plain(given)
    return given
