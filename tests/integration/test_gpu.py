"""The commands of `benchmarks/gpu.py`, with small sizes on a CPU."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu

pytestmark = [pytest.mark.programs, pytest.mark.timeout(900)]


@pytest.fixture
def table(monkeypatch, tmp_path, capfd):
    """A function that runs a command, and returns the cells of its table by row."""
    monkeypatch.setattr(gpu, "PRECISIONS", {"mixed_bfloat16": "bfloat16"})
    monkeypatch.setenv("PYTHONPATH", str(Path(gpu.__file__).parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    def run(name, *options):
        log = tmp_path / "log"
        monkeypatch.setattr(sys, "argv", ["gpu.py", name, "--small", "--log", str(log), *options])
        gpu.main()
        rows = re.findall(r"^\| (.+?) \| (.+) \|$", capfd.readouterr().out, re.MULTILINE)
        return {name: cells.split(" | ") for name, cells in rows}

    return run


def test_updates(table):
    found = table("updates", "--at-once", "5")
    ms, rate, tera, share, *_ = found["tiny, 3 x 5, fit, mixed_bfloat16, jit"]
    assert float(rate.replace(",", "")) == pytest.approx(15 / (float(ms) / 1000), rel=0.01)
    product = float(found["products of 64 x 64, bfloat16"][2])
    assert float(share[:-1]) / 100 == pytest.approx(float(tera) / product, rel=0.02, abs=0.006)
    assert "tiny, 3 x 5, fit, mixed_bfloat16, num_micro_batches" in found


def test_search(table):
    found = table("search", "--at-once", "4")
    ms, rate, *_ = found["tiny, 2 sentences, session"]
    assert float(rate.replace(",", "")) * float(ms) / 1000 == pytest.approx(30 * 2, rel=0.01)


def test_replicas(table):
    found = table("replicas")
    assert float(found["two and one"][0]) < 1e-5
    assert found["resumed and two"] == ["0.0e+00"]


def test_memory(table):
    ms, rate, *_ = table("memory", "--at-once", "2")["tiny, 3 x 5, fit, mixed_bfloat16"]
    assert float(rate.replace(",", "")) == pytest.approx(15 / (float(ms) / 1000), rel=0.01)


def test_a_late_row_is_left_out(table):
    with pytest.raises(SystemExit, match="make took more than 0 s"):
        table("search", "--limit", "0.01")
    assert [*table("memory", "--limit", "0.01")] == ["| ms"]  # the head


def test_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "updates", "--log", str(tmp_path / "log")])
    with pytest.raises(SystemExit, match="TensorFlow sees no GPU"):
        gpu.main()
