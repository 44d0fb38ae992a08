"""Growth of starts and reloads: each list and table of the configuration file, with n elements."""

from __future__ import annotations

from collections.abc import Callable

from tests.growth.meter import Case
from tests.growth.stage import Stage

__all__ = ["CASES"]


def _users(n: int) -> str:
    return "authorization { users [" + ", ".join(f"{{user: u{i}, password: p}}" for i in range(n)) + "] }\n"


def _users_with_permissions(n: int) -> str:
    users = ", ".join(f'{{user: u{i}, password: p, permissions: {{publish: "a.{i}.>", subscribe: ["b.{i}", "c.*"]}}}}'
                      for i in range(n))
    return f"authorization {{ users [{users}] }}\n"


def _accounts(n: int) -> str:
    accounts = "\n".join(f"A{i} {{ users [{{user: u{i}, password: p}}] }}" for i in range(n))
    return f"accounts {{\n{accounts}\n}}\n"


def _services(n: int) -> str:
    exports = ", ".join(f'{{service: "s.{i}"}}' for i in range(n))
    imports = ", ".join(f'{{service: {{account: A, subject: "s.{i}"}}, to: "t.{i}"}}' for i in range(n))
    return f"accounts {{ A {{ exports [{exports}] }}\n B {{ imports [{imports}] }} }}\n"


def _streams(n: int) -> str:
    exports = ", ".join(f'{{stream: "s.{i}.*"}}' for i in range(n))
    imports = ", ".join(f'{{stream: {{account: A, subject: "s.{i}.*"}}, prefix: "p"}}' for i in range(n))
    return f"accounts {{ A {{ exports [{exports}] }}\n B {{ imports [{imports}] }} }}\n"


def _importing_accounts(n: int) -> str:
    accounts = "\n".join(f'B{i} {{ imports [{{service: {{account: A, subject: "s.*"}}}}] }}' for i in range(n))
    return f'accounts {{ A {{ exports [{{service: "s.*"}}] }}\n{accounts} }}\n'


def _export_to_accounts(n: int) -> str:
    names = ", ".join(f"B{i}" for i in range(n))
    accounts = "\n".join(f"B{i} {{}}" for i in range(n))
    return f'accounts {{ A {{ exports [{{service: "s", accounts: [{names}]}}] }}\n{accounts} }}\n'


def _mappings(n: int) -> str:
    return "mappings {\n" + "\n".join(f'"m.{i}.*": "n.{i}.$1"' for i in range(n)) + "\n}\n"


def _destinations(n: int) -> str:
    return 'mappings { m: [' + ", ".join(f'{{destination: "n.{i}", weight: 0%}}' for i in range(n)) + "] }\n"


def _allowed(n: int) -> str:
    subjects = ", ".join(f'"a.{i}.>"' for i in range(n))
    return ('authorization { users [{user: a, password: p, permissions: '
            f"{{publish: {{allow: [{subjects}]}}, subscribe: {{allow: [{subjects}], deny: [{subjects}]}}}}}}] }}\n")


def _tags(n: int) -> str:
    return "server_tags: [" + ", ".join(f'"t:{i}"' for i in range(n)) + "]\n"


def _reload(config: Callable[[int], str]) -> Callable[[Stage, int], None]:
    """Read the file again with one element more."""
    def play(stage: Stage, n: int) -> None:
        stage.write(config(n + 1))
        with stage.measured():
            stage.reload()
    return play


_USERS = """authorization { users [
  { user: a, password: p, permissions: { publish: "a.>", subscribe: { allow: ">", deny: "b" } } },
  { user: b, password: %s } ] }
"""


def _reload_with_subscriptions(stage: Stage, n: int) -> None:
    """Change another user; the client with n subscriptions keeps its permissions."""
    client = stage.client(user="a", password="p")
    client.send(b"".join(b"SUB s.%d.* %d\r\n" % (i, i) for i in range(n)))
    client.sync()
    stage.write(_USERS % "q")
    with stage.measured():
        stage.reload()
    client.sync()


_CONFIGS: tuple[tuple[str, Callable[[int], str], int], ...] = (
    ("users", _users, 1000), ("users with permissions", _users_with_permissions, 300), ("accounts", _accounts, 350),
    ("service exports and imports", _services, 200), ("stream exports and imports", _streams, 100),
    ("importing accounts", _importing_accounts, 200),
    ("export to accounts", _export_to_accounts, 300), ("mappings", _mappings, 250),
    ("destinations", _destinations, 300), ("permissions", _allowed, 500), ("server_tags", _tags, 3000))

CASES = (
    # No client can cause a start.
    *(Case(f"start with {name}", None, n, config=config, turn_max_s=None) for name, config, n in _CONFIGS),
    *(Case(f"reload with {name}", _reload(config), n, config=config) for name, config, n in _CONFIGS
      if name not in ("server_tags",)),
    Case("reload with subscriptions", _reload_with_subscriptions, 4_000, config=_USERS % "p"),
)
