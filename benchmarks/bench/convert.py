"""The same weights in the peers' layouts: from the plain names of `models.named_weights`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from bench.models import MAX_POSITIONS

LAYER_NORM_EPSILON = 1e-6  # as in keras_transformer.layers


class Weights:
    """Weights of a model folder, and the sizes that follow from them.

    Args:
        folder: as `models.make` leaves it.
    """

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "weights.npz") as arrays:
            self.arrays = dict(arrays)
        config = json.loads((folder / "run" / "run.json").read_text())["config"]
        self.num_heads: int = config["num_heads"]
        self.num_layers = (config["num_encoder_layers"], config["num_decoder_layers"])
        self.d_ff: int = config["d_ff"]
        self.vocab_size, self.d_model = self.arrays["embedding"].shape

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def positions(self) -> np.ndarray:
        """The sinusoids, float32 [MAX_POSITIONS, D], sines and cosines in turns."""
        dimension = np.arange(self.d_model)
        rate = 10_000.0 ** (-(dimension - dimension % 2) / self.d_model)
        angle = np.arange(MAX_POSITIONS)[:, None] * rate
        return np.where(dimension % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float32)


def pieces_of(folder: Path) -> sentencepiece.SentencePieceProcessor:
    """The model's SentencePiece, for peers that come without one."""
    return sentencepiece.SentencePieceProcessor(str(folder / "run" / "tokenizer.model"))


def write_ctranslate2(folder: Path) -> None:
    """Writes a folder's weights for CTranslate2, in float32; it makes int8 of them as it loads."""
    from ctranslate2.specs import TransformerSpec

    weights = Weights(folder)
    spec = TransformerSpec.from_config(weights.num_layers, weights.num_heads, pre_norm=False)
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.scale_embeddings = True
        embeddings = stack.embeddings[0] if name == "encoder" else stack.embeddings
        embeddings.weight = weights["embedding"]
        stack.position_encodings.encodings = weights.positions()
        for i, layer in enumerate(stack.layer):
            prefix = f"{name}.{i}"
            _ct2_attention(layer.self_attention, weights, f"{prefix}.self", is_self=True)
            if name == "decoder":
                _ct2_attention(layer.attention, weights, f"{prefix}.cross", is_self=False)
            _ct2_linear(layer.ffn.linear_0, weights, [f"{prefix}.ffn.inner"])
            _ct2_linear(layer.ffn.linear_1, weights, [f"{prefix}.ffn.output"])
            _ct2_norm(layer.ffn.layer_norm, weights, f"{prefix}.ffn.norm")
    spec.decoder.projection.weight = weights["embedding"]
    processor = pieces_of(folder)
    tokens = [processor.id_to_piece(i) for i in range(weights.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize()
    (folder / "ctranslate2").mkdir()
    spec.save(str(folder / "ctranslate2"))


def _ct2_attention(spec: Any, weights: Weights, name: str, is_self: bool) -> None:
    groups = (["query", "key", "value"],) if is_self else (["query"], ["key", "value"])
    for linear, parts in zip(spec.linear, (*groups, ["output"]), strict=True):
        _ct2_linear(linear, weights, [f"{name}.{part}" for part in parts])
    _ct2_norm(spec.layer_norm, weights, f"{name}.norm")


def _ct2_linear(spec: Any, weights: Weights, names: list[str]) -> None:
    spec.weight = np.concatenate([weights[f"{name}.kernel"].T for name in names])
    spec.bias = np.concatenate([weights[f"{name}.bias"] for name in names])


def _ct2_norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.gamma"], weights[f"{name}.beta"]


def marian(folder: Path) -> Any:
    """Makes a MarianMTModel of a folder's weights."""
    import torch
    from transformers import MarianMTModel

    weights = Weights(folder)
    model = MarianMTModel(marian_config(weights))
    state = {name: torch.from_numpy(array) for name, array in _marian_state(weights).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight", "model.encoder.embed_tokens.weight"}
    tied |= {"model.decoder.embed_tokens.weight", "final_logits_bias"}
    if unexpected or set(missing) - tied:
        raise RuntimeError(f"MarianMTModel misses {missing}, does not know {unexpected}")
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model.eval()


def marian_config(sizes: Any, **changes: Any) -> Any:
    """MarianConfig of a `Weights`, or of anything with such sizes."""
    from transformers import MarianConfig

    from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID

    encoder_layers, decoder_layers = sizes.num_layers
    return MarianConfig(
        vocab_size=sizes.vocab_size,
        d_model=sizes.d_model,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
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
        **changes,
    )


def _marian_state(weights: Weights) -> dict[str, np.ndarray]:
    state = {"model.shared.weight": weights["embedding"]}
    attention_names = {"self": "self_attn", "cross": "encoder_attn"}
    part_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    for name in weights.arrays:
        if name == "embedding":
            continue
        stack, i, group, part, *what = name.split(".")
        layer = f"model.{stack}.layers.{i}"
        if group == "ffn":
            place = {"inner": "fc1", "output": "fc2", "norm": "final_layer_norm"}[part]
        elif part == "norm":
            place = f"{attention_names[group]}_layer_norm"
        else:
            place = f"{attention_names[group]}.{part_names[part]}"
        kind = "bias" if what[0] in ("bias", "beta") else "weight"
        array = weights[name]
        state[f"{layer}.{place}.{kind}"] = array.T.copy() if what[0] == "kernel" else array
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_positions.weight"] = weights.positions()
    return state
