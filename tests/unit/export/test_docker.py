"""The files for TensorFlow Serving name files, paths and volumes that exist."""

import re
from pathlib import Path

import yaml
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

FOLDER = Path(__file__).parents[3] / "export" / "docker"
CONFIG = "--monitoring_config_file="
METRICS = re.search('path: "(.*)"', (FOLDER / "monitoring.config").read_text())[1]


def load(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def config_of(arguments):
    """Returns the path of the server's configuration in the container."""
    (path,) = (each.removeprefix(CONFIG) for each in arguments if each.startswith(CONFIG))
    return path


def test_compose():
    services = load("compose.yaml")[0]["services"]
    for service in services.values():
        mounts = dict(re.match(r"(.*):(/.*):ro$", mount).groups() for mount in service["volumes"])
        assert all((FOLDER / source).is_file() for source in mounts if source.startswith("./"))
    serving = services["serving"]
    mounts = [mount.split(":")[-2] for mount in serving["volumes"]]
    assert config_of(serving["command"]) in mounts
    assert serving["environment"]["MODEL_BASE_PATH"] in mounts
    (job,) = load("prometheus.yml")[0]["scrape_configs"]
    ((host, port),) = (target.split(":") for target in job["static_configs"][0]["targets"])
    assert job["metrics_path"] == METRICS
    assert any(published.endswith(f":{port}") for published in services[host]["ports"])


def test_kubernetes():
    pod = load("kubernetes.yaml")[0]["spec"]["template"]
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
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == METRICS
    # The status of a model is 200 even when its only version has failed.
    for probe in ("readinessProbe", "startupProbe"):
        path = f"/v1/models/{environment['MODEL_NAME']}/metadata"
        assert container[probe]["httpGet"]["path"] == path


def test_model_config_file():
    page = (FOLDER.parents[1] / "docs" / "serving.md").read_text("utf-8")
    (text,) = re.findall(r"^model_config_list \{\n.*?^\}$", page, re.DOTALL | re.MULTILINE)
    models = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    assert len({model.name for model in models}) == len(models) == 2
    assert all(model.base_path.startswith("/") for model in models)  # the server wants it
