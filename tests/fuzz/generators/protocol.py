"""Random protocol operations for a configuration, with subjects that its parts contain."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzz.generators.configurations import (
    STREAM,
    TOKENS,
    TRACES,
    configuration,
    literal,
    mutated,
    pattern,
    spoiled,
    subjects,
    users,
    with_jetstream,
)
from tests.fuzz.scenario import Config, Scenario, Step

__all__ = ["dialogue", "protocol_scenarios", "reload_scenario"]

_REPLIES = "r"
_OPERATIONS = (2, 14)


def protocol_scenarios(seed: int, count: int) -> list[Scenario]:
    """Return scenarios with one configuration, so that they can share servers; fewer with JetStream, which take
    longer."""
    config = with_jetstream(configuration(Random(f"configuration {seed}")), Random(f"jetstream {seed}"))
    if "jetstream" in config:
        count = -(-count // 4)
    loaded = spoiled(config, Random(f"spoiled {seed}"))
    return [Scenario("protocol", [loaded], dialogue(Random(f"dialogue {seed} {number}"), [config]),
                     f"{seed}.{number}") for number in range(count)]


def reload_scenario(seed: int) -> Scenario:
    """Return a scenario of two or three configurations; connections stay open through the changes."""
    random = Random(f"reload {seed}")
    configs = [configuration(random)]
    while not users(configs[0]):
        # nats-server closes clients that name a user at every reload while no users are configured.
        configs = [configuration(random)]
    _remove_subscription_limits(configs[0])
    for _ in range(random.choice((1, 1, 2))):
        configs.append(mutated(configs[-1], random))
        _remove_subscription_limits(configs[-1])
    speaker = _Speaker(random, configs)
    steps = speaker.opening()
    steps += [speaker.operation() for _ in range(random.randint(2, 6))]
    for number in range(1, len(configs)):
        steps.append(["", "reload", number])
        speaker.config = configs[number]
        steps += [speaker.operation() for _ in range(random.randint(3, 8))]
    return Scenario("reload", configs, steps, str(seed))


def _remove_subscription_limits(config: Config) -> None:
    """Remove the limits: a reload that changes permissions counts subscriptions again in nats-server, and closes
    clients with too many."""
    config.pop("max_subscriptions", None)
    for account in config.get("accounts", {}).values():
        limits = account.get("limits", {})
        limits.pop("max_subs", None)
        limits.pop("max_subscriptions", None)


def dialogue(random: Random, configs: list[Config]) -> list[Step]:
    """Return the operations of some connections."""
    speaker = _Speaker(random, configs)
    return [*speaker.opening(), *(speaker.operation() for _ in range(random.randint(*_OPERATIONS)))]


class _Speaker:
    """Chooses operations, with a record of connections and subscriptions."""

    def __init__(self, random: Random, configs: list[Config]) -> None:
        self.random = random
        self.config = configs[0]
        self._pool = [subject for config in configs for subject in subjects(config)] or ["a"]
        self._names: list[str] = []
        self._sids: dict[str, list[str]] = {}
        self._number = 0

    def opening(self) -> list[Step]:
        """Open connections with some subscriptions."""
        steps: list[Step] = []
        for _ in range(self.random.choice((1, 2, 2, 3, 3))):
            steps.append(self._connect())
        for name in self._names:
            if self.random.random() < 0.6:
                steps.append(self._sub(name, f"{TRACES}.>"))
            if self.random.random() < 0.6:
                steps.append(self._sub(name, f"{_REPLIES}.*"))
            steps += [self._sub(name) for _ in range(self.random.choice((0, 1, 1, 2)))]
        if "jetstream" in self.config:
            steps += self._stream()
        return steps

    def operation(self) -> Step:
        """Return one more step."""
        random = self.random
        name = random.choice(self._names)
        if "jetstream" in self.config and random.random() < 0.4:
            return self._request(name)
        kind = random.random()
        if kind < 0.24:
            return [name, "pub", self._subject(), self._reply(), self._payload()]
        if kind < 0.62:
            return [name, "hpub", self._subject(), self._reply(), self._headers(), self._payload()]
        if kind < 0.7:
            return [name, "pub", "{R}", self._reply(), self._payload()]
        if kind < 0.73:
            return [name, "hpub", "{R}", self._reply(), self._headers(), self._payload()]
        if kind < 0.86:
            return self._sub(name)
        if kind < 0.92:
            return [name, "unsub", random.choice(self._sids[name] or ["1"]), random.choice((0, 0, 1, 2))]
        if kind < 0.945:
            return [name, "raw", self._raw()]
        if kind < 0.95:
            return [name, "leave"]
        return self._connect() if len(self._names) < 5 else self._sub(name)

    # ---- JetStream

    def _stream(self) -> list[Step]:
        """Create a stream in the account with JetStream, perhaps a consumer, and publish a few messages."""
        random = self.random
        owner = next(account for account in self.config["accounts"].values() if "jetstream" in account)
        fields = {"verbose": False, "pedantic": False, "headers": True, "user": owner["users"][0].get("user", ""),
                  "pass": owner["users"][0].get("password", ""), "name": "owner"}
        self._names.append("owner")
        self._sids["owner"] = []
        space = random.choice(([f"{STREAM}.*"], [f"{STREAM}.*"], [f"{STREAM}.*", f"{TRACES}.>"],
                               [f"{STREAM}.*", self._subject()]))
        stream: dict[str, Any] = {"name": STREAM, "subjects": space}
        for name, value in (("allow_direct", True), ("no_ack", True), ("max_msgs_per_subject", 1),
                            ("republish", {"src": ">", "dest": "d.>"}), ("max_msg_size", 20),
                            ("subject_transform", {"src": f"{STREAM}.*", "dest": "m.$1"})):
            if random.random() < 0.15:
                stream[name] = value
        steps: list[Step] = [["owner", "connect", fields], self._sub("owner", f"{_REPLIES}.*"),
                             self._asked("owner", f"STREAM.CREATE.{STREAM}", stream)]
        if random.random() < 0.6:
            consumer: dict[str, Any] = {"name": "C", "durable_name": "C",
                                        "ack_policy": random.choice(("none", "explicit"))}
            if random.random() < 0.6:
                consumer["deliver_subject"] = random.choice(("d.c", "r.1", "i.x", f"{TRACES}.d", self._subject()))
            steps.append(self._asked("owner", f"CONSUMER.CREATE.{STREAM}.C",
                                     {"stream_name": STREAM, "config": consumer}))
        return steps

    def _request(self, name: str) -> Step:
        """Publish into the stream, or send a request to its API under one of its names."""
        random = self.random
        if random.random() < 0.4:
            subject, reply = f"{STREAM}.{random.choice(TOKENS)}", random.choice(("",
                                                                                 f"{_REPLIES}.{random.randint(1, 3)}"))
            if random.random() < 0.6:
                return [name, "pub", subject, reply, self._payload()]
            headers = self._headers()
            if random.random() < 0.4:
                headers.append([random.choice(("Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Rollup")),
                                random.choice(("1", "0", "sub"))])
            return [name, "hpub", subject, reply, headers, self._payload()]
        request, body = random.choice((
            (f"STREAM.INFO.{STREAM}", ""), ("STREAM.NAMES", ""), ("INFO", ""), (f"CONSUMER.NAMES.{STREAM}", ""),
            (f"STREAM.MSG.GET.{STREAM}", {"seq": 1}), (f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": f"{STREAM}.a"}),
            (f"DIRECT.GET.{STREAM}", {"seq": 1}), (f"DIRECT.GET.{STREAM}.{STREAM}.a", ""),
            (f"STREAM.PURGE.{STREAM}", ""),
            (f"STREAM.MSG.DELETE.{STREAM}", {"seq": 1}),
            (f"CONSUMER.MSG.NEXT.{STREAM}.C", {"batch": 1, "no_wait": True}),
            (f"CONSUMER.MSG.NEXT.{STREAM}.C", ""), (f"CONSUMER.INFO.{STREAM}.C", ""),
            (f"CONSUMER.DELETE.{STREAM}.C", ""), ("STREAM.INFO.X", ""), ("NO.SUCH", "")))
        return self._asked(name, request, body, random.choice(("$JS.API.", "$JS.API.", "J.", "J.")))

    def _asked(self, name: str, request: str, body: Any, prefix: str = "$JS.API.") -> Step:
        text = json.dumps(body) if body else ""
        reply = f"{_REPLIES}.{self.random.randint(1, 3)}"
        if prefix != "$JS.API." and self.random.random() < 0.3:
            return [name, "hpub", prefix + request, reply, self._headers(), text]
        return [name, "pub", prefix + request, reply, text]

    def _connect(self) -> Step:
        random = self.random
        fields: dict[str, Any] = {"verbose": random.random() < 0.06, "pedantic": random.random() < 0.06,
                                  "headers": random.random() < 0.94, "no_responders": True, "protocol": 1}
        if not fields["headers"]:
            fields["no_responders"] = random.random() < 0.1
        elif random.random() < 0.2:
            del fields["no_responders"]
        if random.random() < 0.08:
            fields["echo"] = False
        extra: tuple[str, Any] | None = None
        if random.random() < 0.06:
            name, values = random.choice((
                ("protocol", (0, 2, -1, "x", 1.5)), ("lang", ("go", 1)), ("version", ("1.0",)), ("account", ("A", "")),
                ("new_account", (True,)), ("jwt", ("x",)), ("nkey", ("x", "UABC")), ("sig", ("x",)),
                ("tls_required", (True,)),
                ("echo", ("x", None)), ("Verbose", (True,)), ("unknown", (1, {})), ("user", ("", "x", 1, None)),
                ("auth_token", ("x", "u")), ("ssl_required", (True,)), ("pass", ("", None, 1))))
            extra = (name, random.choice(values))
        known = users(self.config)
        authorization = self.config.get("authorization", {})
        if known and random.random() < 0.93:
            user = random.choice(known)
            fields |= {"user": user, "pass": _password(self.config, user) if random.random() < 0.95 else "wrong"}
        elif "user" in authorization and random.random() < 0.9:
            fields |= {"user": authorization["user"], "pass": authorization["password"]}
        elif "token" in authorization and random.random() < 0.9:
            fields |= {"auth_token": authorization["token"]}
        name = f"{fields.get('user', 'x')}{len(self._names)}"
        fields["name"] = name
        if extra is not None:
            fields[extra[0]] = extra[1]
        self._names.append(name)
        self._sids[name] = []
        return [name, "connect", fields]

    def _sub(self, name: str, subject: str = "") -> Step:
        random = self.random
        self._number += 1
        sid = str(self._number)
        self._sids[name].append(sid)
        queue = random.choice(("q", "q", "q1", "q.a")) if random.random() < 0.15 else ""
        return [name, "sub", subject or self._subject(wild=True), queue, sid]

    def _subject(self, *, wild: bool = False) -> str:
        random = self.random
        kind = random.random()
        if kind < 0.7:
            found = random.choice(self._pool)
        elif kind < 0.95:
            found = pattern(random) if wild else literal(random)
        else:
            if "mappings" not in str(self.config) and random.random() < 0.3:
                # The mapping of empty tokens is of no use to anybody.
                return random.choice(("a..b", ".a", "a."))
            return random.choice((">", "a.>.b", "*", "$SYS.x", "$JS.API.INFO", "_INBOX.x", "_R_.x", "a*",
                                  "m.a", "i.a.b", "p.a", "$SYS.REQ.USER.INFO", "$G.a"))
        if wild and random.random() < 0.7 and "{" not in found and "$" not in found:
            return found
        return ".".join(self._token(token) for token in found.split("."))

    def _token(self, token: str) -> str:
        random = self.random
        if token in ("*", ">") or "{" in token or "$" in token:
            return random.choice((*TOKENS, "x-y", "0"))
        return token

    def _reply(self) -> str:
        kind = self.random.random()
        if kind < 0.5:
            return ""
        return f"{_REPLIES}.{self.random.randint(1, 3)}" if kind < 0.93 else self._subject()

    def _headers(self) -> list[list[str]]:
        random = self.random
        headers: list[list[str]] = []
        if random.random() < 0.8:
            dest = random.choice((f"{TRACES}.x", f"{TRACES}.x", f"{TRACES}.x", f"{TRACES}.y", self._subject(),
                                  self._subject(), "trace disabled", "", f" {TRACES}.x ", f"{TRACES}.*", f"{TRACES}..x",
                                  "a b", "_R_.x", "$SYS.x", "{R}"))
            headers.append([random.choice(("Nats-Trace-Dest",) * 12 + ("nats-trace-dest", "Nats-Trace-Dest ")), dest])
            if random.random() < 0.06:
                headers.append(["Nats-Trace-Dest", random.choice((f"{TRACES}.y", "trace disabled", "a.*"))])
            if random.random() < 0.35:
                headers.append([random.choice(("Nats-Trace-Only",) * 8 + ("nats-trace-only",)), random.choice((
                    "true", "true", "1", "on", "false", "0", "x", "TRUE", " true", "On", ""))])
        if random.random() < 0.2:
            headers.append([random.choice(("traceparent", "Traceparent")), random.choice((
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "x", "---01", "00-a-b-1", "00-a-b-ff",
                "a-b-c-0x", "00-a-b-01-c", ""))])
        if random.random() < 0.2:
            name = random.choice(("X", "Nats-Request-Info", "Nats-Pending", "Status", "Nats-Trace-Hop",
                                  "Nats-Trace-Origin-Account", "uber-trace-id", "Uber-Trace-Id", "B3", "X-B3-Sampled",
                                  "Nats-Expected-Stream", "X-B3-TraceId", "Nats-Msg-Id", "x y", "\u00e9"))
            headers.append([name,
                            random.choice(("1", "{}", "A", "0", "a:b:c:1", "a-b-1-c", "a-b-0-c", " x ", '{"acc": "Z"}',
                                           "a:b:0:0", "x" * 50))])
        random.shuffle(headers)
        return headers

    def _payload(self) -> str:
        self._number += 1
        size = self.random.choice((0, 0, 0, 0, 0, 15, 50, 60)) if self.random.random() < 0.5 else 0
        return f"{self._number}".ljust(size, ".") if self.random.random() < 0.9 else ""

    def _raw(self) -> str:
        subject = self._subject()
        return self.random.choice((
            f"PUB {subject} 3\r\nabcd\r\n", f"PUB {subject} 5\r\nab\r\n", f"PUB {subject} x\r\n",
            f"HPUB {subject} 12 10\r\n",
            f"HPUB {subject} 3 5\r\nabcde\r\n", f"HPUB {subject} 12 14\r\nNATS/1.0\r\n\r\nzz\r\n", f"SUB {subject}\r\n",
            f"sub {subject} 99\r\n", "UNSUB\r\n", "FOO\r\n", "PING\r\n", "\r\n", f"PUB {subject} r.1 r.2 1\r\nx\r\n",
            f"SUB {subject} 98\r\nPUB {subject} 1\r\nx\r\n", "CONNECT {}\r\n", "+OK\r\n",
            f"PUB\t{subject}\t1\r\nx\r\n",
            f"HPUB {subject} 14 14\r\nNATS/1.0\nA:b\r\n\r\n", f"HPUB {subject} 18 18\r\nNATS/1.0\r\nA b c\r\n\r\n",
            f"PUB {subject} -1\r\n\r\n", f"PUB {subject} 99999999999\r\n", f"PUB {subject} 01\r\nx\r\n",
            f"PUB {subject}  1 \r\nx\r\n", f"PUB {subject} 1\nx\r\n", f"pub {subject} r.1 1\r\nx\r\n", "PUB\r\n",
            f"PUB {subject}\r\n", f"PUB {subject} +1\r\nx\r\n", f"PUB {subject} r.* 1\r\nx\r\n",
            f"PUB {subject} r..1 1\r\nx\r\n", f"SUB {subject} q 97 x\r\n", f"SUB {subject} q* 97\r\n",
            "SUB a..b 97\r\n",
            "SUB a.>.b q 97\r\n", "SUB  97\r\n", "SUB\r\n", f"SUB {subject} 1\r\n", f"SUB {subject} a.b\r\n",
            "UNSUB 1 x\r\n",
            "UNSUB 1 -1\r\n", "UNSUB 1 1 1\r\n", "UNSUB nosuch\r\n", "UNSUB 1 0\r\n", "ping\r\n", "PING x\r\n",
            "PONG\r\n",
            "PONG x\r\n", "INFO {}\r\n", "MSG a 1 1\r\nx\r\n", "-ERR 'x'\r\n", "CONNECT\r\n", "CONNECT {\r\n",
            "CONNECT []\r\n",
            'CONNECT {"verbose": 1}\r\n', 'CONNECT {"echo": false, "verbose": true}\r\n', "P\r\n", "PUBX a 1\r\n",
            "\x00\r\n",
            f"HPUB {subject} 0 0\r\n\r\n", f"HPUB {subject} -1 1\r\nx\r\n",
            f"HPUB {subject} 12 12\r\nNATS/1.1\r\n\r\n\r\n",
            f"HPUB {subject} x 12\r\n", f"HPUB {subject} 12\r\n",
            f"HPUB {subject} r.1 r.2 12 12\r\nNATS/1.0\r\n\r\n\r\n",
            f"HPUB {subject} 10 12\r\nNATS/1.0\r\n\r\n\r\n", f"SUB {'a.' * 40}a 96\r\n", f"SUB {'b' * 250} 96\r\n",
            f"PUB {'b' * 250} 1\r\nx\r\n", "A+ x 1\r\nx\r\n", "RS+ x\r\n", "LS+ x\r\n", "AUTH x\r\n",
            "PUB a\tb 1\r\nx\r\n"))


def _password(config: Config, user: str) -> str:
    listed = list(config.get("authorization", {}).get("users", []))
    for account in config.get("accounts", {}).values():
        listed += account.get("users", [])
    return next((str(one["password"]) for one in listed if one["user"] == user), user)
