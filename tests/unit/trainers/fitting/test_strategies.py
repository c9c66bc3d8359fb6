import json
from functools import partial
from types import SimpleNamespace

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.trainers.fitting import strategies
from keras_transformer.trainers.fitting.strategies import Workers, make_strategy

NUM_DEVICES = 3  # of shared_fixtures.py
CLUSTER = {"worker": ["a:1", "b:2"]}


def test_two_models_in_one_process_do_not_mix():
    """TensorFlow numbers the sums of each strategy from the same number on."""
    for size in (3, 5):
        strategy = make_strategy("mirrored")
        assert strategy.num_replicas_in_sync == NUM_DEVICES

        def add_up(size=size):
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([size]))

        total = tf.function(partial(strategy.run, add_up), autograph=False)()
        for part in strategy.experimental_local_results(total):
            assert part.numpy().tolist() == [NUM_DEVICES] * size


@pytest.mark.parametrize("gpus", [[], ["gpu"]])
def test_a_mirror_without_gpus_is_told(monkeypatch, caplog, gpus):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    device = tf.config.LogicalDevice("CPU:0", "CPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [device])
    monkeypatch.setattr(strategies, "NVIDIA", SimpleNamespace(exists=lambda: False))
    make_strategy("mirrored")
    assert ("no GPU" in caplog.text) == (not gpus)


@pytest.mark.parametrize(("gpus", "is_mirrored"), [(0, False), (1, False), (2, True)])
def test_default_is_mirrored_where_there_are_several_gpus(monkeypatch, gpus, is_mirrored):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    device = tf.config.LogicalDevice("CPU:0", "CPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [device])
    assert isinstance(make_strategy(), tf.distribute.MirroredStrategy) == is_mirrored


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (None, "No such job"),
        ("{", "Expecting property name"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}, "No task with index 2"),
        ({"cluster": {"ps": ["c:3"]}, "task": {"type": "ps", "index": 0}}, "the jobs are ps"),
    ],
)
def test_bad_tf_config(monkeypatch, config, match):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(InputError, match=rf"TF_CONFIG, of the form .*Received: .*{match}"):
        make_strategy("multiworker")


def cluster(jobs):
    """A strategy of several machines, as far as `Workers` asks it."""
    resolver = SimpleNamespace(cluster_spec=lambda: tf.train.ClusterSpec(jobs))
    extended = SimpleNamespace(should_checkpoint=True)
    return SimpleNamespace(cluster_resolver=resolver, extended=extended)


def test_number_of_workers():
    assert Workers(cluster(CLUSTER)).count == 2
    assert Workers(cluster({**CLUSTER, "chief": ["c:3"]})).count == 3
    workers = Workers(make_strategy("mirrored"))
    assert (workers.count, workers.is_chief) == (1, True)
    assert workers.any_set(True, False) == [True, False]
    workers.wait()


@pytest.mark.parametrize(
    ("strategy", "error", "raised", "pauses"),
    [
        (None, tf.errors.UnavailableError, tf.errors.UnavailableError, 0),  # nobody else's fault
        (CLUSTER, tf.errors.UnavailableError, TrainingStoppedError, 1),
        (CLUSTER, tf.errors.ResourceExhaustedError, tf.errors.ResourceExhaustedError, 1),
    ],
)
def test_lost_worker(monkeypatch, strategy, error, raised, pauses):
    slept = []
    monkeypatch.setattr(strategies.time, "sleep", slept.append)
    workers = Workers(cluster(strategy) if strategy else make_strategy("one"))
    with pytest.raises(raised) as caught, workers.watched():
        raise error(None, None, "connection reset")
    assert getattr(caught.value, "status", 75) == 75
    assert len(slept) == pauses


@pytest.mark.parametrize(
    ("exists", "chosen", "warns"), [(True, "0,1", True), (True, "-1", False), (False, "0,1", False)]
)
def test_a_gpu_that_is_not_seen(tmp_path, monkeypatch, caplog, exists, chosen, warns):
    monkeypatch.setattr(strategies, "NVIDIA", tmp_path if exists else tmp_path / "nvidia0")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    make_strategy("one")
    assert ("TensorFlow does not see this machine's GPU" in caplog.text) == warns
