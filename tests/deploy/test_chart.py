"""The Helm chart and the systemd unit.

Helm and the schemas of Kubernetes are large, so the tests that render the chart are long runs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker import __version__
from broker.config.flags import read_flags
from broker.config.load import load
from tests.real import parts
from tests.real.s3 import MISSING

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "jetblock"
UNIT = ROOT / "deploy" / "systemd" / "jetblock.service"
KUBERNETES = ("1.29.0", "1.33.0", "1.35.0")
EVERYTHING: dict[str, Any] = {
    "store": {"url": "s3://b/p", "region": "eu-central-1", "endpoint": "http://minio:9000"},
    "credentialsSecret": "creds", "tlsSecret": "tls",
    "config": "max_payload: 2MB\njetblock { lease: 20s }\naccounts { A { users: [ {user: a, password: $PW} ] } }\n",
    "monitoring": {"loginSecret": "login", "serviceMonitor": {"enabled": True, "labels": {"release": "prom"}}},
    "image": {"tag": "9", "pullSecrets": ["registry"]},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
    "service": {"type": "LoadBalancer", "annotations": {"a/b": "true"}},
    "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
                      "monitoring": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "nodeSelector": {"disk": "none"}, "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}}, "podAnnotations": {"n": "1"}, "podLabels": {"l": "yes"},
}


def test_chart_and_package_have_one_version() -> None:
    """The chart's default tag is this version; each value has a line in the schema, and the other way round."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__

    def names(value: Any, schema: Any) -> None:
        if isinstance(value, dict) and "properties" in schema:
            assert set(value) == set(schema["properties"]) - {"global", "nameOverride", "fullnameOverride"}
            for name, inner in value.items():
                names(inner, schema["properties"][name])

    names(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()))


def helm(*words: str, values: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        program = parts.helm()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}helm: {error}")
    path = folder / "values.yaml"
    path.write_text(json.dumps(values))
    return subprocess.run([program, words[0], *words[1:], "--values", path], capture_output=True, text=True,
                          check=False, cwd=folder)


def rendered(values: dict[str, Any], folder: Path, kubernetes: str = "1.33.0",
             name: str = "r") -> dict[tuple[str, str], Any]:
    """Return the objects by kind and name. Each is valid by its schema."""
    import kubernetes_validate

    done = helm("template", name, str(CHART), "--kube-version", kubernetes, "--namespace", "n", values=values,
                folder=folder)
    assert done.returncode == 0, done.stderr
    found = {}
    for one in yaml.safe_load_all(done.stdout):
        if one is not None:
            if one["kind"] != "ServiceMonitor":  # the schemas have Kubernetes's own kinds alone
                kubernetes_validate.validate(one, kubernetes.rpartition(".")[0], strict=True)
            found[one["kind"], one["metadata"]["name"]] = one
    return found


@pytest.mark.soak
@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("values", [{"store": {"url": "s3://b"}}, {**EVERYTHING}, {
    "store": {"url": "s3://b/p"}, "replicas": 1, "handoverSeconds": 0, "networkPolicy": {"enabled": False}}],
    ids=["least", "everything", "one-broker"])
@pytest.mark.timeout(2000)
def test_the_chart_is_valid(values: dict[str, Any], kubernetes: str, tmp_path: Path) -> None:
    """helm lint finds nothing, each object is valid by the schema of its Kubernetes, and what belongs together does."""
    done = helm("lint", str(CHART), "--strict", "--kube-version", kubernetes, values=values, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    found = rendered(values, tmp_path, kubernetes)
    pods = found["Deployment", "r-jetblock"]["spec"]["template"]
    labels, [container] = pods["metadata"]["labels"].items(), pods["spec"]["containers"]
    selectors = [one["spec"]["selector"] for (kind, _), one in found.items() if kind == "Service"]
    selectors += [one["spec"]["selector"]["matchLabels"] for (kind, _), one in found.items()
                  if kind in ("Deployment", "PodDisruptionBudget")]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for (kind, _), one in found.items()
                  if kind == "NetworkPolicy"]
    for selector in selectors:
        assert selector.items() <= labels
    assert ("PodDisruptionBudget" in {kind for kind, _ in found}) == (values.get("replicas", 2) == 2)
    assert ("NetworkPolicy" in {kind for kind, _ in found}) == values.get("networkPolicy", {}).get("enabled", True)
    # The Service follows the owner: readiness is the page that answers 503 on a standby.
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")} == {"/healthz?live=1"}
    handover = values.get("handoverSeconds", 20)
    assert pods["spec"]["terminationGracePeriodSeconds"] == handover + 60
    assert ("lifecycle" in container) == bool(handover)
    monitor = found.get(("ServiceMonitor", "r-jetblock"))
    if monitor is not None:
        service = found["Service", "r-jetblock-monitor"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert service["spec"]["publishNotReadyAddresses"]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] == service["spec"]["ports"][0]["name"]
        assert endpoint["basicAuth"]["password"] == {"name": "login", "key": "password"}


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_the_broker_accepts_the_configuration(tmp_path: Path) -> None:
    """The broker loads jetblock.conf with the environment of the pod, for all values that add something to either."""
    found = rendered({**EVERYTHING, "tlsSecret": ""}, tmp_path)
    text = found["ConfigMap", "r-jetblock"]["data"]["jetblock.conf"]
    [container] = found["Deployment", "r-jetblock"]["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one.get("value", f"value-{n}") for n, one in enumerate(container["env"])}
    settings = load(read_flags(container["args"]), {**environ, "PW": "x"}, lambda _path: text)
    assert settings.storage.url == "s3://b/p"
    assert settings.clients.max_payload == 2 * 1024 * 1024
    assert (settings.monitoring.user, settings.monitoring.password) == (
        environ["JETBLOCK_MONITOR_USER"], environ["JETBLOCK_MONITOR_PASSWORD"])


@pytest.mark.soak
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("values, reason", [
    ({}, "/store/url"),
    ({"store": {"url": "file:///data"}}, "/store/url"),
    ({"store": {"url": "s3://b"}, "replicas": 3}, "/replicas"),
    ({"store": {"url": "s3://b"}, "replica": 1}, "replica"),
    ({"store": {"url": "s3://b"}, "handoverSeconds": "20"}, "/handoverSeconds"),
    ({"store": {"url": "s3://b"}, "podLabels": {"n": 1}}, "/podLabels/n"),
])
def test_wrong_values_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Helm names the value: a directory store, which a second pod would not see; more than two brokers; unknown names.
    """
    done = helm("template", "r", str(CHART), "--kube-version", "1.33.0", values=values, folder=tmp_path)
    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_values_cannot_change_the_structure(tmp_path: Path) -> None:
    """Values with quotes, colons, line ends and template marks stay the values of their fields."""
    hostile = 'x"\n  evil: true\n# {{ .Values.store.url }} \'y: [z'
    line = hostile.replace("\n", " ")
    found = rendered({
        "store": {"url": f"s3://b/{line}", "region": hostile}, "credentialsSecret": "c\"d: e",
        "config": f"# {hostile}\n--- \n", "podAnnotations": {"n": hostile},
        "image": {"repository": "r/" + hostile}}, tmp_path)
    assert {kind for kind, _ in found} == {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service",
                                          "ServiceAccount"}
    pods = found["Deployment", "r-jetblock"]["spec"]["template"]
    [container] = pods["spec"]["containers"]
    assert container["args"][-1] == f"s3://b/{line}"
    assert container["image"] == f"r/{hostile}:{__version__}"
    assert pods["metadata"]["annotations"]["n"] == hostile
    assert container["envFrom"] == [{"secretRef": {"name": 'c"d: e'}}]
    assert hostile.splitlines()[0] in found["ConfigMap", "r-jetblock"]["data"]["jetblock.conf"]


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_long_names(tmp_path: Path) -> None:
    """Names of objects stay within the 63 characters of a DNS label."""
    for release in ("a" * 53, "jetblock", "my-jetblock-prod"):
        found = rendered({"store": {"url": "s3://b"}}, tmp_path, name=release)
        assert max(len(name) for _, name in found) <= 63


@pytest.mark.soak
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd-analyze finds nothing, apart from the program, which is not installed here; the unit's exposure is low.
    """
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip(f"{MISSING}systemd-analyze; on Debian: apt install systemd")
    unit = tmp_path / "jetblock.service"
    unit.write_text(UNIT.read_text().replace("/opt/jetblock/bin/jetblock", sys.executable))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([analyze, "security", "--offline=true", unit], capture_output=True, text=True, check=False)
    exposure = re.search(r"exposure level.*: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) < 3
