"""Flags, environment and file become one ``Settings``: meaning, precedence, and the text of every error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker
from broker.access.accounts import User
from broker.base.machine import memory_bytes
from broker.config.flags import FlagError, read_flags
from broker.config.load import TEMPORARY_NOTICE, load
from broker.config.settings import (
    MASK,
    CertificateFiles,
    ConfigError,
    Settings,
    TlsSettings,
    default_store_url,
    settings_table,
)
from broker.config.show import show
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.log.settings import LogSettings
from tests import tokens
from tests.harness import NatsServerProcess

ACCOUNT_KEY = "AAAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB776S"

Load = Callable[..., Settings]


@pytest.fixture
def load_with(tmp_path: Path) -> Load:
    """Return a function to be called as ``load_with("flags here", file="text", VARIABLE="value")``."""
    def go(flags: str = "", file: str | None = None, **environ: str) -> Settings:
        words = flags.split()
        if file:
            path = tmp_path / "x.conf"
            path.write_text(file)
            words += ["-c", str(path)]
        return load(read_flags(words), environ)
    return go


def changed(found: Settings) -> dict[str, Any]:
    """Return the fields that differ from the defaults."""
    values = {setting.path: found[setting.path] for setting in settings_table()
              if found[setting.path] != setting.default}
    return values | ({"notices": found.notices} if found.notices else {})


ON = {"jetstream.enabled": True, "jetstream.server.max_memory": memory_bytes() // 4 * 3}
TEMPORARY = {**ON, "storage.url": default_store_url(), "notices": (TEMPORARY_NOTICE,)}

FILES: list[tuple[str, dict[str, Any]]] = [
    ("port: -1", {"clients.port": -1}),
    ('port: "-1"', {"clients.port": -1}),
    ("listen: localhost:4333", {"clients.host": "localhost", "clients.port": 4333}),
    ("listen: 127.0.0.1:-1", {"clients.host": "127.0.0.1", "clients.port": -1}),
    ('listen: "[::1]:5000"', {"clients.host": "::1", "clients.port": 5000}),
    ("listen: 4333", {"clients.port": 4333}),
    ('http: "127.0.0.1:-1"', {"monitoring.host": "127.0.0.1", "monitoring.port": -1}),
    ("http: 8222", {"monitoring.port": 8222}),
    ("monitor_port: 8222", {"monitoring.port": 8222}),
    ("net: 127.0.0.1\nserver_name: me\nserver_tags: [a:1, b]",
     {"clients.host": "127.0.0.1", "server_name": "me", "server_tags": ("a:1", "b")}),
    ("max_payload: 128KB\nping_interval: \"100ms\"\nping_max: 5\nmax_connections: 3",
     {"clients.max_payload": 128 << 10, "clients.ping_interval_ns": 100_000_000, "clients.ping_max": 5,
      "clients.max_connections": 3}),
    ("no_fast_producer_stall: true", {"clients.no_fast_producer_stall": True}),
    ("ping_interval: 10m", {"clients.ping_interval_ns": 600_000_000_000}),
    ("ping_interval: 7", {"clients.ping_interval_ns": 7_000_000_000}),
    ("debug: true\ntrace: true\nno_header_support: true\nlogfile: x.log\npidfile: x.pid\nports_file_dir: /tmp",
     {"logging.debug": True, "logging.trace": True, "clients.no_header_support": True, "logging.file": "x.log",
      "process.pid_file": "x.pid", "process.ports_file_dir": "/tmp"}),
    ("PORT: 1234\nMax_Payload: 1k", {"clients.port": 1234, "clients.max_payload": 1000}),
    ("authorization { username: a, pass: 0123, timeout: 0.001 }",
     {"auth.user": "a", "auth.password": "0123", "auth.timeout_ns": 1_000_000}),
    ('authorization { token: "t", timeout: "3s" }', {"auth.token": "t", "auth.timeout_ns": 3_000_000_000}),
    ("authorization { users [ {user: a, password: §12}, {username: b, pass: 007} ] }",
     {"auth.users": (User("a", "§12"), User("b", "007"))}),
    ("authorization { users [ {user: a, password: b} ] }\nno_auth_user: a",
     {"auth.users": (User("a", "b"),), "auth.no_auth_user": "a"}),
    ("max_connections: -1\njetstream { enabled: false, limits { max_ack_pending: -1 } }",
     {"clients.max_connections": 0}),
    ("mine: 4777\nport: $mine", {"clients.port": 4777}),
    ("authorization { extra: secret, user: u, password: $extra }", {"auth.user": "u", "auth.password": "secret"}),
    ("tls { cert_file: c.pem, key_file: k.pem }",
     {"tls.cert_file": "c.pem", "tls.key_file": "k.pem", "auth.timeout_ns": 3_000_000_000}),
    ("tls { cert_file: c, key_file: k, ca_file: a, verify: true, timeout: 0.5, handshake_first: 300ms, min_version: "
     "'1.3' }\n"
     "allow_non_tls: true\nauthorization { timeout: 7 }",
     {"tls.cert_file": "c", "tls.key_file": "k", "tls.ca_file": "a", "tls.verify": True, "tls.timeout_ns": 500_000_000,
      "tls.handshake_first_ns": 300_000_000, "tls.min_version": "1.3", "clients.allow_non_tls": True,
      "auth.timeout_ns": 7_000_000_000}),
    ("tls { cert_file: c, key_file: k, first: true, cipher_suites: [TLS_AES_128_GCM_SHA256], curve_preferences: "
     "[X25519]\n"
     f"pinned_certs: [{'Ab' * 32}], verify_and_map: true, connection_rate_limit: 9 }}",
     {"tls.cert_file": "c", "tls.key_file": "k", "tls.handshake_first_ns": 0, "tls.connection_rate_limit": 9,
      "tls.cipher_suites": ("TLS_AES_128_GCM_SHA256",), "tls.curve_preferences": ("X25519",),
      "tls.pinned_certs": ("ab" * 32,), "tls.verify_and_map": True, "auth.timeout_ns": 3_000_000_000}),
    ("tls { certs: [ { cert_file: a, key_file: b }, { cert_file: c, key_file: d } ] }",
     {"tls.certificates": (CertificateFiles("a", "b"), CertificateFiles("c", "d")), "auth.timeout_ns": 3_000_000_000}),
    ("websocket { listen: 'localhost:-1', no_tls: true, compress: true, origin: 'http://a', handshake_timeout: 5s,\n"
     "headers { X-A: b }, authorization { user: u, pass: p, timeout: 3 }, user_cookie: c, ping_interval: 9s }",
     {"websocket.host": "localhost", "websocket.port": -1, "websocket.no_tls": True, "websocket.compression": True,
      "websocket.allowed_origins": ("http://a",), "websocket.handshake_timeout_ns": 5_000_000_000,
      "websocket.headers": (("X-A", "b"),), "websocket.username": "u", "websocket.password": "p",
      "websocket.auth_timeout_ns": 3_000_000_000, "websocket.user_cookie": "c",
      "websocket.ping_interval_ns": 9_000_000_000}),
    ("ws { port: 80, tls { cert_file: c, key_file: k } }",
     {"websocket.port": 80, "websocket.tls.cert_file": "c", "websocket.tls.key_file": "k"}),
    ("jetstream: true", TEMPORARY),
    ("jetstream: enabled", TEMPORARY),
    ("jetstream {}", TEMPORARY),
    ("jetstream: disabled", {}),
    ("jetstream { enabled: false, store_dir: /x }", {"storage.url": "file:///x"}),
    ("jetstream { store_dir: '/x y', max_mem_store: 64MiB, max_file: 10TB, domain: hub, strict: false }",
     {**ON, "storage.url": "file:///x y", "jetstream.server.max_memory": 64 << 20,
      "jetstream.server.max_storage": 10 << 40,
      "jetstream.domain": "hub", "jetstream.strict": False}),
    ("jetstream { store_dir: /x, limits { max_ack_pending: 7, duplicate_window: 1m } }",
     {**ON, "storage.url": "file:///x", "jetstream.server.max_ack_pending": 7,
      "jetstream.server.duplicate_window_ns": 60_000_000_000}),
    ("jetstream { store_dir: '/x', sync_interval: '90s' }",
     {**ON, "storage.url": "file:///x", "storage.sync_interval_ns": 90_000_000_000}),
    ("jetstream { store_dir: '/x', sync: 0 }",
     {**ON, "storage.url": "file:///x", "storage.sync_interval_ns": 120_000_000_000}),
    ("jetstream { store_dir: '/x', sync_interval: Always }", {**ON, "storage.url": "file:///x"}),
    ("jetstream { object_store { endpoint: 'http://h:9', region: r, bucket: b, path_prefix: /p/q/, "
     "access_key_id: k, secret_access_key: s } }",
     {**ON, "storage.url": "s3://b/p/q", "storage.s3_endpoint": "http://h:9", "storage.s3_region": "r",
      "storage.s3_access_key_id": "k", "storage.s3_secret_access_key": "s"}),
    ("jetblock { store: 's3://b', commit_interval: 0, segment_bytes: 1MiB, puts_in_flight: 2, cache_bytes: 1MB, "
     "lease: 3s, put_timeout: 1s, compression: none, tail_bytes_max: 64MiB }",
     {**ON, "storage.url": "s3://b", "storage.commit_interval_ns": 0, "storage.segment_bytes": 1 << 20,
      "storage.puts_in_flight": 2, "storage.cache_bytes": 1 << 20, "storage.lease_ns": 3_000_000_000,
      "storage.put_timeout_ns": 1_000_000_000, "storage.compression": "none", "storage.tail_bytes_max": 64 << 20}),
    ('{"port": 1, "jetstream": {"store_dir": "/x"}}', {"clients.port": 1, **ON, "storage.url": "file:///x"}),
]


@pytest.mark.parametrize(("text", "wanted"), FILES)
def test_file(load_with: Load, text: str, wanted: dict[str, Any]) -> None:
    """Each file sets the table's fields and nothing else."""
    assert changed(load_with(file=text)) == wanted


REFUSED: list[tuple[str, str]] = [
    ("x: 1", ':1:0: unknown field "x"'),
    ("debug: true\n prot: 1", ':2:2: unknown field "prot"; did you mean port?'),
    ("jetstream {\n max_file_stor: 1 }", ':2:2: unknown field "max_file_stor"; did you mean max_file_store?'),
    ("jetstream { object_store { bukcet: b } }", 'unknown field "bukcet"; did you mean bucket?'),
    ("authorization { users [ { user: a, passwrd: b } ] }", 'unknown field "passwrd"; did you mean password?'),
    ("no_auth_user: a", ':1:0: no_auth_user: "a" present, but users/nkeys are not defined'),
    ("no_auth_user: a\nauthorization { users [ {user: b} ] }",
     ':1:0: no_auth_user: "a" not present as user or nkey in authorization block or account configuration'),
    ("port: 1\n  Foo { a: 1 }", ':2:3: unknown field "Foo"'),
    ("jetstream { foo: 1 }", 'unknown field "foo"'),
    ("jetblock { foo: 1 }", 'unknown field "foo"'),
    ("authorization { foo: 1 }", 'unknown field "foo"'),
    ("authorization { users [ { user: a, foo: 1 } ] }", 'unknown field "foo"'),
    ("jetstream { sync_interval: never }", "sync_interval must be always, or a duration such as 2m or 500ms"),
    ("jetstream { sync: -1s }", "sync must be always, or a duration such as 2m or 500ms"),
    ("tls { cert_file: x }", "missing 'key_file' in TLS configuration"),
    ("tls { key_file: x }", "missing 'cert_file' in TLS configuration"),
    ("tls {}", "tls needs a certificate"),
    ("tls { verify: true }", "TLS needs a certificate"),
    ("tls { cert_file: x, key_file: y, certs: [{ cert_file: a, key_file: b }] }", "cannot combine 'cert_file' option"),
    ("tls { certs: [{ cert_file: a }] }", "certs must be a list of"),
    ("tls { cert_file: x, key_file: y, handshake_first: soon }",
     "handshake_first must be true, false, auto or a duration"),
    ("tls { cert_file: x, key_file: y, pinned_certs: [ab] }", "hex-encoded sha256"),
    ("tls { cert_file: x, key_file: y, min_version: '1.1' }", "min_version must be one of 1.2, 1.3"),
    ("tls { cert_file: x, key_file: y, certfile: z }", 'unknown field "certfile"'),
    ("tls { cert_store: WindowsCurrentUser }", "it takes certificates from files"),
    ("websocket { port: -1 }", "websocket requires TLS configuration, or no_tls: true"),
    ("ws { port: -1, tls { cert_file: x } }", "missing 'key_file' in TLS configuration"),
    ("websocket { port: -1, no_tls: true, allowed_origins: [ftp://x] }",
     "must be absolute URLs with http or https scheme"),
    ("websocket { port: -1, no_tls: true, headers { Upgrade: x } }", 'cannot have an invalid header "Upgrade"'),
    ("websocket { port: -1, no_tls: true, jwt_cookie: j }", 'for JWT authentication via cookie "j"'),
    ("websocket { port: -1, no_tls: true, no_auth_user: u }", 'no_auth_user: "u" not present'),
    ("websocket { port: -1, no_tls: true, prot: 1 }", 'unknown field "prot"; did you mean port?'),
    ("cluster { name: c }", '"cluster" needs other servers'),
    ("leafnodes { port: -1, tls { cert_file: x } }", "missing 'key_file' in TLS configuration"),
    ("leafnodes { authorization { user: a, account: X } }", 'cannot find local account "X" specified in leafnode'),
    ("leafnodes { authorization { users: [ {password: a} ] } }", "User entry requires a user"),
    ("leafnodes { authorization { nkey: x } }", "Not a valid public nkey for a user"),
    ("leafnodes { authorization: x }", "Expected leafnode authorization to be a map/struct, got string"),
    ("leafnodes { port: -1, min_version: 2.7.9 }", "it should be at least 2.8.0"),
    ("leafnodes { remotes: x }", "Expected remotes field to be an array, got string"),
    ("leafnodes { remotes: [x] }", "Expected remote leafnode entry to be a map/struct, got x"),
    ("leafnodes { remotes: [{}] }", "a remote needs url: … or urls: […]"),
    ("leafnodes { remotes: [{url: 1}] }", "Expected remote leafnode url to be an array or string, got 1"),
    ("leafnodes { remotes: [{url: 'ws://a:1'}] }", '"ws://" is not supported by this version of jetblock'),
    ("leafnodes { remotes: [{url: 'nats://:1'}] }", "error parsing leafnode url: it has no host"),
    ("leafnodes { remotes: [{url: 'nats://a:99999'}] }", "its port is not between 0 and 65535"),
    ("leafnodes { remotes: [{url: 'nats://a', urls: x, acount: A}] }", 'unknown field "acount"; did you mean account?'),
    ("leafnodes { remotes: [{url: 'nats://a', account: A}] }",
     ':1:12: cannot find local account "A" specified in leafnode remote'),
    ("leafnodes { remotes: [{url: 'nats://a'}, {urls: ['nats://a:7422']}] }",
     ':1:12: duplicate remote urls=["nats://a:7422"], account="$G"'),
    ("leafnodes { remotes: [{url: 'leaf://a', creds: x, seed: "
     "SUACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB6JR7AAA}] }", "Remote leafnode nkey is not a valid seed"),
    ("leafnodes { remotes: [{url: 'leaf://a', ws_compress: true}] }", '"ws_compress" is not supported by this version'),
    ("leafnodes { remotes: [{url: 'leaf://a', ws_no_masking: true}] }", '"ws_no_masking" is not supported by this'),
    ("leafnodes { remotes: [{url: 'leaf://a', js_cluster_migrate: {leader_migrate_delay: 1s}}] }",
     '"js_cluster_migrate" is not supported by this version of jetblock: there is no Raft'),
    ("leafnodes { remotes: [{url: 'leaf://a', username: a}] }", 'unknown field "username"'),
    ("leafnodes { remotes: [{url: 'leaf://a', deny_exports: 5}] }", "Expected subject permissions to be a subject, or"),
    ("leafnodes { remotes: [{url: 'leaf://a', tls: {pinned_certs: [a]}}] }", '"pinned_certs" is not supported by'),
    ("leafnodes { remotes: [{url: 'leaf://a', tls: {cipher_suites: [a]}}] }", '"cipher_suites" is not supported by'),
    ("leafnodes { remotes: [{url: 'leaf://a', tls: {ocsp_peer: true}}] }", '"ocsp_peer" is not supported by'),
    ("leafnodes { authorization { users: [{user: a}, {user: a}] } }", 'duplicate user "a" detected in leafnode'),
    ("leafnodes { authorization { users: [{user: a, nkey: b}] } }", 'unknown field "nkey"'),
    ("leafnodes { authorization { users: [{user: a, proxy_required: true}] } }", '"proxy_required" is not supported'),
    ("leafnodes { write_timeout: x }", "write_timeout must be one of default, close, retry"),
    ("leafnodes { remotes: [{url: 'nats://a', proxy: {url: x}}] }", '"proxy" is not supported by this version'),
    ("leafnodes { remotes: [{url: 'nats://a', compression: s2_fast}] }", '"compression" is not supported'),
    ("leafnodes { compression: { mode: s2_auto } }", '"compression" is not supported'),
    ("jetblock { upstreams: x }", "upstreams must be a block of names and their settings"),
    ("jetblock { upstreams { a.b { url: 'nats://a' } } }", 'invalid name of an upstream "a.b"'),
    ("jetblock { upstreams { a: x } }", "upstream a must be a block"),
    ("jetblock { upstreams { a {} } }", "upstream a needs urls: […]"),
    ("jetblock { upstreams { a { url: 'http://a' } } }", "the URL of an upstream must be nats://HOST:PORT"),
    ("jetblock { upstreams { a { url: 'nats://a', usr: b } } }", 'unknown field "usr"; did you mean user?'),
    ("jetblock { upstreams { a { url: 'nats://a', token: b, user: c } } }", "upstream a has user and token"),
    ("jetblock { upstreams { a { url: 'nats://a', password: b } } }", "upstream a has a password without a user"),
    ("jetblock { upstreams { a { url: 'nats://a', nkey: b } } }", "must be a user's seed, which begins with SU"),
    ("jetblock { upstreams { a { url: 'nats://a', inbox_prefix: 'a.>' } } }", "a subject without wildcards"),
    ("jetblock { upstreams { a { urls: ['nats://a', 'ws://b'] } } }", "must all be for WebSocket, or none of them"),
    ("jetblock { upstreams { a { url: 'nats://a', account: A } } }", 'cannot find local account "A"'),
    ("leafnodes { remotes: [{url: 'nats://a', nkey: SUxx}] }", "Remote leafnode nkey is not a valid seed"),
    ("leafnodes { remotes: [{url: 'nats://a', deny_imports: 'a..b'}] }", 'subject "a..b" is not a valid subject'),
    ("leafnodes { remotes: [{url: 'nats://a', tls: {cert_file: x}}] }", "a certificate needs both: cert_file"),
    ("system_account: A", ":1:0: error resolving system account: account missing"),
    ("accounts { A { exports: [ {service: s, latency: l} ] } }\nno_system_account: true",
     ':1:0: Error adding service latency sampling for "s": system account not setup'),
    ("accounts { A {} }\nsystem_account: A\nno_system: true",
     "there cannot be no system account and one that is named"),
    ("operator: /nowhere", ':1:0: error parsing operator JWT: open /nowhere: no such file or directory'),
    ("operator: eyJ.x.y", ":1:0: error parsing operator JWT: unexpected end of JSON input"),
    ("resolver: X", ':1:0: error parsing account resolver, should be MEM or  URL("url") or a map'),
    ("resolver_tls { cipher_suites: x }", '"cipher_suites" is not supported'),
    ("resolver_tls: x", "resolver_tls must be a block"),
    ("mqtt { port: 1 }", '"mqtt" is nothing that jetblock has'),
    ("jetblock { compaction_segments: 16 }",
     '"compaction_segments" was removed: compaction has a constant in its place; delete the line'),
    ("gateway { name: g }", '"gateway" needs other servers'),
    ("authorization { users [ { user: a, proxy_required: 5 } ] }", "proxy_required must be true or false"),
    ("proxies: 5", "expected proxies to be a map/struct, got int64"),
    ("proxies { trusted: 5 }", "expected proxies' trusted field to be an array, got int64"),
    ("proxies { trusted: [ 5 ] }", "expected proxies' trusted entry to be a map/struct, got int64"),
    ("proxies { trusted: [ { key: N } ] }", 'invalid proxy key "N"'),
    ("proxies { trust: [ ] }", 'nknown field "trust"'),
    ("authorization { auth_callout { issuer: A } }",
     'Expected callout user to be a valid public account nkey, got "A"'),
    ("authorization { auth_callout { account: A } }", "Authorization callouts require an issuer to be specified"),
    ("authorization { auth_callout: 5 }", "Expected authorization callout to be a map/struct, got 5"),
    (f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY} }} }}", "require authorized users to be specified"),
    (f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY}, auth_users: x }} }}",
     "Expected auth_users field to be an array"),
    (f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY}, auth_users: [x], xkey: x }} }}",
     'Expected callout xkey to be a valid public xkey, got "x"'),
    (f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY}, auth_users: [x], allowed_accounts: [N] }} }}",
     ':1:16: auth_callout allowed account "N" not found in configured accounts'),
    (f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY}, auth_users: [x], what: 1 }} }}",
     'Unknown field "what" parsing authorization callout'),
    ("server_name: 'a b'", "server_name cannot contain spaces"),
    ("port: x", "port must be a port number, or -1 for any free one, not 'x'"),
    ("port: 70000", "port must be a port between 1 and 65535"),
    ("listen: a:b:c", "an IPv6 address in [brackets]"),
    ("http: nowhere", "http must be a port number"),
    ("max_payload: 1XB", "max_payload must be a size such as 64MB"),
    ("max_payload: 128MB", "max_payload must be between 1 bytes and"),
    ("max_payload: 8MB\nmax_pending: 1MB", ":1:0: max_payload (8388608) cannot be higher than max_pending"),
    ("ping_interval: soon", "ping_interval must be a duration such as 100ms"),
    ("ping_max: 0", "ping_max must be at least 1"),
    ("debug: maybe", "debug must be true or false, not 'maybe'"),
    ("jetstream: maybe", "jetstream must be a block, enabled or disabled"),
    ("jetstream { store_dir: 5 }", "store_dir must be a directory"),
    ("jetstream { object_store { endpoint: x } }", "object_store needs a bucket"),
    ("jetstream { object_store { bucket: 'a/b' } }", "bucket must be the name of a bucket"),
    ("jetstream { store_dir: /x, object_store { bucket: b } }", "streams can be kept in one place only"),
    ("jetblock { store: 'ftp://x' }", "must be a URL with file://, s3:// or memory://"),
    ("jetblock { compression: lz4 }", "compression must be one of zstd, none"),
    ("jetblock { put_timeout: 20s }", "put_timeout must be lower than lease"),
    ("jetblock { puts_in_flight: 17 }", "puts_in_flight must be between 1 and 16, not '17'"),
    ("jetblock { store: 's3://b', commit_interval: 10s }",
     ":1:28: commit_interval (10s) and put_timeout (5s) together must be lower than lease (15s)"),
    ("jetblock { commit_interval: -1s }", "commit_interval must be between 0s and 10s"),
    ("authorization { token: t, user: u, password: p }", "Cannot have a user/pass and token"),
    ("authorization { password: p }", "has a password and no user"),
    ("lame_duck_duration: 5s", "lame_duck_grace_period must be lower than lame_duck_duration"),
    ("port: [", "Parse error on line 1"),
]


@pytest.mark.shows("store.sync_interval")
@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_file_refused(load_with: Load, text: str, why: str) -> None:
    """Each mistake has an error with its place in the file, its key and a valid value."""
    with pytest.raises(ConfigError) as caught:
        load_with(file=text)
    assert why in str(caught.value)
    assert "x.conf" in str(caught.value)


def test_what_settings_allow_the_log_takes(load_with: Load) -> None:
    """The settings' bound of puts in flight is the log's. Any interval suits a directory, which needs no lease."""
    most, more = str(PUTS_IN_FLIGHT_MAX), str(PUTS_IN_FLIGHT_MAX + 1)
    LogSettings(puts_in_flight=load_with(JETBLOCK_PUTS_IN_FLIGHT=most).storage.puts_in_flight)
    with pytest.raises(ConfigError, match=f"JETBLOCK_PUTS_IN_FLIGHT must be between 1 and {most}, not '{more}'"):
        load_with(JETBLOCK_PUTS_IN_FLIGHT=more)
    assert load_with("--store file:///a", JETBLOCK_COMMIT_INTERVAL="10s").storage.commit_interval_ns == 10_000_000_000


@pytest.mark.shows("operation.check")
def test_an_empty_file_fails_a_check_only(load_with: Load) -> None:
    """A check refuses an empty file and a start accepts it, as on nats-server."""
    notice = "x.conf: config has no values or is empty"
    assert [line.endswith(notice) for line in load_with("", file="# nothing").notices] == [True]
    with pytest.raises(ConfigError, match=notice):
        load_with("-t", file="# nothing")


def test_every_mistake_at_once(load_with: Load) -> None:
    """A file with three mistakes is refused once, with three lines."""
    with pytest.raises(ConfigError) as caught:
        load_with(file="x: 1\nport: y\nmqtt {}\n")
    assert [line.rsplit("x.conf", 1)[1][:5] for line in str(caught.value).splitlines()] == [":1:0:", ":2:1:", ":3:1:"]


@pytest.mark.shows("auth.redaction")
def test_secrets_stay_out_of_messages(load_with: Load) -> None:
    """Neither a refusal nor the printed settings show a password, a token or a key."""
    with pytest.raises(ConfigError) as caught:
        load_with(file="authorization { password: { hunter2: 1 } }")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_with(JETBLOCK_SERVER_NAME="fine", JETBLOCK_PASSWORD="hunter2")
    assert "hunter2" not in str(caught.value)
    found = load_with(file="authorization { user: u, password: hunter2 }\n"
                      "jetstream { object_store { bucket: b, access_key_id: hunter2, secret_access_key: hunter2 } }")
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(load_with(file="authorization { users [ {user: a, password: hunter2} ] }"))


@pytest.mark.shows("operation.flags_win")
def test_precedence(load_with: Load) -> None:
    """Flags override the environment, which overrides the file, in any order."""
    text = "port: 1001\nmax_payload: 1KB\nping_max: 9"
    found = load_with("-p 1003", text, JETBLOCK_PORT="1002", JETBLOCK_MAX_PAYLOAD="2KB")
    clients = found.clients
    assert (clients.port, clients.max_payload, clients.ping_max) == (1003, 2048, 9)


@pytest.mark.parametrize(("flags", "file", "environ", "jetstream", "store"), [
    ("-js", "", {}, True, default_store_url()),
    ("-sd /a", "", {}, False, "file:///a"),
    ("-js -sd /a", "", {}, True, "file:///a"),
    ("--store s3://b/p", "", {}, True, "s3://b/p"),
    ("--store memory://", "", {}, True, "memory://"),
    ("-sd /a", "jetstream {}", {}, True, "file:///a"),
    ("--store file:///a", "jetstream: disabled", {}, True, "file:///a"),
    ("-js", "jetstream: disabled", {}, True, default_store_url()),
    ("-js=false", "jetstream { store_dir: /b }", {}, False, "file:///b"),
    ("", "", {"JETBLOCK_STORE": "file:///e"}, True, "file:///e"),
    ("", "jetstream { store_dir: /b }", {"JETBLOCK_STORE": "file:///e"}, True, "file:///e"),
    ("--store file:///a", "", {"JETBLOCK_STORE": "file:///e"}, True, "file:///a"),
    ("", "jetstream { store_dir: /b }", {"JETBLOCK_JETSTREAM": "false"}, False, "file:///b"),
])
def test_where_streams_are_kept(load_with: Load, flags: str, file: str, environ: dict[str, str], jetstream: bool,
                                store: str) -> None:
    """The table's settings turn JetStream on or off, and one of several stores is used."""
    found = load_with(flags, file, **environ)
    assert (found.jetstream.enabled, found.storage.url) == (jetstream, store)


def test_relative_store_is_made_absolute(load_with: Load) -> None:
    """A relative store is relative to the working directory at the start, as on nats-server."""
    assert load_with("-js -sd some/dir").storage.url == f"file://{Path('some/dir').absolute()}"


@pytest.mark.parametrize(("flags", "why"), [
    ("--store file:///a -sd /b", "two places"),
    ("--store data", "try file://data"),
    ("--store s3://", "names no bucket"),
    ("-c /nowhere/x.conf", "open /nowhere/x.conf: no such file or directory"),
    ("-c /", "open /: is a directory"),
    ("--tls", "TLS Server certificate must be present and valid"),
    ("--tlsverify --tlscert c.pem", "TLS Server private key must be present and valid"),
    ("--help_tls", "docs/CONFIGURATION.md"),
    ("--cluster nats://x:1", "needs other servers"),
    ("--routes nats://x:1", "needs other servers"),
])
def test_command_line_refused(load_with: Load, flags: str, why: str) -> None:
    """Impossible settings are refused with a reason."""
    with pytest.raises(ConfigError, match=why):
        load_with(flags)


@pytest.mark.parametrize(("flags", "wanted"), [
    ("--tls --tlscert c --tlskey k", TlsSettings("c", "k")),
    ("--tlsverify --tlscert=c --tlskey=k --tlscacert a", TlsSettings("c", "k", ca_file="a", verify=True)),
    ("--tls=false", TlsSettings()),
    ("--tls=false --tlscert c", TlsSettings()),
    ("-p 1", TlsSettings("file", "key", timeout_ns=7_000_000_000)),
])
def test_flags_about_tls_replace_the_files_settings_as_a_whole(load_with: Load, flags: str,
                                                               wanted: TlsSettings) -> None:
    """TLS flags replace the file's whole block, or turn TLS off."""
    assert load_with(flags, "tls { cert_file: file, key_file: key, timeout: 7 }").tls == wanted


def test_file_that_is_no_text(load_with: Load, tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a parse error, not a crash."""
    path = tmp_path / "bytes.conf"
    path.write_bytes(b"port: \xff\xfe")
    with pytest.raises(ConfigError, match="Parse error"):
        load_with(f"-c {path}")


@pytest.mark.shows("operation.flags")
@pytest.mark.parametrize(("words", "wanted"), [
    (["-p", "-1"], {"clients.port": -1}),
    (["--port=4333"], {"clients.port": 4333}),
    (["-a=127.0.0.1", "--http_port", "8222"], {"clients.host": "127.0.0.1", "monitoring.port": 8222}),
    (["-js"], {"jetstream.enabled": True}),
    (["--jetstream=false"], {"jetstream.enabled": False}),
    (["-DV"], {"logging.debug": True, "logging.trace": True}),
    (["-D", "-V"], {"logging.debug": True, "logging.trace": True}),
    (["-n", "me", "-P", "x.pid", "-l", "x.log"],
     {"server_name": "me", "process.pid_file": "x.pid", "logging.file": "x.log"}),
    (["--user", "u", "--pass", "p"], {"auth.user": "u", "auth.password": "p"}),
    (["--auth", "t"], {"auth.token": "t"}),
])
def test_flags(words: list[str], wanted: dict[str, Any]) -> None:
    """Flags have one dash or two, and a blank or an equals sign before the value."""
    assert read_flags(words).values == wanted


@pytest.mark.shows("operation.flags")
def test_other_words_of_the_command_line() -> None:
    """Files, signals and arguments after the flags are fields of the command line."""
    line = read_flags(["-c", "f", "-sd=d", "--signal", "ldm=7", "-t", "stray", "-p", "1"])
    assert (line.config, line.store_dir, line.signal, line.test, line.words) == (
        "f", "d", "ldm=7", True, ["stray", "-p", "1"])


@pytest.mark.parametrize("words", [["-foo"], ["--port"], ["-p", "x"], ["-D=maybe"], ["---p", "1"]])
def test_flags_that_get_the_usage(words: list[str]) -> None:
    """These flags are errors for which nats-server prints its usage, with status 0."""
    with pytest.raises(FlagError):
        read_flags(words)


def test_environment(load_with: Load) -> None:
    """Each kind of value has a variable; an empty variable is unset; variables of the tests are ignored."""
    found = load_with(JETBLOCK_PORT="-1", JETBLOCK_COMMIT_INTERVAL="20ms", JETBLOCK_SEGMENT_BYTES="1MiB",
                      JETBLOCK_DEBUG="true", JETBLOCK_SERVER_TAGS="a,b", JETBLOCK_TOKEN="", JETBLOCK_TEST_SEEDS="5")
    assert changed(found) == {"clients.port": -1, "storage.commit_interval_ns": 20_000_000,
                              "storage.segment_bytes": 1 << 20, "logging.debug": True, "server_tags": ("a", "b")}


@pytest.mark.parametrize(("environ", "why"), [
    ({"JETBLOCK_PRT": "1"}, "JETBLOCK_PRT names no setting of jetblock; did you mean JETBLOCK_PORT?"),
    ({"JETBLOCK_USERS": "a"}, "JETBLOCK_USERS names no setting"),
    ({"JETBLOCK_COMPACTION_MEMORY": "1GiB"},
     "JETBLOCK_COMPACTION_MEMORY was removed: compaction has a constant in its place; unset it"),
    ({"JETBLOCK_PORT": "x"}, "environment: JETBLOCK_PORT must be a port number, or -1 for any free one, not 'x'"),
    ({"JETBLOCK_COMMIT_INTERVAL": "soon"}, "JETBLOCK_COMMIT_INTERVAL must be a duration"),
])
def test_environment_refused(load_with: Load, environ: dict[str, str], why: str) -> None:
    """A misspelt variable is refused: it would otherwise be ignored silently."""
    with pytest.raises(ConfigError) as caught:
        load_with(**environ)
    assert why in str(caught.value)


def test_no_auth_user_from_the_environment(load_with: Load) -> None:
    """The user must be one of the file's; otherwise the broker does not start."""
    users = "authorization { users [ {user: a} ] }"
    assert load_with(file=users, JETBLOCK_NO_AUTH_USER="a").auth.no_auth_user == "a"
    with pytest.raises(ConfigError, match='no_auth_user: "b" not present as user or nkey'):
        load_with(file=users, JETBLOCK_NO_AUTH_USER="b")


@pytest.mark.parametrize("text", ["no_auth_user: a",
                                  "no_auth_user: a\nauthorization { users [ {user: b, password: c} ] }"])
def test_an_unknown_no_auth_user_as_the_real_server_tells_it(load_with: Load, tmp_path: Path, text: str) -> None:
    """nats-server checks this at start, not with -t; the texts are the same."""
    with pytest.raises(ConfigError) as caught:
        load_with(file=text)
    done = subprocess.run([*NatsServerProcess.command, "-p", "-1", "-c", str(tmp_path / "x.conf")], capture_output=True,
                          text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert str(caught.value).partition(":1:0: ")[2] in done.stderr


SHOWN = [
    ("", "", {}),
    ("-js", "", {}),
    ("--store memory:// -m -1 -D", "server_tags: [a, 'b c']\nserver_name: '\"x\"\\y'", {}),
    ("", "listen: '[::1]:5000'\nhttp: '[::1]:8222'\nping_interval: 1m30.5s\nmax_connections: -1", {}),
    ("", "jetstream { object_store { bucket: b, path_prefix: p/q, endpoint: 'http://h:9', region: r } }",
     {"JETBLOCK_COMMIT_INTERVAL": "0"}),
    ("", "jetstream { enabled: false, store_dir: /x, domain: hub, strict: false, limits { max_request_batch: 5 } }",
     {"JETBLOCK_HTTP_HOST": "127.0.0.1", "JETBLOCK_HTTP_PORT": "8333"}),
]


@pytest.mark.parametrize(("flags", "file", "environ"), SHOWN)
def test_what_is_shown_can_be_read_back(load_with: Load, flags: str, file: str, environ: dict[str, str]) -> None:
    """The settings' text, as a file, gives the same settings."""
    found = load_with(flags, file, **environ)
    again = load_with(file=show(found))
    assert {setting.path: again[setting.path] for setting in settings_table()} == {
        setting.path: found[setting.path] for setting in settings_table()}
    assert show(again) == show(found)


@pytest.mark.shows("auth.redaction")
def test_what_is_shown_masks_secrets(load_with: Load) -> None:
    """Every password, token and key is masked. A file with a mask is refused, with place and name of the secret."""
    for text in ("authorization { user: u, password: hunter2 }", "authorization { token: hunter2 }",
                 "authorization { users [ {user: u, password: hunter2} ] }",
                 "accounts { A { users [ {user: u, password: hunter2} ] } }",
                 f"operator: {tokens.operator()}\nresolver: URL(http://u:hunter2@127.0.0.1/jwt/v1/accounts/)",
                 "jetstream { object_store { bucket: b, access_key_id: hunter2, secret_access_key: hunter2 } }"):
        shown = show(load_with(file=text))
        assert "hunter2" not in shown
        assert MASK in shown
        with pytest.raises(ConfigError, match=r":\d+:\d+: \w+ is \"\[REDACTED\]\", which stands for a secret"):
            load_with(file=shown)
        assert show(load_with(file=shown.replace(MASK, "hunter2"))) == shown


def test_versions_have_one_source() -> None:
    """The version sent to clients is defined in one place, so that a new version is one edit."""
    root = Path(broker.__file__).parent
    versioned = [
        str(path.relative_to(root)) for path in root.rglob("*.py")
        if f'"{broker.NATS_SERVER_VERSION}"' in path.read_text() or f'"{broker.__version__}"' in path.read_text()]
    assert versioned == ["__init__.py"]


def test_names_are_unambiguous() -> None:
    """No two settings share a variable or a key, and each has one sentence."""
    variables = [setting.variable for setting in settings_table() if setting.variable]
    keys = [key for setting in settings_table() for key in setting.keys]
    assert len(set(variables)) == len(variables)
    assert len(set(keys)) == len(keys)
    assert all(setting.about.endswith(".") for setting in settings_table())


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(
    ["port", "listen", "http", "jetstream", "jetblock", "authorization", "users", "user", "store_dir", "object_store",
     "bucket", "limits", "ping_interval", "max_payload", "{", "}", "[", "]", ":", "1", "x", "true", "10m", "$port", ",",
     "\n", "'", "-1", "1.5", "2026-01-02T03:04:05Z"]), max_size=25))
def test_any_file(words: list[str]) -> None:
    """Any file becomes settings or is refused; no other error is raised."""
    try:
        load(read_flags(["-c", "any.conf"]), {}, lambda _path: " ".join(words))
    except ConfigError:
        pass


@pytest.mark.shows("operation.unknown_keys")
@pytest.mark.parametrize("text", [
    "x: 1", "port: 1\n  Foo: 2", "\n\nx: 1", "jetstream {\n foo: 1\n}", "a: 1\nb: 2",
    "authorization {\n\n   foo: 1\n}"])
def test_unknown_fields_as_the_real_server_tells_them(load_with: Load, tmp_path: Path, text: str) -> None:
    """The errors have the same file, line and column."""
    with pytest.raises(ConfigError) as caught:
        load_with(file=text)
    done = subprocess.run([*NatsServerProcess.command, "-t", "-c", str(tmp_path / "x.conf")], capture_output=True,
                          text=True, timeout=100, check=False)
    assert done.returncode == 1
    ours = {f"nats-server: {line}" for line in str(caught.value).splitlines()}
    theirs = set(done.stderr.strip().splitlines())
    # nats-server begins only the first of several lines with its name, and suggests no similar key.
    assert {line.removeprefix("nats-server: ").partition("; did you mean")[0] for line in ours} == {
        line.removeprefix("nats-server: ") for line in theirs if line}
