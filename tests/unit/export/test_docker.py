"""The files for TensorFlow Serving name files, ports and volumes that exist."""

import re
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "export" / "docker"
CONFIG = "--monitoring_config_file="
METRICS = re.search('path: "(.*)"', (FOLDER / "monitoring.config").read_text())[1]


def load(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def compose():
    return load("compose.yaml")[0]["services"]


@pytest.fixture(scope="module")
def pod():
    return load("kubernetes.yaml")[0]["spec"]["template"]


def config_of(arguments):
    """Returns the path of the server's configuration in the container."""
    (path,) = (each.removeprefix(CONFIG) for each in arguments if each.startswith(CONFIG))
    return path


def test_compose_mounts_files_that_exist(compose):
    for service in compose.values():
        mounts = dict(re.match(r"(.*):(/.*):ro$", mount).groups() for mount in service["volumes"])
        assert all((FOLDER / source).is_file() for source in mounts if source.startswith("./"))
    mounts = [mount.split(":")[-2] for mount in compose["serving"]["volumes"]]
    assert config_of(compose["serving"]["command"]) in mounts
    assert compose["serving"]["environment"]["MODEL_BASE_PATH"] in mounts


def test_prometheus_reads_what_the_servers_offer(compose, pod):
    (job,) = load("prometheus.yml")[0]["scrape_configs"]
    ((host, port),) = (target.split(":") for target in job["static_configs"][0]["targets"])
    assert job["metrics_path"] == METRICS
    assert any(published.endswith(f":{port}") for published in compose[host]["ports"])
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == METRICS
    assert annotations["prometheus.io/port"] == port


def test_kubernetes_mounts_what_it_names(pod):
    (container,) = pod["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    folder, name = config_of(container["args"]).rsplit("/", 1)
    config = volumes[mounts[folder]]["configMap"]["name"]
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    assert f"create configmap {config} --from-file={name}" in text
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["MODEL_BASE_PATH"] in mounts
    # The status of a model is 200 even when its only version has failed.
    for probe in ("readinessProbe", "startupProbe"):
        path = f"/v1/models/{environment['MODEL_NAME']}/metadata"
        assert container[probe]["httpGet"]["path"] == path
