"""Hugging Face's MarianMTModel, on torch."""

import json
import time
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from bench.cases import LENGTH_PENALTY, Case
from bench.peer_torch import MAX_POSITIONS, TorchTransformer
from bench.systems import THREADS, Translating
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig


class Marian(Translating):
    """Translates by `generate`, in batches of similar lengths."""

    stored = "marian"

    def load(self, case: Case) -> None:
        if torch.cuda.is_available():
            torch.set_default_device("cuda")
        super().load(case)
        folder = case["folder"] / self.stored
        self.ids = json.loads((folder / "vocab.json").read_text("utf-8"))
        self.end, self.padding = self.ids["</s>"], self.ids["<pad>"]
        self.model = MarianMTModel.from_pretrained(folder).to(torch.get_default_device()).eval()
        self.model.generation_config = GenerationConfig(
            decoder_start_token_id=self.padding, pad_token_id=self.padding, eos_token_id=self.end
        )
        for module in self.model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = TransformerConfig.layer_norm_epsilon
        if not torch.cuda.is_available():
            torch.set_num_threads(min(range(1, THREADS + 1), key=self._seconds))

    def _seconds(self, threads: int) -> float:
        """Translates one batch with a number of threads, once warm."""
        torch.set_num_threads(threads)
        texts = self.texts[: self.case["batch"]]
        self.translate(texts)
        started = time.perf_counter()
        self.translate(texts)
        return time.perf_counter() - started

    def translate(self, texts: list[str]) -> list[str]:
        translations = [""] * len(texts)
        pieces = [*self.ids]
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), self.case["batch"]):
            rows = order[start : start + self.case["batch"]]
            encoded = (self.pieces.encode(texts[row], out_type=str) for row in rows)
            ids = [torch.tensor([*map(self.ids.get, each), self.end]) for each in encoded]
            batch = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=self.padding)
            with torch.inference_mode():
                found = self.model.generate(
                    input_ids=batch,
                    attention_mask=(batch != self.padding).long(),
                    num_beams=self.case["beam"],
                    do_sample=False,
                    length_penalty=LENGTH_PENALTY,
                    max_new_tokens=self.max_tokens,
                )
            for row, translation in zip(rows, found.tolist(), strict=True):
                kept = [pieces[i] for i in translation if i not in (self.end, self.padding)]
                translations[row] = self.pieces.decode(kept)
        return translations


class MarianLoss(nn.Module):
    """MarianMTModel's own loss: without label smoothing."""

    def __init__(self, sizes: TransformerConfig) -> None:
        super().__init__()
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=sizes.vocab_size,
                d_model=sizes.d_model,
                encoder_layers=sizes.num_encoder_layers,
                decoder_layers=sizes.num_decoder_layers,
                encoder_attention_heads=sizes.num_heads,
                decoder_attention_heads=sizes.num_heads,
                encoder_ffn_dim=sizes.d_ff,
                decoder_ffn_dim=sizes.d_ff,
                max_position_embeddings=MAX_POSITIONS,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=PAD_ID,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                decoder_start_token_id=BOS_ID,
                forced_eos_token_id=None,
            )
        )

    def forward(self, source_ids: Any, target_ids: Any, labels: Any) -> Any:
        return self.model(
            input_ids=source_ids,
            attention_mask=(source_ids != PAD_ID).long(),
            decoder_input_ids=target_ids,
            labels=labels.masked_fill(labels == PAD_ID, -100),
        ).loss


class MarianTraining(TorchTransformer):
    """Trains a MarianMTModel."""

    def make(self, sizes: TransformerConfig) -> nn.Module:
        return MarianLoss(sizes)
