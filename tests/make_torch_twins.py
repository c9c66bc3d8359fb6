"""Writes tests/torch_twins.npz: what PyTorch's layers compute in float64 from random weights.

    pip install torch
    python tests/make_torch_twins.py

The tests compare the package and tests/reference.py with the stored arrays. They need no PyTorch.
"""

import numpy as np
import reference
import torch
import torch_twins

B, N, D, F, S, T, V = 3, 2, 10, 17, 7, 11, 19
VALUE_WIDTH, KEY_WIDTH = 13, 23
LAYER = {"dropout": 0.0, "layer_norm_eps": 1e-6, "batch_first": True, "dtype": torch.float64}

rng = np.random.default_rng(23)


def random_attention(query_width=D, key_width=D, value_width=D):
    """Kernel and bias of query, key, value and output, in the order of our layer."""
    shapes = [(query_width, D), (D,), (key_width, D), (D,), (value_width, D), (D,), (D, D), (D,)]
    return [rng.normal(0.0, 0.5, shape) for shape in shapes]


def random_layer(num_attentions):
    """Weights of a layer, in the order of ours."""
    norm = [(1.0, (D,)), (0.0, (D,))]
    feed_forward = [(0.0, shape) for shape in ((D, F), (F,), (F, D), (D,))]
    found = []
    for _ in range(num_attentions):
        found += random_attention() + [rng.normal(mean, 0.5, shape) for mean, shape in norm]
    return found + [rng.normal(mean, 0.5, shape) for mean, shape in (*feed_forward, *norm)]


def random_mask(*shape):
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True  # PyTorch gives NaN for a row that is masked entirely
    return mask


def hidden(mask):
    """[B, T, S], True to attend -> [B * N, T, S], True to hide."""
    return torch.tensor(~np.repeat(mask, N, axis=0))


def attention_state(weights, prefix=""):
    """Weights of an attention, kernels [in, out], by PyTorch's names, kernels [out, in]."""
    query, query_bias, key, key_bias, value, value_bias, output, output_bias = weights
    if query.shape == key.shape == value.shape:
        kernels = {"in_proj_weight": np.concatenate([query.T, key.T, value.T])}
    else:
        kernels = {"q_proj_weight": query.T, "k_proj_weight": key.T, "v_proj_weight": value.T}
    biases = {"in_proj_bias": np.concatenate([query_bias, key_bias, value_bias])}
    state = {**kernels, **biases, "out_proj.weight": output.T, "out_proj.bias": output_bias}
    return {f"{prefix}{name}": torch.tensor(array) for name, array in state.items()}


def layer_state(weights, *attentions):
    """Weights of a layer by PyTorch's names."""
    state, weights = {}, list(weights)
    for number, attention in enumerate((*attentions, None), start=1):
        if attention is None:
            kernel1, bias1, kernel2, bias2 = weights[:4]
            state["linear1.weight"], state["linear1.bias"] = kernel1.T, bias1
            state["linear2.weight"], state["linear2.bias"] = kernel2.T, bias2
            del weights[:4]
        else:
            state |= attention_state(weights[:8], f"{attention}.")
            del weights[:8]
        state[f"norm{number}.weight"], state[f"norm{number}.bias"] = weights[:2]
        del weights[:2]
    return {name: torch.as_tensor(array) for name, array in state.items()}


def make_attention(mask):
    """[B, T, D] attends to keys and values of other widths; `mask` is [B, N, T, S] or None."""
    weights = random_attention(D, KEY_WIDTH, VALUE_WIDTH)
    query, key = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, KEY_WIDTH))
    value = rng.normal(size=(B, S, VALUE_WIDTH))
    module = torch.nn.MultiheadAttention(
        D, N, kdim=KEY_WIDTH, vdim=VALUE_WIDTH, batch_first=True, dtype=torch.float64
    )
    module.load_state_dict(attention_state(weights))
    output, scores = module(
        *map(torch.tensor, (query, key, value)),
        attn_mask=None if mask is None else torch.tensor(~mask.reshape(B * N, T, S)),
        average_attn_weights=False,
    )
    masks = {} if mask is None else {"mask": mask}
    arrays = {"query": query, "key": key, "value": value, "output": output, "scores": scores}
    return weights, arrays | masks


def make_encoder_layer():
    weights, x, mask = random_layer(1), rng.normal(size=(B, S, D)), random_mask(B, S, S)
    module = torch.nn.TransformerEncoderLayer(D, N, F, **LAYER)
    module.load_state_dict(layer_state(weights, "self_attn"))
    return weights, {"x": x, "mask": mask, "output": module(torch.tensor(x), src_mask=hidden(mask))}


def make_decoder_layer():
    weights, x, encoder_output = (
        random_layer(2),
        rng.normal(size=(B, T, D)),
        rng.normal(size=(B, S, D)),
    )
    self_mask, cross_mask = random_mask(B, T, T) & np.tri(T, dtype=bool), random_mask(B, T, S)
    module = torch.nn.TransformerDecoderLayer(D, N, F, **LAYER)
    module.load_state_dict(layer_state(weights, "self_attn", "multihead_attn"))
    output = module(
        torch.tensor(x),
        torch.tensor(encoder_output),
        tgt_mask=hidden(self_mask),
        memory_mask=hidden(cross_mask),
    )
    masks = {"self_mask": self_mask, "cross_mask": cross_mask}
    return weights, {"x": x, "encoder_output": encoder_output, "output": output, **masks}


def make_pre_norm():
    """Logits [B, T, V] of a model with as many layers as in tests/layer_weights.py."""
    table = rng.normal(0.0, 0.3, (V, D))
    sides, weights, state = {"encoder": 2, "decoder": 3}, [table], {}
    for side, num_layers in sides.items():
        attentions = ["self_attn", "multihead_attn"][: 1 if side == "encoder" else 2]
        for i in range(num_layers):
            layer = random_layer(len(attentions))
            named = layer_state(layer, *attentions)
            state |= {f"{side}.layers.{i}.{name}": array for name, array in named.items()}
            weights += layer
        norm = [rng.normal(mean, 0.5, D) for mean in (1.0, 0.0)]
        named = zip(("weight", "bias"), map(torch.tensor, norm), strict=True)
        state |= {f"{side}.norm.{name}": array for name, array in named}
        weights += norm
    options = {"norm_first": True, "activation": "gelu", **LAYER}
    module = torch.nn.Transformer(D, N, *sides.values(), F, **options)
    for coder in (module.encoder, module.decoder):
        coder.norm.eps = LAYER["layer_norm_eps"]
    module.load_state_dict(state)

    source_ids, target_ids = rng.integers(1, V, (B, S)), rng.integers(1, V, (B, T))
    source_ids[1, 4:] = source_ids[2, 2:] = target_ids[1, 5:] = target_ids[2, 8:] = 0
    x, y = (
        torch.tensor(reference.positional_embedding(ids, table)) for ids in (source_ids, target_ids)
    )
    source_padding = torch.tensor(source_ids == 0)
    output = module(
        x,
        y,
        tgt_mask=torch.tensor(~np.tri(T, dtype=bool)),
        src_key_padding_mask=source_padding,
        memory_key_padding_mask=source_padding,
        tgt_key_padding_mask=torch.tensor(target_ids == 0),
    )
    logits = output @ torch.tensor(table.T)
    return weights, {"source_ids": source_ids, "target_ids": target_ids, "logits": logits}


def make_label_smoothing():
    """Losses [B, T] of smoothing 0.0, 0.1 and 0.7."""
    logits, targets = 5 * rng.normal(size=(B, T, V)), rng.integers(1, V, size=(B, T))
    targets[:, 8:] = 0
    arrays = {"logits": logits, "targets": targets}
    for smoothing in (0.0, 0.1, 0.7):
        arrays[f"loss_{smoothing}"] = torch.nn.functional.cross_entropy(
            torch.tensor(logits.transpose(0, 2, 1)),  # [B, V, T]
            torch.tensor(targets),
            ignore_index=0,
            reduction="none",
            label_smoothing=smoothing,
        )
    return [], arrays


def main():
    cases = {
        "attention": make_attention(mask=None),
        "masked_attention": make_attention(random_mask(B, N, T, S)),
        "encoder_layer": make_encoder_layer(),
        "decoder_layer": make_decoder_layer(),
        "label_smoothing": make_label_smoothing(),
        "pre_norm": make_pre_norm(),
    }
    stored = {}
    for case, (weights, arrays) in cases.items():
        named = {f"weight_{i:03}": weight for i, weight in enumerate(weights)} | arrays
        for name, array in named.items():
            stored[f"{case}/{name}"] = np.asarray(
                array.detach() if isinstance(array, torch.Tensor) else array
            )
    np.savez_compressed(torch_twins.FILE, **stored)


if __name__ == "__main__":
    main()
