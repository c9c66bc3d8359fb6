"""Times an update of the base model on a GPU: on Keras's JAX backend, and by torch.

    PYTHONPATH=benchmarks KERAS_BACKEND=jax python benchmarks/gpu_training.py SYSTEM PRECISION

SYSTEM is jax or torch, and PRECISION is float32 (products in TF32) or bfloat16. The batch has 128
pairs of 64 tokens a side, without padding. It prints the median time of an update, target tokens a
second, the speed of the model's products, and the peak of the memory that arrays take.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench.cases import sizes_of
from bench.inputs import pass_flops

PAIRS, LENGTH, UPDATES = 128, 64, 20
SIZES = sizes_of("base")


def main() -> None:
    """Measures, and prints a line."""
    system, precision = sys.argv[1:]
    ids = np.random.default_rng(1).integers(4, SIZES.vocab_size, (3, PAIRS, LENGTH), np.int32)
    make = {"jax": jax_update, "torch": torch_update}[system]
    update, peak = make(*ids, precision == "bfloat16")
    for _ in range(3):  # the first one compiles
        update()
    seconds = []
    for _ in range(UPDATES):
        began = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    flops = 3 * PAIRS * pass_flops(SIZES, LENGTH, LENGTH)
    print(
        f"{system} {precision}: {median * 1000:.1f} ms, {PAIRS * LENGTH / median:,.0f} tokens/s, "
        f"{flops / median / 1e12:.1f} TFLOP/s, {peak() / 2**30:.2f} GiB"
    )


def jax_update(
    source_ids: np.ndarray, target_ids: np.ndarray, labels: np.ndarray, is_bfloat16: bool
) -> tuple[Callable[[], Any], Callable[[], int]]:
    """An update by `fit`'s compiled step, and the peak of memory in bytes."""
    import jax
    import keras

    from keras_transformer import LabelSmoothedCrossEntropy, Transformer

    keras.config.set_dtype_policy("mixed_bfloat16" if is_bfloat16 else "float32")
    model = Transformer(SIZES)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-4, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(0.1),
        jit_compile=True,
    )
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return (
        lambda: model.train_on_batch(inputs, labels),  # a number, so it waits for the GPU
        lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"],
    )


def torch_update(
    source_ids: np.ndarray, target_ids: np.ndarray, labels: np.ndarray, is_bfloat16: bool
) -> tuple[Callable[[], Any], Callable[[], int]]:
    """An update of `nn.Transformer`, not compiled, and the peak of memory in bytes."""
    import torch
    from bench.peer_torch import Seq2Seq

    torch.set_float32_matmul_precision("high")  # TF32, as JAX
    torch.set_default_device("cuda")
    batch = [torch.tensor(ids, dtype=torch.long) for ids in (source_ids, target_ids, labels)]
    model = Seq2Seq(SIZES).cuda().train()
    parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=is_bfloat16):
            loss = model(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return update, torch.cuda.max_memory_allocated


if __name__ == "__main__":
    main()
