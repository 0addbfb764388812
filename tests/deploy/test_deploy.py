"""The files of ``deploy/`` agree with the server: its options, port, times, metrics and version."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import outrider
from outrider.config import EngineConfig, SpeculationParams
from outrider_fleet.settings import FleetSettings
from outrider_server.settings import ServerSettings
from tests.docs.running import unknown_words

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GRAFANA = ROOT / "docs" / "grafana" / "outrider.json"
SETTINGS = ServerSettings()
LAST_SECONDS = 14  # for what still hangs when draining has ended (docs/reliability.md)


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions, lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    deployment = next(one for one in documents("kubernetes/outrider.yaml") if one["kind"] == "Deployment")
    template: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return template


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "outrider.service")
    return parser


def test_the_application_for_ray_takes_its_arguments() -> None:
    service = documents("kubernetes/outrider-ray.yaml")[0]
    application = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]
    module, _, function = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    known = {
        field.name
        for kind in (EngineConfig, SpeculationParams, ServerSettings, FleetSettings)
        for field in fields(kind)
    }
    assert application["args"].keys() <= known
    FleetSettings(replicas=application["args"]["replicas"])


def test_the_ray_service_is_one_that_kuberay_can_start() -> None:
    """What its operator needs, by its source of 2026-08: the schema alone does not say so."""
    service = documents("kubernetes/outrider-ray.yaml")[0]
    cluster = service["spec"]["rayClusterConfig"]
    head, worker = cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]
    assert service["spec"].keys() <= {"serveConfigV2", "rayClusterConfig", "upgradeStrategy", "serveService"}
    assert cluster.keys() <= {
        "rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}  # fmt: skip
    assert worker.keys() <= {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    named = {port["name"]: port["containerPort"] for port in head["template"]["spec"]["containers"][0]["ports"]}
    assert named == {"gcs-server": 6379, "dashboard": 8265, "serve": 8000}  # of its service: nothing else is added
    assert head["rayStartParams"]["dashboard-host"] == "0.0.0.0"  # how it brings the application
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"]
    assert "automountServiceAccountToken" not in head["template"]["spec"], "the autoscaler cannot ask for workers"
    container = worker["template"]["spec"]["containers"][0]
    assert "httpGet" in container["readinessProbe"], "its own probe needs wget, which our image has not"
    arguments = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]
    assert int(container["resources"]["requests"]["cpu"]) >= arguments["threads"] + 1  # an engine and the ingress


def test_every_command_is_one_of_ours(pod: dict[str, Any], unit: configparser.ConfigParser) -> None:
    compose = documents("compose.yaml")[0]["services"]["outrider"]["command"]
    started = shlex.split(unit["Service"]["ExecStart"])
    for words in (compose, pod["containers"][0]["args"], started[1:]):
        assert words[0] == "serve"
        assert list(unknown_words(shlex.join(["outrider", *words]))) == []
        assert "--api-key-file" in words


def test_the_image_is_built_of_what_is_there_and_not_ignored() -> None:
    copied = [text.split()[:-1] for word, text in dockerfile() if word == "COPY" and not text.startswith("--from")]
    names = [name for words in copied for name in words]
    assert names == ["pyproject.toml", "README.md", "LICENSE", "packages"]
    assert [name for name in names if not (ROOT / name).exists()] == []
    allowed = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert set(names) <= set(allowed)


def test_nobody_runs_as_root(pod: dict[str, Any], unit: configparser.ConfigParser) -> None:
    compose = documents("compose.yaml")[0]["services"]["outrider"]
    instructions = dockerfile()
    last_stage = instructions[max(i for i, (word, _) in enumerate(instructions) if word == "FROM") :]
    user = dict(last_stage)["USER"].partition(":")[0]
    assert int(user) == pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["runAsNonRoot"] is True
    inside = pod["containers"][0]["securityContext"]
    assert (inside["readOnlyRootFilesystem"], inside["allowPrivilegeEscalation"]) == (True, False)
    assert (compose["read_only"], compose["cap_drop"]) == (True, ["ALL"])
    assert (unit["Service"]["DynamicUser"], unit["Service"]["ProtectSystem"]) == ("yes", "strict")


def test_the_only_volume_is_the_cache(pod: dict[str, Any]) -> None:
    values = dict(dockerfile())
    settings = {name: value for word, text in dockerfile() if word == "ENV"
                for name, value in (pair.split("=", 1) for pair in text.split())}  # fmt: skip
    assert values["VOLUME"] == settings["OUTRIDER_CACHE"] == "/models"
    assert settings["HF_HOME"].startswith("/models/")
    assert "models:/models" in documents("compose.yaml")[0]["services"]["outrider"]["volumes"]
    assert "/models" in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]


def test_ports_and_probes(pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    assert container["ports"][0]["containerPort"] == SETTINGS.port == int(dict(dockerfile())["EXPOSE"])
    assert {container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe")} == {"/health"}
    assert "httpGet" not in container["livenessProbe"]  # a server that drains is alive, and answers 503
    assert f":{SETTINGS.port}/health" in dict(dockerfile())["HEALTHCHECK"]
    assert documents("prometheus/prometheus.yml")[0]["scrape_configs"][0]["static_configs"] == [
        {"targets": [f"outrider:{SETTINGS.port}"]}
    ]


def test_there_is_time_to_drain(pod: dict[str, Any], unit: configparser.ConfigParser) -> None:
    compose = documents("compose.yaml")[0]["services"]["outrider"]["stop_grace_period"]
    for seconds in (pod["terminationGracePeriodSeconds"], unit["Service"]["TimeoutStopSec"], compose.rstrip("s")):
        assert int(seconds) > SETTINGS.drain_timeout + LAST_SECONDS


def test_images_are_named_with_a_version(pod: dict[str, Any]) -> None:
    assert pod["containers"][0]["image"] == f"outrider:{outrider.__version__}"
    services = documents("compose.yaml")[0]["services"].values()
    assert all(re.search(r":v?\d+\.\d+\.\d+$", service["image"]) for service in services if "image" in service)


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    services = documents("compose.yaml")[0]["services"]
    source = documents("grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"][0]
    host = re.fullmatch(r"http://(\w+):9090", source["url"])
    assert host is not None
    assert host[1] in services
    provider = documents("grafana/provisioning/dashboards/outrider.yaml")[0]["providers"][0]
    assert f"../docs/grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{GRAFANA.name}"


def test_the_dashboard_has_the_form_that_grafana_reads() -> None:
    board = json.loads(GRAFANA.read_text())
    assert board["title"]
    assert board["uid"]
    variables = {variable["name"] for variable in board["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, f"{panel['title']} covers another panel"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        used = set(re.findall(r"\$\{?(\w+)", str(panel["targets"]))) - {"__rate_interval", "__range", "__interval"}
        assert used <= variables
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
