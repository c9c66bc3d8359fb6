"""Models for engines without TensorFlow: CTranslate2, and Hugging Face's transformers (Marian).

Beside the model, a folder holds `source.spm` and `target.spm`, the SentencePiece models.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, UNK_ID, DecodingOptions, TransformerConfig
from keras_transformer.errors import InputError, needs_extra, require
from keras_transformer.export.options import Quantization
from keras_transformer.files import atomic_folder, named_failure, require_new
from keras_transformer.model.embedding import PositionalEmbedding, sinusoidal_encoding
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers import SPECIAL_PIECES, Side, Tokenizer
from keras_transformer.translator import Translator

MAX_POSITIONS = 2048  # of CTranslate2's table of sinusoids, and so of a sentence


def export_ctranslate2(
    translator: Translator, folder: str | Path, quantization: Quantization = "float32"
) -> None:
    """Writes a model for CTranslate2, which must be installed.

    CTranslate2 takes and returns pieces. Its greedy search finds the same translations. Its beam
    search ends with the first K hypotheses, so it may find others.

    Args:
        translator: the model and its tokenizer.
        folder: a folder that does not exist yet.
        quantization: the type of the stored weights.

    Raises:
        InputError: if the folder exists or cannot be written, or if CTranslate2 is not installed or
            has no form for the model.
    """
    with _new_folder(folder, translator.tokenizer) as written:
        with needs_extra("ctranslate2"):
            spec = _ctranslate2_spec(translator)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(written))


def export_marian(translator: Translator, folder: str | Path, source: str, target: str) -> None:
    """Writes a model as a folder of Hugging Face's `MarianMTModel` and `MarianTokenizer`.

    Transformers adds 1e-5 to the variance in layer normalization, whatever the model was trained
    with. Its sinusoids are those of section 3.5, so it computes a model with Marian's differently.
    In a beam search, it divides by length^length_penalty, and its `early_stopping` is its own.

    Args:
        translator: the model and its tokenizer.
        folder: a folder that does not exist yet.
        source: source language.
        target: target language.

    Raises:
        InputError: if the folder exists or cannot be written, or if Hugging Face has no form for
            the model.
    """
    from keras_transformer.models.layout import EMBEDDINGS, huggingface_name, to_huggingface

    model, tokenizer = _marian_model(translator), translator.tokenizer
    config = model.config
    # Marian's order: </s>, <unk>, the pieces, and last <pad>, the decoder's first input.
    order = np.array([EOS_ID, UNK_ID, *range(4, config.vocab_size), BOS_ID])
    tensors = {"final_logits_bias": np.zeros((1, len(order)), np.float32)}
    for variable in model.weights:
        name = huggingface_name(variable.path)
        weight = to_huggingface(variable.path, np.asarray(variable.value))
        if name == "final_logits_bias":
            weight = weight[None, order]  # [1, V]
        tensors[name] = weight[order] if name in EMBEDDINGS else weight
    files: dict[str, Any] = {
        "config.json": _huggingface_config(config, len(order)),
        "generation_config.json": _generation_config(translator.defaults, len(order) - 1),
        "tokenizer_config.json": {
            "separate_vocabs": not config.share_embeddings,
            "source_lang": source,
            "target_lang": target,
            "tokenizer_class": "MarianTokenizer",
        },
    }
    vocabularies = {"vocab.json": tokenizer.source, "target_vocab.json": tokenizer.target}
    for name, side in list(vocabularies.items())[: 1 if config.share_embeddings else 2]:
        pieces = _pieces(side)
        named = ["</s>", "<unk>", *(pieces[i] for i in order[2:-1]), "<pad>"]
        files[name] = {piece: i for i, piece in enumerate(named)}
    with _new_folder(folder, tokenizer) as written:
        for name, content in files.items():
            text = json.dumps(content, indent=2, ensure_ascii=False)
            (written / name).write_text(f"{text}\n", encoding="utf-8")
        _write_safetensors(written / "model.safetensors", tensors)


def _marian_model(translator: Translator) -> Transformer:
    """Returns the model; `InputError` if Hugging Face has no form for it or for its tokenizer."""
    from keras_transformer.models.marian import MarianTokenizer

    model, tokenizer = _transformer(translator, "Hugging Face"), translator.tokenizer
    if isinstance(tokenizer, MarianTokenizer) and tokenizer.sees_tag:
        raise InputError(
            "Hugging Face's MarianTokenizer cuts the tag of a target language, such as >>deu<<, "
            "off a text, but the SentencePiece model of this tokenizer reads the tag"
        )
    if model.config.position_encoding == "learned":
        raise InputError("Hugging Face's Marian models cannot have learned positions")
    if model.config.norm_first:
        raise InputError("Hugging Face's Marian models cannot have `norm_first`")
    if model.config.first_position:
        raise InputError("Hugging Face's Marian models cannot have a `first_position`")
    if not model.config.scale_attention:
        raise InputError("Hugging Face's Marian models cannot leave out 1 / sqrt(d_k)")
    return model


def _generation_config(options: DecodingOptions, pad_id: int) -> dict[str, Any]:
    return {
        "bad_words_ids": [[pad_id]],
        "decoder_start_token_id": pad_id,
        "eos_token_id": 0,
        "length_penalty": options.length_penalty,
        "max_length": 512,
        "no_repeat_ngram_size": options.no_repeat_ngram,
        "num_beams": options.beam_size,
        "pad_token_id": pad_id,
    }


def _huggingface_config(config: TransformerConfig, num_ids: int) -> dict[str, Any]:
    return {
        "activation_dropout": config.feed_forward_dropout_rate,
        "activation_function": config.activation,
        "architectures": ["MarianMTModel"],
        "attention_dropout": config.attention_dropout_rate,
        "d_model": config.d_model,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.d_ff,
        "decoder_layers": config.num_decoder_layers,
        "decoder_start_token_id": num_ids - 1,
        "decoder_vocab_size": num_ids,
        "dropout": config.dropout_rate,
        "encoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "encoder_layers": config.num_encoder_layers,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "model_type": "marian",
        "pad_token_id": num_ids - 1,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "static_position_embeddings": True,
        "tie_word_embeddings": config.share_embeddings,
        "vocab_size": num_ids,
    }


def _write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 arrays: the length of a JSON header, the header, and the numbers."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + 4 * tensor.size
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").tobytes())


def _ctranslate2_spec(translator: Translator) -> Any:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    model = _transformer(translator, "CTranslate2")
    config = model.config
    weights = {variable.path: np.asarray(variable.value) for variable in model.weights}
    spec = TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm_first,
        activation=Activation[config.activation.upper()],
    )
    for side, coder in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for i, layer in enumerate(coder.layer):
            _set_layer(layer, weights, f"{side}_{i}", model.encoder_layers[0].self_attention.scale)
        if config.norm_first:
            _set_norm(coder.layer_norm, weights, f"{side}_norm")
    for embedding, coder, embeddings in (
        (model.source_embedding, spec.encoder, spec.encoder.embeddings[0]),
        (model.target_embedding, spec.decoder, spec.decoder.embeddings),
    ):
        embeddings.weight = weights[embedding.token_embedding.embeddings.path]
        coder.scale_embeddings = config.scale_embeddings
        coder.position_encodings.encodings = _positions(embedding)
    if model.output_dense is None:
        spec.decoder.projection.weight = spec.decoder.embeddings.weight
        bias = model.target_embedding.output_bias
    else:
        spec.decoder.projection.weight = weights["output/kernel"].T
        bias = model.output_dense.bias
    if bias is not None:
        spec.decoder.projection.bias = np.asarray(bias.value)
    spec.register_source_vocabulary(_pieces(translator.tokenizer.source))
    spec.register_target_vocabulary(_pieces(translator.tokenizer.target))
    spec.config.add_source_bos, spec.config.add_source_eos = translator.tokenizer.source.delimiters
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    return spec


def _set_layer(spec: Any, weights: Mapping[str, np.ndarray], path: str, scale: float) -> None:
    """Sets the weights of a layer, and the scale of scores; `path` is its Keras path."""

    def set_linear(linear: Any, *names: str) -> None:
        linear.weight = np.concatenate([weights[f"{path}/{name}/kernel"].T for name in names])
        linear.bias = np.concatenate([weights[f"{path}/{name}/bias"] for name in names])

    def set_norm(norm: Any, name: str) -> None:
        _set_norm(norm, weights, f"{path}/{name}/norm")

    queries_keys_values = (f"self_attention/{name}" for name in ("query", "key", "value"))
    set_linear(spec.self_attention.linear[0], *queries_keys_values)
    set_linear(spec.self_attention.linear[1], "self_attention/output")
    set_norm(spec.self_attention.layer_norm, "self_attention_norm")
    spec.self_attention.queries_scale = scale
    if path.startswith("decoder"):
        set_linear(spec.attention.linear[0], "cross_attention/query")
        set_linear(spec.attention.linear[1], "cross_attention/key", "cross_attention/value")
        set_linear(spec.attention.linear[2], "cross_attention/output")
        set_norm(spec.attention.layer_norm, "cross_attention_norm")
        spec.attention.queries_scale = scale
    set_linear(spec.ffn.linear_0, "feed_forward/inner")
    set_linear(spec.ffn.linear_1, "feed_forward/output")
    set_norm(spec.ffn.layer_norm, "feed_forward_norm")


def _set_norm(norm: Any, weights: Mapping[str, np.ndarray], path: str) -> None:
    norm.gamma, norm.beta = weights[f"{path}/gamma"], weights[f"{path}/beta"]


def _positions(embedding: PositionalEmbedding) -> np.ndarray:
    """Returns the encodings of positions, [positions, D]."""
    if embedding.position_embedding is not None:
        return np.asarray(embedding.position_embedding.embeddings.value)
    positions = np.arange(MAX_POSITIONS) + embedding.first_position
    return np.asarray(sinusoidal_encoding(positions, embedding.d_model, embedding.divisor))


def _transformer(translator: Translator, engine: str) -> Transformer:
    """Returns the model; `InputError` if the engine has no form for it or for its tokenizer."""
    model = translator.model
    if not isinstance(model, Transformer):
        kind = type(model).__name__
        raise InputError(f"Only a Transformer can become a model for {engine}. Received: a {kind}")
    config = model.config
    head_size = config.d_model // config.num_heads
    require(
        {config.d_k, config.d_v} <= {None, head_size},
        f"{engine} has no heads of sizes of their own: `d_k` and `d_v` must be {head_size}",
        d_k=config.d_k,
        d_v=config.d_v,
    )
    if translator.tokenizer.source.source_tag == "source at end":
        raise InputError(f"{engine} cannot have the language of a source behind its end")
    translator.tokenizer.source.sentencepiece_model()  # raises an error if there is none
    return model


def _pieces(side: Side) -> list[str]:
    """Returns the pieces by id, each with a name of its own."""
    texts = side.pieces(tf.range(side.vocab_size)).numpy()
    pieces = [*SPECIAL_PIECES, *(text.decode() for text in texts[4:])]
    first = {piece: i for i, piece in reversed(list(enumerate(pieces)))}
    return [piece if first[piece] == i else f"<unused_{i}>" for i, piece in enumerate(pieces)]


@contextmanager
def _new_folder(folder: str | Path, tokenizer: Tokenizer) -> Iterator[Path]:
    """Makes a folder with the SentencePiece models; it gets its name when all is written."""
    path = Path(folder)
    require_new(path, "folder")
    with named_failure(path), atomic_folder(path) as written:
        yield written
        for name, side in (("source", tokenizer.source), ("target", tokenizer.target)):
            (written / f"{name}.spm").write_bytes(side.sentencepiece_model())
