"""PyTorch: `nn.Transformer`, and the training loop of its systems."""

import functools
import math
from typing import Any

import torch
from torch import nn

from bench.cases import Case, sizes_of
from bench.systems import THREADS
from keras_transformer.config import PAD_ID, TransformerConfig

MAX_POSITIONS = 1024


def sinusoids(d_model: int) -> torch.Tensor:
    """The encodings of positions, sines and cosines in turns."""
    rate = 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angle = torch.arange(MAX_POSITIONS)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


class Seq2Seq(nn.Module):
    """`nn.Transformer` with embeddings, sinusoids, a tied output, and label smoothing."""

    def __init__(self, sizes: TransformerConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(sizes.d_model)
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        self.register_buffer("positions", sinusoids(sizes.d_model))
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(
            sizes.d_model,
            sizes.num_heads,
            sizes.num_encoder_layers,
            sizes.num_decoder_layers,
            sizes.d_ff,
            dropout=0.1,
            batch_first=True,
        )

    def embed(self, ids: Any) -> Any:
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, source_ids: Any, target_ids: Any, labels: Any) -> Any:
        source_padding, length = source_ids == PAD_ID, target_ids.shape[1]
        x = self.transformer(
            self.embed(source_ids),
            self.embed(target_ids),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_ids == PAD_ID,
            memory_key_padding_mask=source_padding,
        )
        logits = x @ self.embedding.weight.T
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1
        )


class TorchTransformer:
    """An ordinary training loop over the same batches again and again, on a GPU if there is one."""

    def __init__(self, jit: bool = False, precision: str = "float32") -> None:
        self.jit, self.dtype = jit, getattr(torch, precision.removeprefix("mixed_"))

    def make(self, sizes: TransformerConfig) -> nn.Module:
        """A model that computes the loss of source ids, target ids and labels."""
        return Seq2Seq(sizes)

    def prepare(self, case: Case) -> None:
        torch.set_num_threads(THREADS)
        torch.set_float32_matmul_precision("high")  # on a GPU TF32, as TensorFlow
        torch.manual_seed(1)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cuda":  # on a CPU it would slow down every call
            torch.set_default_device(self.device)
        tensor = functools.partial(torch.tensor, dtype=torch.long)
        self.batches = [
            (tensor(inputs["source_ids"]), tensor(inputs["target_ids"]), tensor(labels))
            for inputs, labels, _ in case["batches"]
        ]
        model = self.make(sizes_of(case["size"])).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=self.device == "cuda"
        )
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.dtype == torch.float16)
        self.model = torch.compile(model) if self.jit else model
        self.run()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def run(self) -> None:
        is_mixed = self.dtype != torch.float32
        for batch in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, self.dtype, enabled=is_mixed):
                loss = self.model(*batch)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        float(loss.item())  # waits

    def count(self, output: None) -> dict[str, Any]:
        tokens = sum(int((labels != PAD_ID).sum()) for *_, labels in self.batches)
        if self.device == "cpu":
            return {"tokens": tokens}
        return {"tokens": tokens, "gpu_bytes": torch.cuda.max_memory_allocated()}
