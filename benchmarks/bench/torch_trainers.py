"""Systems that train by torch: `nn.Transformer`, and MarianMT."""

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.cases import Case, sizes_of
from bench.convert import marian_config
from bench.inputs import Pairs, padded
from bench.worker import THREADS
from keras_transformer.config import PAD_ID


class TorchTraining:
    """An ordinary training loop over the same batches again and again."""

    def prepare(self, case: Case) -> None:
        """Makes the model and passes once over the batches."""
        torch.set_num_threads(THREADS)
        torch.manual_seed(1)
        pairs = Pairs(case)
        self.batches = [
            tuple(map(torch.from_numpy, padded(pairs.read(rows)))) for rows in case["rows"]
        ]
        self.tokens = sum(int((labels != PAD_ID).sum()) for _, _, labels in self.batches)
        self.model = self.make(case).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9
        )
        self.run()

    def make(self, case: Case) -> nn.Module:
        """Returns the model."""
        raise NotImplementedError

    def loss(self, source_ids: Any, target_ids: Any, labels: Any) -> Any:
        """Computes a batch's loss."""
        raise NotImplementedError

    def run(self) -> None:
        """Makes an update with each batch."""
        for batch in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(*batch).backward()
            self.optimizer.step()

    def count(self, _: Any) -> dict[str, Any]:
        """Target tokens that are not padding."""
        return {"tokens": self.tokens}


class Seq2Seq(nn.Module):
    """`nn.Transformer` with embeddings, sinusoids and a tied output.

    Args:
        sizes: a TransformerConfig.
    """

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        d_model = sizes.d_model
        self.scale = math.sqrt(d_model)
        self.embedding = nn.Embedding(sizes.vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        rate = 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)
        angle = torch.arange(1024)[:, None] * rate
        positions = torch.stack([angle.sin(), angle.cos()], dim=2).reshape(1024, d_model)
        self.register_buffer("positions", positions)
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(
            d_model,
            sizes.num_heads,
            sizes.num_encoder_layers,
            sizes.num_decoder_layers,
            sizes.d_ff,
            dropout=0.1,
            batch_first=True,
        )

    def embed(self, ids: Any) -> Any:
        """Embeddings and positions."""
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, source_ids: Any, target_ids: Any) -> Any:
        """Returns logits."""
        source_padding, length = source_ids == PAD_ID, target_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.transformer(
            self.embed(source_ids),
            self.embed(target_ids),
            tgt_mask=future,
            tgt_is_causal=True,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_ids == PAD_ID,
            memory_key_padding_mask=source_padding,
        )
        return x @ self.embedding.weight.T


class TorchTransformer(TorchTraining):
    """torch's `nn.Transformer`, with label smoothing as in the paper."""

    def make(self, case: Case) -> nn.Module:
        """Returns the model."""
        return Seq2Seq(sizes_of(case["size"]))

    def loss(self, source_ids: Any, target_ids: Any, labels: Any) -> Any:
        """Computes a batch's loss."""
        logits = self.model(source_ids, target_ids)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1
        )


class MarianSizes(NamedTuple):
    """What `marian_config` reads."""

    vocab_size: int
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: tuple[int, int]


class MarianTraining(TorchTraining):
    """Hugging Face's MarianMTModel, with its own loss: without label smoothing."""

    def make(self, case: Case) -> nn.Module:
        """Returns the model."""
        from transformers import MarianMTModel

        sizes = sizes_of(case["size"])
        return MarianMTModel(
            marian_config(
                MarianSizes(
                    sizes.vocab_size,
                    sizes.d_model,
                    sizes.d_ff,
                    sizes.num_heads,
                    (sizes.num_encoder_layers, sizes.num_decoder_layers),
                )
            )
        )

    def loss(self, source_ids: Any, target_ids: Any, labels: Any) -> Any:
        """Computes a batch's loss."""
        return self.model(
            input_ids=source_ids,
            attention_mask=(source_ids != PAD_ID).long(),
            decoder_input_ids=target_ids,
            labels=labels.masked_fill(labels == PAD_ID, -100),
        ).loss
