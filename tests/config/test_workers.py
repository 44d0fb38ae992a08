"""Reading a file for ``--workers``: what jetblock leaves to the nats-server in front, and what that gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError, InvalidFile, Settings
from broker.config.syntax import parse, plain
from broker.front.accounts import linked_names
from broker.front.configuration import Link, front_lines, worker_settings

LINK = Link("n-w1", 7001, 7002, "secret")


def read(tmp_path: Path, text: str, *flags: str, environ: dict[str, str] | None = None) -> Settings:
    """Return the settings of a file and flags."""
    path = tmp_path / "c.conf"
    path.write_text(text)
    return load(read_flags(["-c", str(path), "-js", *flags]), environ or {})


def front(settings: Settings) -> dict[str, Any]:
    """Return nats-server's configuration as values."""
    lines = front_lines(settings, [LINK], linked_names(settings), pages_port=7003, pages_path="/pages", port=4222)
    text = "\n".join(line for line, _ in lines)
    made: dict[str, Any] = plain(parse(text))
    return made


def test_blocks_that_jetblock_refuses_are_handed_over(tmp_path: Path) -> None:
    """The blocks are refused by one broker; with workers, nats-server gets them as they are."""
    text = 'server_name: n\ncluster { name: c, port: 6222 }\nmqtt { port: 1883, js_domain: d }\nocsp: true\n'
    with pytest.raises(InvalidFile, match="cluster"):
        read(tmp_path, text)
    made = front(read(tmp_path, text, "--workers", "1"))
    assert (made["cluster"], made["mqtt"], made["ocsp"]) == (
        {"name": "c", "port": 6222}, {"port": 1883, "js_domain": "d"}, True)
    assert front(read(tmp_path, text + "jetblock { workers: 1 }"))["cluster"]
    assert front(read(tmp_path, text, environ={"JETBLOCK_WORKERS": "1"}))["cluster"]


def test_what_nats_server_does_not_get(tmp_path: Path) -> None:
    """JetStream, the store, pages, logs and variables stay here; secrets of the store do not reach nats-server."""
    text = ('PASSWORD: pw\nport: 4000\nhttp: 8222\npid_file: "/p"\nlog_file: "/l"\njetstream { key: very-secret }\n'
            'jetblock { store: "memory://" }\n'
            'accounts { A { jetstream: enabled, users: [ { user: a, password: $PASSWORD } ] } }\n')
    settings = read(tmp_path, text, "--workers", "1")
    made = front(settings)
    assert made["accounts"] == {"A": {"users": [{"user": "a", "password": "pw"}]}}
    assert made["http"] == "127.0.0.1:7003"
    assert not {"PASSWORD", "pid_file", "log_file", "jetstream", "jetblock"} & made.keys()
    assert made["default_js_domain"] == {"A": ""}
    assert [remote["account"] for remote in made["leafnodes"]["remotes"]] == ["A", "$SYS"]
    assert all(remote["hub"] for remote in made["leafnodes"]["remotes"])
    worker = worker_settings(settings, LINK, linked_names(settings))
    assert not worker.clients.listen
    assert (worker.auth.users, worker.tls.enabled, worker.storage.key) == ((), False, "very-secret")
    assert {user.account for user in worker.leafnodes.users} == {"A", "$SYS"}


def test_flags_and_environment_beat_the_file(tmp_path: Path) -> None:
    """Values of flags and the environment replace those of the file, whatever their case and alias."""
    text = 'Max_Conn: 5\nleaf { remotes: [ { url: "nats-leaf://h" } ] }\nauthorization { user: a, password: b }\n'
    made = front(read(tmp_path, text, "--workers", "1", "--pass", "c", "-a", "::1",
                      environ={"JETBLOCK_MAX_CONNECTIONS": "7", "JETBLOCK_PING_INTERVAL": "20s"}))
    assert (made["max_connections"], made["ping_interval"], made["host"], made["port"]) == (7, "20s", "::1", 4222)
    assert "Max_Conn" not in made
    assert made["authorization"] == {"user": "a", "password": "c"}
    assert made["leaf"]["remotes"][0] == {"url": "nats-leaf://h"}
    assert "leafnodes" not in made


def test_texts_survive(tmp_path: Path) -> None:
    """Quotes, backslashes, line ends and dollar signs in values and keys reach nats-server unchanged."""
    text = r'server_metadata { "a b": "say \"hi\" \\ \t $HOME {x} ü" }' + "\n"
    assert front(read(tmp_path, text, "--workers", "1"))["server_metadata"] == {"a b": 'say "hi" \\ \t $HOME {x} ü'}


def test_flags_about_clusters(tmp_path: Path) -> None:
    """With workers they are for nats-server; without, they are refused."""
    flags = ("--cluster_listen", "nats://127.0.0.1:6222", "--no_advertise", "--routes=nats://h:6222")
    assert read(tmp_path, "", *flags, "--workers", "1").front.flags == (
        "--cluster_listen=nats://127.0.0.1:6222", "--no_advertise=true", "--routes=nats://h:6222")
    with pytest.raises(ConfigError, match="cluster_listen needs other servers"):
        read(tmp_path, "", *flags)
