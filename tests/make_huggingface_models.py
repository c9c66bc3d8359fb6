"""Writes tests/data/huggingface.tar.xz: two Marian models of random weights, as Hugging Face saves.

    pip install torch==2.13.0 transformers==5.23.0 sentencepiece
    python tests/make_huggingface_models.py

"shared" has one vocabulary with tags of target languages, its end symbol somewhere in the middle,
and float16 weights in `model.safetensors`. "separate" has two vocabularies, and float32 weights in
a `pytorch_model.bin` of the old form. The SentencePiece models are those of marian.tar.xz.
`expected.json` holds what transformers makes of the sentences: the tokens, the logits of a target,
and the translations of greedy and of beam search.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import sentencepiece
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
from marian_models import extract

from keras_transformer.trainers.data.corpora import bundled_splits

ARCHIVE = Path(__file__).parent / "data/huggingface.tar.xz"
SENTENCES = {
    "shared": [
        ">>deu<< The girl listens to her woman.",
        ">>fra<< At 5 o'clock, Öl!",
        ">>xxx<< Did they go?",
        "When does a white phone belong to him?",
    ],
    "separate": ["The girl listens to her woman.", "At 5 o'clock?", "Yesterday it rained."],
}
NUM_STEPS = 450
EXTRA_LENGTH = 50  # as in `DecodingOptions`
SIZES = {
    "shared": {"encoder_layers": 2, "decoder_layers": 1, "d_model": 18, "heads": 3, "ffn": 22},
    "separate": {"encoder_layers": 1, "decoder_layers": 2, "d_model": 20, "heads": 2, "ffn": 26},
}


def write_vocabularies(folder, is_shared):
    """Writes the ids of pieces. <pad> has the last id, or the same one in both vocabularies."""
    pieces = []
    for side in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        pieces.append([processor.id_to_piece(i) for i in range(3, len(processor))])
    if is_shared:
        both = [*pieces[0], "</s>", "<unk>", ">>deu<<", ">>fra<<", "5", *pieces[1]]
        files = {"vocab.json": both}
    else:
        files = {
            "vocab.json": ["</s>", "<unk>", "<pad>", *pieces[0]],
            "target_vocab.json": ["</s>", "<unk>", "<pad>", *pieces[1]],
        }
    ids = {}
    for name, listed in files.items():
        ids[name] = {piece: i for i, piece in enumerate(dict.fromkeys([*listed, "<pad>"]))}
        (folder / name).write_text(json.dumps(ids[name], ensure_ascii=False), "utf-8")
    return list(ids.values())


def make_model(name, vocabularies):
    sizes = SIZES[name]
    source, target = vocabularies[0], vocabularies[-1]
    config = transformers.MarianConfig(
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        d_model=sizes["d_model"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        encoder_ffn_dim=sizes["ffn"],
        decoder_ffn_dim=sizes["ffn"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        activation_function="swish" if name == "shared" else "relu",
        scale_embedding=True,
        max_position_embeddings=99,  # a table in the file
        share_encoder_decoder_embeddings=name == "shared",
        eos_token_id=target["</s>"],
        forced_eos_token_id=target["</s>"],
        pad_token_id=target["<pad>"],
        decoder_start_token_id=target["<pad>"],
    )
    torch.manual_seed(29)
    torch.set_num_threads(1)
    model = transformers.MarianMTModel(config).eval()
    model.generation_config = transformers.GenerationConfig(
        num_beams=4,
        length_penalty=0.9,
        bad_words_ids=[[target["<pad>"]]],
        eos_token_id=target["</s>"],
        pad_token_id=target["<pad>"],
        decoder_start_token_id=target["<pad>"],
    )
    return model


def fit(model, tokenizer, tag):
    """Trains a model for a little, so that its translations end and differ."""
    pairs = bundled_splits()["train"]
    optimizer = torch.optim.Adam(model.parameters(), 0.01, betas=(0.9, 0.98))
    model.train()
    for start in range(0, 48 * NUM_STEPS, 48):
        sources, targets, _ = zip(*pairs[start : start + 48], strict=True)
        batch = tokenizer(
            [tag + source for source in sources],
            text_target=targets,
            padding=True,
            return_tensors="pt",
        )
        batch.labels[batch.labels == tokenizer.pad_token_id] = -100
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        bias = 0.1 * torch.randn(model.final_logits_bias.shape)
        # transformers may choose <unk>, and the package does not.
        bias[0, tokenizer.convert_tokens_to_ids("<unk>")] = -90.0
        model.final_logits_bias.copy_(bias)
    model.eval()


def translate(model, tokenizer, sentence, num_beams):
    """Returns a translation; None if it reached the maximum length, which this package cuts."""
    batch = tokenizer(sentence, return_tensors="pt")
    limit = batch.input_ids.shape[1] - 1 + EXTRA_LENGTH
    # By default a search ends before its result is final.
    early_stopping = "never" if num_beams > 1 else None
    (ids,) = model.generate(
        **batch, num_beams=num_beams, max_new_tokens=limit, early_stopping=early_stopping
    )
    return tokenizer.decode(ids, skip_special_tokens=True) if len(ids) <= limit else None


def expected_of(folder, name):
    """What transformers computes with the saved model."""
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    tag = ">>deu<< " if name == "shared" else ""
    others = [tag + pair.source for pair in bundled_splits()["test"][:12]]
    sentences = [*SENTENCES[name], *others]
    batch = tokenizer(sentences, return_tensors="pt", padding=True)
    target_ids = model.generate(**batch)[:2, 1:7]
    start = torch.full((2, 1), model.config.decoder_start_token_id)
    with torch.no_grad():
        logits = model(
            batch.input_ids[:2],
            batch.attention_mask[:2],
            decoder_input_ids=torch.cat([start, target_ids[:, :-1]], dim=1),
        ).logits
    pieces = {index: piece for piece, index in tokenizer.encoder.items()}
    rows = [[i for i in row if i != tokenizer.pad_token_id] for row in batch.input_ids.tolist()]
    return {
        "sentences": sentences,
        "source": [[pieces[i] for i in row] for row in rows],
        "target": [[tokenizer.decoder[i] for i in row] for row in target_ids.tolist()],
        "logits": [[[round(x, 6) for x in step] for step in row] for row in logits.tolist()],
        "greedy": [translate(model, tokenizer, sentence, 1) for sentence in sentences],
        "beam": [translate(model, tokenizer, sentence, 4) for sentence in sentences],
    }


def main():
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(ARCHIVE, "w:xz") as archive:
        marian = extract("marian", Path(temporary))
        for name in SIZES:
            folder = Path(temporary) / "huggingface" / name
            folder.mkdir(parents=True)
            for side in ("source", "target"):
                shutil.copy(marian / f"swish/{side}.spm", folder)
            vocabularies = write_vocabularies(folder, name == "shared")
            model = make_model(name, vocabularies)
            languages = {
                "source_lang": "en",
                "target_lang": "de",
                "separate_vocabs": name == "separate",
            }
            (folder / "tokenizer_config.json").write_text(json.dumps(languages))
            tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
            fit(model, tokenizer, ">>deu<< " if name == "shared" else "")
            if name == "shared":
                model.half().save_pretrained(folder)
            else:
                model.save_pretrained(folder)
                (folder / "model.safetensors").unlink()
                torch.save(
                    model.state_dict(),
                    folder / "pytorch_model.bin",
                    _use_new_zipfile_serialization=False,
                )
            expected = expected_of(folder, name)
            (folder / "expected.json").write_text(json.dumps(expected))
            for path in sorted(folder.iterdir()):
                archive.add(path, f"{name}/{path.name}")


if __name__ == "__main__":
    main()
