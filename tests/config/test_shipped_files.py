"""The shipped files are correct: configuration, compose file, image, the page of settings.

These checks need no Docker engine. They show that:

    the broker accepts the compose file's command, variables and configuration
    the order of its services works
    the policy of the broker's user is enough on a real MinIO
    the image's health check passes for brokers that serve or wait, and fails for others
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from broker.config.flags import read_flags
from broker.config.load import load, read_text
from broker.config.settings import Settings, settings_table
from broker.config.syntax import parse, plain
from broker.console.cli import make_parser
from tests.harness import BrokerProcess, fetch
from tests.real.s3 import S3Server, session_of

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "config" / "jetblock.conf"
POLICY = ROOT / "config" / "minio-policy.json"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def _interpolated(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Expand ``${NAME:-default}`` like the engine; no variable is set unless ``environ`` has it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda name: (environ or {}).get(name[1]) or name[2], text)


def test_shipped_configuration() -> None:
    """The shipped configuration is valid, and has the effects that its comments describe."""
    found = load(read_flags(["-c", str(CONF)]), {})
    assert (found.clients.port, found.monitoring.port, found.jetstream.enabled) == (4222, 8222, True)
    assert [line.partition(",")[0] for line in found.notices] == ["Temporary storage directory used"]
    assert load(read_flags(["-c", str(CONF), "--store", "file:///srv/jetblock"]), {}).notices == ()


def test_what_is_commented_out_is_the_default() -> None:
    """Each commented line of the engine's block, uncommented, changes nothing; each names a known key."""
    text = CONF.read_text()
    block = text[text.index("\njetblock {"):]
    for key, value in re.findall(r"^  # (\w+): (\S+)", block, re.MULTILINE):
        found = load(read_flags(["-c", "x"]), {}, lambda _path, key=key, value=value: f"jetblock {{ {key}: {value} }}")
        if key != "commit_interval":  # whose default depends on the store
            assert found.replace(file="", digest="") == Settings(), key
    shown = set(re.findall(r"^  # (\w+): ", block, re.MULTILINE))
    known = {setting.keys[0].removeprefix("jetblock.") for setting in settings_table()
             if setting.keys and setting.keys[0].startswith("jetblock.")}
    assert shown == {key for key in known if not key.startswith("monitor.")} - {"store", "upstreams"}


def test_every_commented_setting_is_valid() -> None:
    """The file is accepted with every commented setting uncommented, except for the two stores."""
    lines = []
    for line in CONF.read_text().splitlines():
        opened = re.sub(r"^(\s*)# ((?:  )?(?:\w+: \S|\w+ \{|\}).*)", r"\1\2", line)
        lines.append(line if "store_dir" in line else opened)
    text = "\n".join(lines)
    environ = {"APP_PASSWORD": "p", "KEY_ID": "k", "SECRET_KEY": "s", "MONITOR_PASSWORD": "m"}
    top = plain(parse(text, environ=environ))
    assert {"authorization", "jetstream", "jetblock"} <= top.keys()
    found = load(read_flags(["-c", "x"]), environ, lambda _path: text)
    assert (found.auth.user, found.storage.url, found.storage.s3_region) == ("app", "s3://jetblock/streams",
                                                                             "us-east-1")


@pytest.mark.shows("operation.container")
def test_compose_starts_what_the_broker_takes(compose: dict[str, Any]) -> None:
    """The flags and variables of the compose file become settings: S3, no pause between commits, a name."""
    service = compose["services"]["jetblock"]
    environ = {name: _interpolated(value) for name, value in service["environment"].items()}
    found = load(read_flags(service["command"]), environ, lambda _path: read_text(str(CONF)))
    storage = found.storage
    assert (storage.url, storage.commit_interval_ns, found.server_name) == ("s3://jetblock/streams", 0, "jetblock")
    assert (found.clients.port, found.monitoring.port) == (4222, 8222)


def test_compose_asks_whoever_is_told_to(compose: dict[str, Any]) -> None:
    """With user and password in the environment, clients must log in; a hash is used unchanged."""
    service = compose["services"]["jetblock"]
    given = {"JETBLOCK_USER": "app", "JETBLOCK_PASSWORD": "$2b$04$abc"}
    environ = {name: _interpolated(value, given) for name, value in service["environment"].items()}
    found = load(read_flags(service["command"]), environ, lambda _path: read_text(str(CONF)))
    assert (found.auth.user, found.auth.password) == ("app", "$2b$04$abc")


def test_compose_needs_no_variable_and_opens_no_port(compose: dict[str, Any]) -> None:
    """Each variable has a default, and by default everything is reachable from this machine only."""
    text = "\n".join(line.partition("#")[0] for line in (ROOT / "docker-compose.yml").read_text().splitlines())
    assert re.sub(r"\$\{\w+:-[^}$]*\}|\$\$", "", text).count("$") == 0
    ports = [_interpolated(port) for service in compose["services"].values() for port in service.get("ports", ())]
    assert sorted(ports) == ["127.0.0.1:4222:4222", "127.0.0.1:8080:8080", "127.0.0.1:8222:8222", "127.0.0.1:9000:9000",
                             "127.0.0.1:9001:9001"]
    moved = {"NATS_BIND": "0.0.0.0", "NATS_PORT": "4333", "HTTP_PORT": "8333", "S3_PORT": "9332",
             "CONSOLE_PORT": "9333", "PAGES_PORT": "8088"}
    ports = [_interpolated(port, moved) for service in compose["services"].values()
             for port in service.get("ports", ())]
    assert sorted(ports) == ["0.0.0.0:4333:4222", "127.0.0.1:8088:8080", "127.0.0.1:8333:8222", "127.0.0.1:9332:9000",
                             "127.0.0.1:9333:9001"]


def test_compose_starts_the_console(compose: dict[str, Any]) -> None:
    """The console has the broker's store and no root key, asks for a login, and its arguments are valid."""
    services = compose["services"]
    console = services["console"]
    assert console["command"][0] == "console"
    options = make_parser().parse_args(console["command"][1:])
    assert (options.server, options.monitor) == ("nats://jetblock:4222", "http://jetblock:8222")
    assert (options.creds, options.user, options.no_login) == (None, None, False)
    broker = services["jetblock"]
    assert options.store == broker["command"][broker["command"].index("--store") + 1]
    assert console["environment"].items() <= broker["environment"].items()
    assert "ARG EXTRAS" in (ROOT / "Dockerfile").read_text()


def test_compose_keeps_the_root_key_from_the_broker(compose: dict[str, Any]) -> None:
    """The broker runs as the user that the first container creates, without root's credentials in any variable."""
    services = compose["services"]
    made = {name: _interpolated(value) for name, value in services["bucket"]["environment"].items()}
    broker = {name: _interpolated(value) for name, value in services["jetblock"]["environment"].items()}
    assert (broker["AWS_ACCESS_KEY_ID"], broker["AWS_SECRET_ACCESS_KEY"]) == (made["S3_ACCESS_KEY"],
                                                                             made["S3_SECRET_KEY"])
    root = services["minio"]["environment"]
    assert {name: made[name] for name in root} == {name: _interpolated(value) for name, value in root.items()}
    assert not {made[name] for name in root} & set(broker.values())
    assert {len(secret) >= 8 for secret in (made["MINIO_ROOT_PASSWORD"], made["S3_SECRET_KEY"])} == {True}


def test_everything_is_pinned(compose: dict[str, Any]) -> None:
    """Images have fixed tags; all stages of the image have the same base."""
    for name in ("minio", "bucket"):
        assert re.fullmatch(r"minio/\w+:RELEASE\.\d{4}-\d\d-\d\dT[\d-]+Z", compose["services"][name]["image"])
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (?:--platform=\S+ )?(\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}


async def test_the_policy_is_enough_and_no_more(minio: S3Server, tmp_path: Path) -> None:
    """With only the shipped policy a broker can create, fill, purge and delete a stream, and cannot read another
    bucket.

    The test uses a session policy, which MinIO grants without its admin client.
    """
    text = POLICY.read_text()
    assert text.count("arn:aws:s3:::jetblock") == 2
    session = session_of(minio, text.replace(":::jetblock", f":::{minio.bucket}"))
    minio.make_bucket(f"other-{minio.bucket}")
    async with BrokerProcess("--store", minio.new_url(), environ=session) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s.>"])
        for _ in range(20):
            await js.publish("s.x", bytes(1000))
        await js.purge_stream("S")
        await js.delete_stream("S")
        await client.close()
        assert await broker.stop() == 0
        # On a busy machine the store may be slow, and the log has a warning about that.
        assert not [line for line in broker.stderr if "[ERR]" in line or "(403)" in line]
    broker = BrokerProcess("--store", f"s3://other-{minio.bucket}/x", environ=session)
    try:
        await broker.start(ready=False)
        await broker.wait_line("AccessDenied")
        assert await broker.wait_end() == 1
    finally:
        await broker.close()


async def test_health_check_of_the_image(tmp_path: Path) -> None:
    """The image's own command passes for an owner and a standby on any port, and fails without a running process."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    found = re.search(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    assert found
    command = [sys.executable, *json.loads(found[1])[1:]]

    async def passes(port: int) -> bool:
        environ = {**os.environ, "JETBLOCK_HTTP_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        check = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.DEVNULL)
        return await check.wait() == 0

    store = f"file://{tmp_path / 'store'}"
    async with BrokerProcess("--store", store) as owner:
        standby = BrokerProcess("--store", store)
        standby_port = standby.http_port
        try:
            await standby.start(ready=False)
            await standby.wait_line("Starting http monitor")
            assert (await fetch(f"http://127.0.0.1:{standby_port}/healthz"))[0] == 503
            assert await passes(standby_port)
            owner_port = int(owner.monitor_url.rpartition(":")[2])
            assert await passes(owner_port)
            owner.send_signal(signal.SIGSTOP)
            assert not await passes(owner_port), "its loop does not turn"
            owner.send_signal(signal.SIGCONT)
        finally:
            await standby.close()
    assert not await passes(owner_port)


def test_compose_waits_in_order(compose: dict[str, Any]) -> None:
    """MinIO must be healthy before the bucket is made, and then the broker starts; only MinIO has a volume."""
    services = compose["services"]
    assert services["bucket"]["depends_on"] == {"minio": {"condition": "service_healthy"}}
    assert services["jetblock"]["depends_on"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert [name for name, service in services.items() if service.get("volumes")] == ["minio"]
    assert "test" in services["minio"]["healthcheck"]
    assert "test" not in services["jetblock"]["healthcheck"], "the image's own is meant"
    assert Path(ROOT, compose["configs"]["jetblock"]["file"]) == CONF
    assert Path(ROOT, compose["configs"]["policy"]["file"]) == POLICY
    assert services["bucket"]["configs"][0]["target"] == services["bucket"]["environment"]["POLICY"]


@pytest.mark.shows("operation.container")
def test_image_has_what_the_build_copies() -> None:
    """Every path that the Dockerfile copies exists and is not ignored, and the image does not run as root."""
    text = (ROOT / "Dockerfile").read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert source.split("/")[0] in allowed, source
            assert (ROOT / source).exists() or source == "README.md", source
    # The user is a number other than root's, and owns the volume before that is declared.
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    made = text.index("install --directory --owner=jetblock --group=jetblock --mode=0750 /var/lib/jetblock/data")
    volume = re.search(r"^VOLUME (\S+)$", text, re.MULTILINE)
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert volume is not None
    assert command is not None
    assert made < volume.start()
    found = load(read_flags(json.loads(command[1])), {}, lambda _path: read_text(str(CONF)))
    assert found.storage.url == f"file://{volume[1]}"


async def test_a_long_start_is_alive() -> None:
    """While the store does not answer, no client is served, and health checks of the process pass."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        broker = BrokerProcess("--store", "s3://bucket/x", environ={
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1", "JETBLOCK_PUT_TIMEOUT": "2s"})
        try:
            await broker.start(ready=False)
            await broker.wait_line("Starting http monitor")
            assert await fetch(f"http://127.0.0.1:{broker.http_port}/healthz?live=1") == (200, b'{"status":"ok"}')
            assert (await fetch(f"http://127.0.0.1:{broker.http_port}/healthz"))[0] == 503
        finally:
            await broker.close()


def test_settings_page_is_up_to_date() -> None:
    """docs/CONFIGURATION.md is its generator's output."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "configuration.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/generators/configuration.py"


def test_spark_page_is_up_to_date() -> None:
    """The tables of docs/SPARK.md are their generator's output."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "spark_options.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/generators/spark_options.py"


@pytest.mark.shows("operation.keys")
def test_each_key_of_nats_server_is_dealt_with() -> None:
    """Each key is accepted, or without effect, or refused with a reason; none is unknown or silently ignored."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "nats_server_keys.py"))
    fates = {key: made["fate"](key) for key in made["KEYS"]}
    assert len(fates) > 375
    assert fates["accounts.A.jetstream.cluster_traffic"][1].startswith("has no effect here")
    assert fates["ocsp"][1].startswith("is not supported")
    assert fates["cluster.routes"] == ("cluster", "needs other servers, and this version of jetblock runs alone, "
                                                 "except with --workers")
    with pytest.raises(ValueError, match="unknown"):
        made["fate"]("jetstream.nonsense")


@pytest.mark.shows("core.mqtt", "auth.ocsp", "auth.cert_store",
                   "auth.tpm", "operation.profiling", "operation.syslog",
                   "cluster.routes", "cluster.gateways", "cluster.leaf_tls")
@pytest.mark.parametrize("key", ["mqtt", "ocsp", "tls.cert_store", "jetstream.tpm",
                                 "prof_port", "syslog", "cluster", "gateway", "leafnodes.compression"])
def test_what_does_not_exist_here_is_refused_by_name(key: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "nats_server_keys.py"))
    named, reason = made["fate"](key)
    assert named == key
    assert reason.startswith(("is not supported", "is nothing that jetblock has", "needs other servers"))


def test_ci_names_folders_of_tests_that_are_there() -> None:
    """The second run of .ci/run, on a newer Python, would end with an error if a folder of its list was renamed."""
    [folders] = re.findall(r'^again="([^"]+)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [folder for folder in folders.split() if not (ROOT / folder).is_dir()] == []
