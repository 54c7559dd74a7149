"""The manifests of docs/kubernetes: by Kubernetes' schemas, and by what a watch really
serves."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from mmrepro.cli.app import app
from mmrepro.failure.documents.diagnosis import LiveClass
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import ServerWatch
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import WatchServer, parse_address
from mmrepro.live.watch.state_files import PROBES, StateFiles
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
    hooks = [c["lifecycle"]["preStop"]["httpGet"] for c in pod()["containers"]]
    assert hooks == [{"path": "/capture", "port": 9400}]
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
            assert f"{names[0]}{{{label}}} 0.0" in metrics
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


def test_the_rules_are_what_prometheus_reads(tmp_path: Path) -> None:
    """By promtool of Debian's prometheus, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    (rule,) = each("PrometheusRule")
    file = tmp_path / "rules.yaml"
    with file.open("w") as opened:
        YAML().dump(rule["spec"], opened)
    ran = subprocess.run([promtool, "check", "rules", file], check=False)
    assert ran.returncode == 0


def test_a_dashboard_asks_for_metrics_that_are_exported(metrics: str) -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    asked = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) >= 8
    for target in asked:
        names = re.findall(r"mmrepro_\w+", target["expr"])
        assert names
        for name in names:
            # Without a check there is no last one, and no answer.
            later = name.endswith(("last_check_seconds", "seconds_since_success"))
            assert later or re.search(rf"^{name}[ {{]", metrics, re.MULTILINE), name
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_values_of_a_chart_are_the_manifests_sidecar() -> None:
    (values,) = documents(FOLDER / "helm" / "values.yaml")
    (watch,), (same,) = pod()["initContainers"], values["initContainers"]
    for field in ("args", "image", "restartPolicy", "securityContext", "volumeMounts"):
        assert same[field] == watch[field], field
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    for volume in values["extraVolumes"]:
        assert volume == volumes[volume["name"]]
    for name in ("shareProcessNamespace", "terminationGracePeriodSeconds"):
        assert values[name] == pod()[name]


# ---------------------------------------------------------------- exec probes


def probe(folder: Path, name: str) -> int:
    return subprocess.run(["/bin/sh", folder / name], check=False).returncode


def test_a_probe_of_another_container_reads_the_state(tmp_path: Path) -> None:
    health = Health(failures=1)
    files = StateFiles(tmp_path, 90.0)
    # Before the first check nothing is known: nobody is restarted for it.
    assert [probe(tmp_path, name) for name in PROBES] == [0, 1]
    health.observe(Check(CheckOutcome.OK, 0.0, 0.1))
    files.write(health)
    assert [probe(tmp_path, name) for name in PROBES] == [0, 0]
    health.observe(Check(CheckOutcome.FAILED, 1.0, 0.1))
    files.write(health)
    assert [probe(tmp_path, name) for name in PROBES] == [1, 1]
    # A watch that is gone ends no engine.
    text = (tmp_path / "state").read_text().split()
    text[2] = str(int(text[2]) - 91)
    (tmp_path / "state").write_text(" ".join(text) + "\n")
    assert [probe(tmp_path, name) for name in PROBES] == [0, 1]
    assert (tmp_path / "probe-live").stat().st_mode & 0o777 == 0o755


def test_the_monitor_scrapes_the_port_of_the_watch() -> None:
    (monitor,) = each("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("watch", "/metrics")
    (policy,), (deployment,) = each("NetworkPolicy"), each("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (monitor["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert policy["spec"]["egress"] == []
