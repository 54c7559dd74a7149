"""The manifests of docs/kubernetes: by Kubernetes' schemas, and by what a watch really
serves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from mmrepro.cli.app import app
from mmrepro.failure.documents.diagnosis import LiveClass
from mmrepro.live.watch.health import Health
from mmrepro.live.watch.loop import ServerWatch
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import WatchServer, parse_address
from ruamel.yaml import YAML
from test_watch_served import Never
from typer.testing import CliRunner

FOLDER = Path(__file__).parents[2] / "docs" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OPERATOR = "monitoring.coreos.com/v1"
RELEASES = ("1.29", "1.37")
"""The first with sidecars that are init containers by default, and the newest schemas
there are."""


def documents(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(file))


def each(kind: str) -> Iterator[dict[str, Any]]:
    return (d for file in FILES for d in documents(file) if d["kind"] == kind)


def test_there_is_one_of_each() -> None:
    kinds = [d["kind"] for file in FILES for d in documents(file)]
    assert sorted(kinds) == [
        "Deployment",
        "NetworkPolicy",
        "PodMonitor",
        "PrometheusRule",
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_object_fits_the_schema_of_its_kind(file: Path, release: str) -> None:
    for document in documents(file):
        if document["apiVersion"] != OPERATOR:  # a resource of the operator's own
            kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.parametrize("spoilt", ["shareProcesNamespace", "initContainerz"])
def test_the_schema_notices_a_misspelt_field(spoilt: str) -> None:
    (deployment,) = each("Deployment")
    deployment["spec"]["template"]["spec"][spoilt] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, RELEASES[-1], strict=True)


# ---------------------------------------------------------------- the sidecar


def pod() -> dict[str, Any]:
    (deployment,) = each("Deployment")
    return deployment["spec"]["template"]["spec"]


def test_the_sidecar_has_the_rights_that_it_needs_and_no_more() -> None:
    (watch,) = pod()["initContainers"]
    assert pod()["shareProcessNamespace"] is True
    assert watch["restartPolicy"] == "Always"
    assert watch["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]},
    }
    user = pod()["securityContext"]
    assert (user["runAsNonRoot"], user["runAsUser"]) == (True, 10001)
    assert "USER 10001:10001" in (FOLDER.parents[1] / "Dockerfile").read_text()
    assert "cpu" not in watch["resources"]["limits"]


def test_its_options_are_those_of_watch() -> None:
    (watch,) = pod()["initContainers"]
    told = CliRunner().invoke(
        app, ["watch", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    options = [
        word.partition("=")[0] for word in watch["args"] if word.startswith("--")
    ]
    assert options
    assert [option for option in options if option not in told.output] == []
    assert parse_address(watch["args"][2].partition("=")[2]) == ("0.0.0.0", 9400)


def exported() -> tuple[str, WatchServer]:
    server = WatchServer(
        ServerWatch(Never(), Health(), WatchCommand(http="9400")), ("127.0.0.1", 0)
    )
    return "http://{}:{}".format(*server.address), server


def test_probes_ask_for_paths_that_are_served_on_ports_that_are_open() -> None:
    containers = [*pod()["initContainers"], *pod()["containers"]]
    ports = {p["name"]: p["containerPort"] for c in containers for p in c["ports"]}
    probes = [
        p["httpGet"] for c in containers for n, p in c.items() if n.endswith("Probe")
    ]
    of_watch = {p["path"] for p in probes if ports.get(p["port"], p["port"]) == 9400}
    assert of_watch == {"/", "/live", "/ready"}
    assert {p["path"] for p in probes if ports.get(p["port"]) == 8000} == {"/health"}
    assert all(p["port"] in ports or p["port"] in ports.values() for p in probes)
    mounts = {m["name"] for c in containers for m in c["volumeMounts"]}
    assert mounts == {v["name"] for v in pod()["volumes"]}


# ---------------------------------------------------------------- the alerts


@pytest.fixture(scope="module")
def metrics() -> str:
    import urllib.request

    url, server = exported()
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            return answer.read().decode()
    finally:
        server.close()


def rules() -> list[dict[str, Any]]:
    (rule,) = each("PrometheusRule")
    return [r for group in rule["spec"]["groups"] for r in group["rules"]]


def test_every_alert_is_of_a_metric_and_a_class_that_are_exported(metrics: str) -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
        names = re.findall(r"mmrepro_\w+", rule["expr"])
        assert len(names) == 1
        assert re.search(rf"^{names[0]}[ {{]", metrics, re.MULTILINE), rule["expr"]
        for label in re.findall(r"\{(.*?)\}", rule["expr"]):
            assert f"mmrepro_watch_class{{{label}}} 0.0" in metrics
        assert all(
            rule["expr"].count(a) == rule["expr"].count(b)
            for a, b in ("()", "[]", "{}")
        )


def test_every_class_has_an_alert() -> None:
    told = {
        match for r in rules() for match in re.findall(r'class="([\w-]+)"', r["expr"])
    }
    assert told == set(LiveClass) - {LiveClass.HEARTBEAT_ONLY}  # it is no fault
    assert len({r["alert"] for r in rules()}) == len(rules())


def test_the_monitor_scrapes_the_port_of_the_watch() -> None:
    (monitor,) = each("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("watch", "/metrics")
    (policy,), (deployment,) = each("NetworkPolicy"), each("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (monitor["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert policy["spec"]["egress"] == []
