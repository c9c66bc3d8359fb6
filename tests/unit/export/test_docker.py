"""The files for TensorFlow Serving agree with each other, and with what its source says.

There is no server here to try them on.
"""

import re
from pathlib import Path

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

from keras_transformer.export import clients

FOLDER = Path(__file__).parents[3] / "export" / "docker"
GRPC, REST = 8500, 8501  # in the image's start script

# Flags of model_servers/main.cc, of those that concern us.
FLAGS = {
    "enable_batching",
    "batching_parameters_file",
    "monitoring_config_file",
    "file_system_poll_wait_seconds",
    "rest_api_timeout_in_ms",
}

INT64, BOOL, STRING = ".google.protobuf.Int64Value", ".google.protobuf.BoolValue", "string"

# Messages of session_bundle_config.proto and monitoring_config.proto, which
# tensorflow-serving-api leaves out.
MESSAGES = {
    "BatchingParameters": {
        "max_batch_size": INT64,
        "batch_timeout_micros": INT64,
        "max_enqueued_batches": INT64,
        "num_batch_threads": INT64,
        "enable_large_batch_splitting": BOOL,
        "max_execution_batch_size": INT64,
    },
    "PrometheusConfig": {"enable": "bool", "path": STRING},
    "MonitoringConfig": {"prometheus_config": ".serving.PrometheusConfig"},
}


@pytest.fixture(scope="module")
def messages():
    """Classes of the messages, by name."""
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {"bool": field.TYPE_BOOL, STRING: field.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(
        name="serving.proto", package="serving", syntax="proto3", dependency=[WRAPPERS.name]
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in enumerate(fields.items(), start=1):
            entry = message.field.add(name=key, number=number, label=field.LABEL_OPTIONAL)
            if kind in scalars:
                entry.type = scalars[kind]
            else:
                entry.type, entry.type_name = field.TYPE_MESSAGE, kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(WRAPPERS.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"serving.{name}"))
        for name in MESSAGES
    }


def parse(message, name):
    return text_format.Parse((FOLDER / name).read_text(encoding="utf-8"), message())


def load(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def compose():
    (document,) = load("compose.yaml")
    return document


@pytest.fixture(scope="module")
def kubernetes():
    """The deployment's container, its pod, and the service."""
    deployment, service = load("kubernetes.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    return container, pod, service, deployment


def flags_of(arguments):
    return dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)


def test_every_file_is_known():
    assert {path.name for path in FOLDER.iterdir()} == {
        "batching.config",
        "compose.yaml",
        "kubernetes.yaml",
        "monitoring.config",
        "prometheus.yml",
    }


def test_batches_hold_a_request_of_ours(messages):
    parameters = parse(messages["BatchingParameters"], "batching.config")
    assert parameters.max_batch_size.value >= clients.MAX_ROWS
    assert parameters.num_batch_threads.value >= 1
    assert parameters.max_enqueued_batches.value >= 1
    assert 0 <= parameters.batch_timeout_micros.value < 1_000_000


def test_prometheus_reads_what_the_server_offers(messages, compose, kubernetes):
    offered = parse(messages["MonitoringConfig"], "monitoring.config").prometheus_config
    assert offered.enable
    (prometheus,) = load("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert job["metrics_path"] == offered.path
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in compose["services"]
    assert int(port) == REST
    annotations = kubernetes[1]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == offered.path
    assert annotations["prometheus.io/port"] == str(REST)


def test_images_are_pinned_and_the_same(compose, kubernetes):
    images = [service["image"] for service in compose["services"].values()]
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+$", image)
    assert kubernetes[0]["image"] == compose["services"]["serving"]["image"]


def test_flags(compose, kubernetes):
    for arguments in (compose["services"]["serving"]["command"], kubernetes[0]["args"]):
        assert all(argument.startswith("--") for argument in arguments)
        flags = flags_of(arguments)
        assert set(flags) <= FLAGS
        assert flags["enable_batching"] in ("", "true")
        # A client gives up no earlier than the server.
        assert int(flags["rest_api_timeout_in_ms"]) <= 1000 * clients.TIMEOUT


def test_compose_mounts_what_it_names(compose):
    serving = compose["services"]["serving"]
    mounts = dict(re.match(r"(.*):(/.*):ro$", mount).groups() for mount in serving["volumes"])
    flags = flags_of(serving["command"])
    for flag in ("batching_parameters_file", "monitoring_config_file"):
        (source,) = (path for path, target in mounts.items() if target == flags[flag])
        assert (FOLDER / source).is_file()
    (models,) = (path for path, target in mounts.items() if target.startswith("/models"))
    assert models.startswith("${MODELS:?")
    assert mounts[models] == serving["environment"]["MODEL_BASE_PATH"]
    (source,) = compose["services"]["prometheus"]["volumes"]
    assert (FOLDER / source.split(":")[0]).is_file()


def test_compose_is_for_this_machine_alone(compose):
    published = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert {int(port.split(":")[2]) for port in published} == {GRPC, REST, 9090}


def test_compose_asks_for_the_model_that_it_serves(compose):
    serving = compose["services"]["serving"]
    assert re.fullmatch(r"\$\{MODEL_NAME:-\w+\}", serving["environment"]["MODEL_NAME"])
    *start, script = serving["healthcheck"]["test"]
    assert start == ["CMD", "bash", "-c"]
    assert f"/dev/tcp/127.0.0.1/{REST}" in script
    assert "$$MODEL_NAME" in script  # the container's, not the caller's


def test_kubernetes_mounts_what_it_names(kubernetes):
    container, pod, _, _ = kubernetes
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {
        volume["name"] for volume in pod["spec"]["volumes"]
    }
    assert all(mount["readOnly"] for mount in mounts.values())
    flags = flags_of(container["args"])
    for flag in ("batching_parameters_file", "monitoring_config_file"):
        folder, name = flags[flag].rsplit("/", 1)
        assert folder in mounts
        assert (FOLDER / name).is_file()
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    for name in ("batching.config", "monitoring.config"):
        assert f"--from-file={name}" in text
    (config,) = (volume for volume in pod["spec"]["volumes"] if "configMap" in volume)
    assert f"create configmap {config['configMap']['name']} " in text
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["MODEL_BASE_PATH"] in mounts


def test_kubernetes_is_ready_when_the_model_is(kubernetes):
    container, *_ = kubernetes
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    for probe in ("readinessProbe", "startupProbe"):
        asked = container[probe]["httpGet"]
        assert asked == {"path": f"/v1/models/{environment['MODEL_NAME']}", "port": "rest"}


def test_kubernetes_ports_and_labels(kubernetes):
    container, pod, service, deployment = kubernetes
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": GRPC, "rest": REST}
    for port in service["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert {"requests", "limits"} == set(container["resources"])


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml"])
def test_it_says_that_it_was_never_run(name):
    assert "# Never run " in (FOLDER / name).read_text(encoding="utf-8")
