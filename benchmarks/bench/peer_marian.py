"""Hugging Face's MarianMTModel, on torch."""

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from bench.cases import LENGTH_PENALTY, Case
from bench.models import LAYER_NORM_EPSILON, MAX_POSITIONS, sinusoids
from bench.peer_torch import TorchTransformer
from bench.systems import THREADS, Translating
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig

# From our names of weights to Marian's, one after the other.
NAMES = {
    "embedding/token_embedding/embeddings": "model.shared.weight",
    "coder_": "coder.layers.",
    "encoder.": "model.encoder.",
    "decoder.": "model.decoder.",
    "_attention_norm/norm": "_attn_layer_norm",
    "feed_forward_norm/norm": "final_layer_norm",
    "_attention": "_attn",
    "cross_": "encoder_",
    "feed_forward/inner": "fc1",
    "feed_forward/output": "fc2",
    "output": "out_proj",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "/": ".",
}


class Marian(Translating):
    """Translates by `generate`, in batches of similar lengths."""

    def load(self, case: Case) -> None:
        torch.set_num_threads(THREADS)
        if torch.cuda.is_available():
            torch.set_default_device("cuda")
        super().load(case)
        self.model = marian(case)

    def run(self) -> list[str]:
        translations = [""] * len(self.texts)
        order = sorted(range(len(self.texts)), key=lambda i: -len(self.texts[i]))
        for start in range(0, len(order), self.case["batch"]):
            rows = order[start : start + self.case["batch"]]
            ids = [torch.tensor([*self.pieces.encode(self.texts[row]), EOS_ID]) for row in rows]
            batch = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD_ID)
            with torch.inference_mode():
                found = self.model.generate(
                    input_ids=batch,
                    attention_mask=(batch != PAD_ID).long(),
                    num_beams=self.case["beam"],
                    do_sample=False,
                    length_penalty=LENGTH_PENALTY,
                    max_new_tokens=self.max_tokens,
                )
            for row, translation in zip(rows, found.tolist(), strict=True):
                translations[row] = self.pieces.decode(translation)  # it drops special ids
        return translations


def marian(case: Case) -> MarianMTModel:
    """Makes a MarianMTModel of a case's weights."""
    from keras_transformer.run import Run

    sizes = Run.load(case["run"]).config
    state = {}
    for name, array in np.load(case["folder"] / "weights.npz").items():
        if name.endswith("kernel"):
            array = array.T.copy()
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        state[name] = torch.from_numpy(array)
    positions = torch.from_numpy(sinusoids(sizes.d_model))
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_positions.weight"] = positions
    model = MarianMTModel(marian_config(sizes))
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight", "model.encoder.embed_tokens.weight"}
    tied |= {"model.decoder.embed_tokens.weight", "final_logits_bias"}
    if unexpected or set(missing) - tied:
        raise RuntimeError(f"MarianMTModel misses {missing}, and does not expect {unexpected}")
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model.eval()


def marian_config(sizes: TransformerConfig) -> MarianConfig:
    """A MarianConfig of the same sizes."""
    return MarianConfig(
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


class MarianLoss(nn.Module):
    """MarianMTModel's own loss: without label smoothing."""

    def __init__(self, sizes: TransformerConfig) -> None:
        super().__init__()
        self.model = MarianMTModel(marian_config(sizes))

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
