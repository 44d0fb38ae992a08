"""Random configurations: users, permissions, accounts, exports, imports, mappings and limits over few subjects.

The subjects come from a small pool, so that the parts of one configuration often overlap. Not all
configurations are valid: the two servers must agree on that, too.
"""

from __future__ import annotations

from random import Random
from typing import Any

from broker.protocol.subject import collide
from tests.fuzz.scenario import Config

__all__ = ["STREAM", "TRACES", "configuration", "literal", "mutated", "pattern", "spoiled", "subjects", "users",
           "with_jetstream"]

TOKENS = ("a", "b", "c")
TRACES = "t"
"""The first token of subjects for trace events."""
STREAM = "S"
"""The stream of scenarios with JetStream, and the first token of subjects that it always has."""
_LETTERS = "ABC"

RELOADABLE = ("max_payload", "max_connections", "max_control_line", "max_traced_msg_len")
"""Settings that a changed configuration changes. `no_auth_user` and limits of subscriptions are left out, because
jetblock reloads them and nats-server does not; so are mappings outside of accounts, whose removal nats-server
ignores."""


def literal(random: Random) -> str:
    """Return a subject without wildcards."""
    return ".".join(random.choice(TOKENS) for _ in range(random.choice((1, 1, 2, 2, 2, 3))))


def pattern(random: Random, wild: float = 0.4) -> str:
    """Return a subject, perhaps with wildcards."""
    tokens = ["*" if random.random() < wild else token for token in literal(random).split(".")]
    if random.random() < wild / 2:
        tokens = [*tokens[:-1], ">"] if random.random() < 0.5 else [*tokens, ">"]
    return ".".join(tokens)


def configuration(random: Random) -> Config:
    """Return a whole configuration."""
    config: Config = {}
    kind = random.random()
    if kind < 0.62:
        config["accounts"] = _accounts(random)
        if random.random() < 0.12:
            config["authorization"] = {"users": [_user(random, "u")]}
    elif kind < 0.85:
        names = ["u", "v", "w"][:random.randint(1, 3)]
        config["authorization"] = {"users": [_user(random, name) for name in names]}
        if random.random() < 0.3:
            config["authorization"]["default_permissions"] = _permissions(random)
    elif kind < 0.92:
        config["authorization"] = random.choice(({"user": "u", "password": "u"}, {"token": "u"}))
    if random.random() < 0.2 and users(config):
        config["no_auth_user"] = random.choice(users(config))
    for name, values in (("max_payload", (20, 60, 1000)), ("max_subscriptions", (2, 4)), ("max_sub_tokens", (2, 3)),
                         ("max_connections", (3, 4, 100)), ("max_control_line", (64, 200, 4096)),
                         ("max_traced_msg_len", (5,)), ("disable_sublist_cache", (True,))):
        if random.random() < 0.05:
            config[name] = random.choice(values)
    if random.random() < 0.08:
        config["mappings"] = _mappings(random)
    return config


def spoiled(config: Config, random: Random) -> Config:
    """Return ``config``; at random, one value has another type, or a subject is invalid."""
    if random.random() > 0.06:
        return config
    found: Config = _copied(config)
    _spoil(found, random)
    return found


def with_jetstream(config: Config, random: Random) -> Config:
    """Return ``config``; at random, one account has JetStream, and others import its API and its deliveries."""
    names = list(config.get("accounts", {}))
    if not names or random.random() > 0.12:
        return config
    found: Config = _copied(config)
    name = random.choice(names)
    account = found["accounts"][name]
    found["jetstream"] = {"sync_interval": "2m"}
    account["jetstream"] = "enabled"
    if random.random() < 0.3:
        account.setdefault("mappings", {})["i.*"] = random.choice((f"{STREAM}.$1", "$JS.API.STREAM.INFO.$1"))
    exports = account.setdefault("exports", [])
    exports += [{"service": "$JS.API.>", "response_type": random.choice(("stream", "singleton"))}, {"stream": "d.>"}]
    if random.random() < 0.5:
        exports[-2]["allow_trace"] = True
    if random.random() < 0.5:
        exports.append({"service": f"{STREAM}.*"})
    for other, inner in found["accounts"].items():
        imports = inner.setdefault("imports", [])
        if other == name or random.random() < 0.3:
            continue
        imports.append({"service": {"account": name, "subject": "$JS.API.>"}, "to": "J.>"})
        if random.random() < 0.4:
            imports[-1]["share"] = True
        if random.random() < 0.5:
            imports.append({"stream": {"account": name, "subject": "d.>"}})
        if len(exports[-1]) == 1 and random.random() < 0.6 and "service" in exports[-1]:
            imports.append({"service": {"account": name, "subject": f"{STREAM}.*"}})
    return found


def mutated(config: Config, random: Random) -> Config:
    """Return ``config`` with one or two parts replaced, added or removed."""
    found: Config = _copied(config)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
        _mutate(found, random)
    return found


def users(config: Config) -> list[str]:
    """Return the names of all users."""
    listed = list(config.get("authorization", {}).get("users", []))
    for account in config.get("accounts", {}).values():
        listed += account.get("users", [])
    return [user["user"] for user in listed if "user" in user]


def subjects(config: Any, key: str = "") -> list[str]:
    """Return all subjects anywhere in the configuration."""
    if isinstance(config, dict):
        found = [subject for name, inner in config.items() for subject in subjects(inner, name)]
        return found + ([name for name in config if isinstance(name, str)] if key == "mappings" else [])
    if isinstance(config, list):
        return [subject for inner in config for subject in subjects(inner, key)]
    named = {"allow", "deny", "publish", "subscribe", "service", "stream", "subject", "to", "destination", "mappings"}
    return [config.split()[0]] if isinstance(config, str) and key in named and config else []


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _spoil(config: Config, random: Random) -> None:
    """Replace one value somewhere, or add an unknown field."""
    at: Any = config
    while True:
        places = [(at, key) for key in (at if isinstance(at, dict) else range(len(at)))]
        if not places:
            return
        inside = [key for _, key in places if isinstance(at[key], (dict, list)) and at[key]]
        if inside and random.random() < 0.85:
            at = at[random.choice(inside)]
            continue
        _, key = random.choice(places)
        if isinstance(at, dict) and random.random() < 0.15:
            at[random.choice(("unknown", "Name", "user", "subject", "to", "stream"))] = "x"
        elif isinstance(at, dict) and random.random() < 0.15:
            del at[key]
        else:
            at[key] = random.choice((0, -1, 1.5, True, "", "x", "a..b", "a.>.b", "a b", [], {}, ["x"], {"a": 1},
                                     "$SYS.>", ">", "a.$1", "{{partition(0,1)}}", 2**40, "1m", "101%"))
        return


# ---- users


def _user(random: Random, name: str) -> dict[str, Any]:
    user: dict[str, Any] = {"user": name, "password": name}
    if random.random() < 0.45:
        user["permissions"] = _permissions(random)
    if random.random() < 0.03:
        user["allowed_connection_types"] = random.choice((["STANDARD"], ["WEBSOCKET"], ["STANDARD", "MQTT"]))
    return user


def _permissions(random: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if random.random() < 0.7:
        found["publish"] = _permission(random, queues=False)
    if random.random() < 0.7:
        found["subscribe"] = _permission(random, queues=True)
    if random.random() < 0.3:
        found["allow_responses"] = random.choice((True, True, {"max": 2}, {"max": 1, "expires": "1m"}, {"max": -1},
                                                  {"expires": "1m"}, False))
    return found


def _permission(random: Random, *, queues: bool) -> Any:
    def some() -> list[str]:
        found = [pattern(random) for _ in range(random.randint(1, 3))]
        if random.random() < 0.4:
            found.append(f"{TRACES}.>")
        if random.random() < 0.3:
            found.append("r.>")
        queue = random.choice(("q", "q*", "q.>", "*", ">"))
        return [f"{subject} {queue}" if queues and random.random() < 0.15 else subject for subject in found]

    kind = random.random()
    if kind < 0.1:
        return some()[0]
    if kind < 0.35:
        return some()
    if kind < 0.6:
        return {"allow": some()}
    if kind < 0.8:
        return {"deny": some()}
    return {"allow": random.choice((some(), ">", [">"])), "deny": some()}


# ---- accounts


def _accounts(random: Random) -> dict[str, Any]:
    names = _LETTERS[:random.choice((1, 2, 2, 2, 3))]
    accounts: dict[str, Any] = {}
    for name in names:
        accounts[name] = _account(random, name)
    for name, account in accounts.items():
        imports = [found for _ in range(random.choice((0, 1, 1, 2, 3))) if (found := _import(random, name, accounts))]
        if imports:
            account["imports"] = imports
    return accounts


def _account(random: Random, name: str) -> dict[str, Any]:
    low = name.lower()
    account: dict[str, Any] = {"users": [_user(random, low)]}
    if random.random() < 0.4:
        account["users"].append(_user(random, f"{low}2"))
    if random.random() < 0.65:
        account["exports"] = [_export(random) for _ in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.4:
        account["mappings"] = _mappings(random)
    if random.random() < 0.1:
        account["default_permissions"] = _permissions(random)
    if random.random() < 0.12:
        account["limits"] = {random.choice(("max_connections", "max_subs", "max_subscriptions", "max_payload",
                                            "max_leafnodes")): random.choice((-1, 0, 1, 2, 10, 30))}
    if random.random() < 0.15:
        account["msg_trace"] = random.choice((f"{TRACES}.outer", {"dest": f"{TRACES}.outer", "sampling": 100},
                                              {"dest": f"{TRACES}.outer", "sampling": "100%"}))
    return account


def _export(random: Random) -> dict[str, Any]:
    kind = random.choice(("service", "service", "stream"))
    export: dict[str, Any] = {kind: pattern(random, 0.3)}
    if random.random() < 0.12:
        export["accounts"] = random.sample(_LETTERS, random.randint(1, 2))
    if random.random() < 0.06:
        export["account_token_position"] = random.randint(1, 3)
    if kind == "service":
        if random.random() < 0.25:
            export["response_type"] = random.choice(("singleton", "stream", "chunked", "Stream", "none"))
        if random.random() < 0.35:
            export["allow_trace"] = True
        if random.random() < 0.06:
            export["latency"] = random.choice((f"{TRACES}.lat", {"subject": f"{TRACES}.lat", "sampling": 100},
                                               {"subject": f"{TRACES}.lat", "sampling": "headers"}))
        if random.random() < 0.05:
            export["response_threshold"] = "1m"
    return export


def _import(random: Random, name: str, accounts: dict[str, Any]) -> dict[str, Any]:
    others = [(other, export) for other, account in accounts.items() for export in account.get("exports", [])
              if other != name or random.random() < 0.1]
    if not others:
        return {}
    other, export = random.choice(others)
    kind = "service" if "service" in export else "stream"
    subject = export[kind]
    if random.random() < 0.3:
        subject = ".".join(random.choice(TOKENS) if token == "*" and random.random() < 0.6 else token
                           for token in subject.split("."))
    if random.random() < 0.04:
        subject = pattern(random)
    found: dict[str, Any] = {kind: {"account": other, "subject": subject}}
    way = random.random()
    if kind == "stream" and way < 0.3:
        found["prefix"] = random.choice(("p", "a", "a.b", "p.*"))
    elif way < 0.65:
        found["to"] = _renamed(random, subject)
    if random.random() < 0.15:
        found["share"] = True
    if random.random() < 0.2:
        found["allow_trace"] = random.choice((True, True, False))
    return found


def _renamed(random: Random, subject: str) -> str:
    """Return a local name for an imported subject, with the same wildcards or references to them."""
    tokens = subject.split(".")
    number = 0
    renamed = ["i"]
    for token in tokens:
        if token == "*":
            number += 1
            renamed.append(random.choice(("*", "*", f"${number}", f"{{{{wildcard({number})}}}}")))
        else:
            renamed.append(token)
    if len({token for token in renamed if token == "*"}) and any("$" in token or "{" in token for token in renamed):
        renamed = ["*" if "$" in token or "{" in token else token for token in renamed]
    if random.random() < 0.1:
        return pattern(random)
    return ".".join(renamed[1:] if random.random() < 0.2 else renamed)


def _mappings(random: Random) -> dict[str, Any]:
    """Make mappings without common subjects: which of two nats-server applies is a matter of chance there, because it
    reads them in the order of a Go map."""
    mappings: dict[str, Any] = {}
    for _ in range(random.choice((1, 1, 2, 3))):
        source = pattern(random, 0.3)
        destination = _destination(random, source)
        if source in mappings or not any(collide(source.encode(), other.encode()) for other in mappings):
            mappings[source] = destination
    return mappings


def _destination(random: Random, source: str) -> Any:
    stars = source.split(".").count("*")
    tokens = ["m"] if random.random() < 0.6 else [random.choice(TOKENS)]
    for number in range(1, stars + 1):
        if random.random() < 0.85:
            tokens.append(random.choice((f"${number}", f"{{{{wildcard({number})}}}}", f"{{{{partition(3,{number})}}}}",
                                         f"{{{{split({number},-)}}}}", f"{{{{left({number},1)}}}}")))
    if source.endswith(">") and random.random() < 0.9:
        tokens.append(">")
    destination = ".".join(tokens)
    kind = random.random()
    if kind < 0.75:
        return destination
    if kind < 0.85:
        return [{"destination": destination, "weight": random.choice((100, "100%", 0))}]
    if kind < 0.93:
        return [{"destination": destination, "weight": 100}, {"destination": f"n.{destination}", "weight": 0}]
    return [{"destination": destination, "weight": 100, "cluster": "east"}]


# ---- changes


def _mutate(config: Config, random: Random) -> None:
    fresh_config = configuration(random)
    accounts = config.get("accounts")
    listed = config.get("authorization", {}).get("users") or []
    all_users = [*listed, *(user for account in (accounts or {}).values() for user in account.get("users", []))]
    kind = random.random()
    if kind < 0.15 and all_users:
        user = random.choice(all_users)
        user["password"] = user["password"] + "x" if random.random() < 0.5 else user["password"]
        if random.random() < 0.3:
            user["user"] += "x"
    elif kind < 0.4 and all_users:
        user = random.choice(all_users)
        user["permissions"] = _permissions(random)
        if random.random() < 0.25:
            del user["permissions"]
    elif kind < 0.8 and accounts:
        name = random.choice(list(accounts))
        account = accounts[name]
        part = random.choice(("exports", "imports", "mappings", "limits", "users", "msg_trace", "default_permissions",
                              "gone", "moved", "imports", "exports", "mappings"))
        if part == "gone" and len(accounts) > 1:
            del accounts[name]
        elif part == "moved" and len(accounts) > 1 and account["users"]:
            other = random.choice([other for other in accounts if other != name])
            accounts[other]["users"].append(account["users"].pop())
        elif part == "imports":
            imports = [_import(random, name, accounts) for _ in range(random.randint(0, 2))]
            account["imports"] = list(filter(None, imports))
        elif part == "exports":
            if random.random() < 0.5 and account.get("exports"):
                account["exports"].pop(random.randrange(len(account["exports"])))
            else:
                account["exports"] = [*account.get("exports", []), _export(random)]
        else:
            fresh = _account(random, name)
            if part in fresh:
                account[part] = fresh[part]
            else:
                account.pop(part, None)
    else:
        name = random.choice(RELOADABLE)
        if name in fresh_config:
            config[name] = fresh_config[name]
        elif name in config:
            del config[name]
        else:
            config[name] = random.choice((64, 100, 1000))
