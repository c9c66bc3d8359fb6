import json
from functools import partial

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.trainers.fitting import strategies
from keras_transformer.trainers.fitting.strategies import Workers, make_strategy

NUM_DEVICES = 3  # of shared_fixtures.py


def test_mirrored_uses_all_devices():
    strategy = make_strategy("mirrored")
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [device.name[-5:] for device in tf.config.list_logical_devices(kind)]
    assert [name[-5:] for name in strategy.extended.worker_devices] == devices
    assert kind == "GPU" or strategy.num_replicas_in_sync == NUM_DEVICES


def test_two_models_in_one_process_do_not_mix():
    """TensorFlow numbers the sums of each strategy from the same number on."""
    for size in (3, 5):
        strategy = make_strategy("mirrored")

        def add_up(size=size):
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([size]))

        total = tf.function(partial(strategy.run, add_up), autograph=False)()
        for part in strategy.experimental_local_results(total):
            assert part.numpy().tolist() == [NUM_DEVICES] * size


@pytest.mark.parametrize(("gpus", "expected"), [(0, "one"), (1, "one"), (2, "mirrored")])
def test_default_is_mirrored_where_there_are_several_gpus(monkeypatch, gpus, expected):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [tf.config.LogicalDevice(kind, kind)] * gpus
    )
    monkeypatch.setattr(strategies, "_mirrored", lambda devices: ("mirrored", devices))
    strategy = make_strategy()
    if expected == "mirrored":
        assert strategy == ("mirrored", ("GPU", "GPU"))
    else:
        assert strategy is tf.distribute.get_strategy()


CLUSTER = {"worker": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (None, "No such job"),
        ("{", "Expecting property name"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}, "No task with index 2"),
        (
            {"cluster": {**CLUSTER, "ps": ["c:3"]}, "task": {"type": "ps", "index": 0}},
            "the jobs are ",
        ),
    ],
)
def test_bad_tf_config(monkeypatch, config, match):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(InputError, match=rf"TF_CONFIG, of the form .*Received: .*{match}"):
        make_strategy("multiworker")


class Resolver:
    def __init__(self, cluster, kind, index):
        self.cluster, self.task_type, self.task_id = cluster, kind, index

    def cluster_spec(self):
        return tf.train.ClusterSpec(self.cluster)


class Strategy:
    def __init__(self, resolver):
        self.cluster_resolver = resolver


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "count", "is_chief"),
    [
        (CLUSTER, "worker", 0, 2, True),
        (CLUSTER, "worker", 1, 2, False),
        ({**CLUSTER, "chief": ["c:3"]}, "chief", 0, 3, True),
        ({**CLUSTER, "chief": ["c:3"]}, "worker", 0, 3, False),
    ],
)
def test_one_worker_is_the_chief(cluster, kind, index, count, is_chief):
    workers = Workers(Strategy(Resolver(cluster, kind, index)))
    assert (workers.count, workers.is_chief) == (count, is_chief)


@pytest.fixture
def pauses(monkeypatch):
    """The seconds of each `time.sleep`, which returns at once."""
    slept = []
    monkeypatch.setattr(strategies.time, "sleep", slept.append)
    return slept


def test_alone(pauses):
    workers = Workers(make_strategy("mirrored"))
    assert (workers.count, workers.is_chief) == (1, True)
    assert workers.any_set(True, False) == [True, False]
    workers.wait()
    with pytest.raises(tf.errors.UnavailableError), workers.watched():
        raise tf.errors.UnavailableError(None, None, "not another worker's fault")
    assert pauses == []


def test_lost_worker(pauses):
    workers = Workers(Strategy(Resolver(CLUSTER, "worker", 0)))
    with (
        pytest.raises(TrainingStoppedError, match="start all workers again") as caught,
        workers.watched(),
    ):
        raise tf.errors.UnavailableError(None, None, "connection reset")
    assert caught.value.status == 75
    with pytest.raises(tf.errors.ResourceExhaustedError), workers.watched():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with workers.watched():
        pass
    assert pauses == [strategies.SECONDS_TO_LEAVE] * 3


@pytest.mark.parametrize(
    ("exists", "chosen", "warns"),
    [(True, "0,1", True), (True, "-1", False), (False, "0,1", False)],
)
def test_a_gpu_that_is_not_seen(tmp_path, monkeypatch, caplog, exists, chosen, warns):
    monkeypatch.setattr(strategies, "NVIDIA", tmp_path if exists else tmp_path / "nvidia0")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    make_strategy("one")
    assert ("TensorFlow does not see this machine's GPU" in caplog.text) == warns
