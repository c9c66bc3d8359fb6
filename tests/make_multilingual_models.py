"""Writes tests/data/multilingual.tar.xz: models of four languages, as Hugging Face saves them.

    pip install torch==2.13.0 transformers==5.23.0 sentencepiece
    python tests/make_multilingual_models.py MULTI30K

MULTI30K holds `en.train.txt`, `de.train.txt`, `fr.train.txt`, `cs.train.txt`, and those of
"test2016". "m2m" is as M2M-100: float16 weights in a `pytorch_model.bin`, ids by `vocab.json`.
"nllb" is as NLLB-200: bfloat16 weights in `model.safetensors`, ids by the SentencePiece model;
"legacy" is the same with the source's language behind it. "small" is as SMaLL-100: a source begins
with the target's language.
`expected.json` holds what transformers makes of sentences: the tokens, the logits of a target, and
the translations of greedy and of beam search with their scores.
"""

import json
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import sentencepiece
import torch
import transformers

ARCHIVE = Path(__file__).parent / "data/multilingual.tar.xz"
LANGUAGES = ("en", "de", "fr", "cs")
NLLB = {"en": "eng_Latn", "de": "deu_Latn", "fr": "fra_Latn", "cs": "ces_Latn"}
PAIRS = [("en", "de"), ("de", "en"), ("fr", "cs"), ("cs", "fr")]
KINDS = ("m2m", "nllb", "small")
SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}
VOCAB_SIZE, NUM_STEPS, BATCH, SENTENCES = 560, 800, 32, 6
EXTRA_LENGTH = 50  # as in `DecodingOptions`


def read_lines(folder, split):
    """Returns rows of a text in all languages."""
    sides = [(folder / f"{code}.{split}.txt").read_text("utf-8").splitlines() for code in LANGUAGES]
    return [dict(zip(LANGUAGES, row, strict=True)) for row in zip(*sides, strict=True)]


def write_tokenizer(folder, kind, rows):
    """Writes the files of a tokenizer, and returns it."""
    texts = (text for row in rows[:6000] for text in row.values())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_prefix=str(folder / "trained"),
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        character_coverage=0.9998,
        minloglevel=2,
    )
    (folder / "trained.vocab").unlink()
    path = (folder / "trained.model").rename(folder / "sentencepiece.bpe.model")
    processor = sentencepiece.SentencePieceProcessor(str(path))
    if kind == "nllb":
        names = [*sorted(NLLB.values()), "<mask>"]
        ids = dict(zip(["<s>", "<pad>", "</s>", "<unk>"], range(4), strict=True))
        ids |= {name: len(processor) + 1 + i for i, name in enumerate(names)}
        settings = {
            "tokenizer_class": "NllbTokenizer",
            "additional_special_tokens": names[:-1],
            "added_tokens_decoder": {
                str(index): {"content": name, "special": True} for name, index in ids.items()
            },
        }
        tokenizer_type = transformers.NllbTokenizer
    else:
        pieces = [processor.id_to_piece(i) for i in range(3, len(processor))]
        random.Random(7).shuffle(pieces)
        ids = {p: i for i, p in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
        (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), "utf-8")
        settings = {"tokenizer_class": "M2M100Tokenizer"}
        tokenizer_type = transformers.M2M100Tokenizer
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer_type.from_pretrained(folder)


def name_of(kind, language):
    return NLLB[language] if kind in ("nllb", "legacy") else language


def language_id(kind, tokenizer, language):
    if kind in ("nllb", "legacy"):
        return tokenizer.convert_tokens_to_ids(NLLB[language])
    return tokenizer.get_lang_id(language)


def encode(kind, tokenizer, texts, source, target):
    """Returns a batch of sources."""
    tokenizer.src_lang = name_of(kind, target if kind == "small" else source)
    return tokenizer(texts, padding=True, return_tensors="pt")


def cut(ids):
    """Returns rows without columns that are only padding."""
    return ids[:, : int((ids != 1).sum(dim=1).max())]


def fit(model, kind, tokenizer, rows, num_steps):
    """Trains a model for a little, so that its translations end and differ."""
    optimizer = torch.optim.Adam(model.parameters(), 0.006, betas=(0.9, 0.98))
    generator = random.Random(5)
    rows = rows[:4000]
    ids = {
        code: encode(kind, tokenizer, [row[code] for row in rows], code, code).input_ids
        for code in LANGUAGES
    }
    model.train()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.006 * min(1.0, step / 60, (num_steps - step) / 300)
        source, target = PAIRS[step % len(PAIRS)]
        batch = generator.sample(range(len(rows)), BATCH)
        inputs, labels = (cut(ids[code][batch]) for code in (source, target))
        if kind == "small":
            inputs[:, 0], labels = labels[0, 0], labels[:, 1:]
        loss = model(inputs, inputs != 1, labels=labels.masked_fill(labels == 1, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def make_model(kind, tokenizer):
    torch.manual_seed(29)
    torch.set_num_threads(1)
    size = len(tokenizer) if kind == "nllb" else tokenizer.vocab_size + 100 + 8
    config = transformers.M2M100Config(
        vocab_size=size + (2 if kind == "nllb" else 0), dropout=0.0, attention_dropout=0.0, **SIZES
    )
    model = transformers.M2M100ForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        num_beams=4 if kind == "m2m" else 5,
        max_length=200,
        decoder_start_token_id=2,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    return model


@torch.no_grad()
def translate(model, kind, tokenizer, text, pair, num_beams):
    """Returns a translation and its score; None if it reached the maximum length."""
    batch = encode(kind, tokenizer, [text], *pair)
    limit = batch.input_ids.shape[1] - 1 + EXTRA_LENGTH
    forced = None if kind == "small" else language_id(kind, tokenizer, pair[1])
    # By default a search ends before its result is final.
    found = model.generate(
        **batch,
        num_beams=num_beams,
        max_new_tokens=limit,
        early_stopping="never" if num_beams > 1 else None,
        forced_bos_token_id=forced,
        return_dict_in_generate=True,
        output_scores=True,
    )
    (ids,) = found.sequences
    if len(ids) > limit:
        return None
    score = float(found.sequences_scores[0]) if num_beams > 1 else 0.0
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return text.removeprefix(f"__{pair[1]}__ "), round(score, 6)


@torch.no_grad()
def expected_of(folder, kind, rows):
    """What transformers computes with the saved model."""
    model = transformers.M2M100ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    is_nllb = kind in ("nllb", "legacy")
    tokenizer_type = transformers.NllbTokenizer if is_nllb else transformers.M2M100Tokenizer
    tokenizer = tokenizer_type.from_pretrained(folder)
    results = []
    for source, target in PAIRS:
        texts = [row[source] for row in rows]
        batch = encode(kind, tokenizer, texts, source, target)
        labels = encode(kind, tokenizer, [rows[0][target]], target, target).input_ids
        labels = labels[:, 1:] if kind == "small" else labels
        if kind == "legacy":
            labels = torch.cat([labels[:, -1:], labels[:, :-1]], dim=1)
        decoder_ids = torch.cat([torch.tensor([[2]]), labels[:, :-1]], dim=1)
        logits = model(batch.input_ids[:1], batch.attention_mask[:1], decoder_input_ids=decoder_ids)
        results.append(
            {
                "source": name_of(kind, source),
                "target": name_of(kind, target),
                "texts": texts,
                "source_ids": [[i for i in ids if i != 1] for ids in batch.input_ids.tolist()],
                "target_text": rows[0][target],
                "target_ids": labels[0].tolist(),
                "logits": [[round(x, 4) for x in step] for step in logits.logits[0, :2].tolist()],
                "greedy": [
                    translate(model, kind, tokenizer, t, (source, target), 1) for t in texts
                ],
                "beam": [translate(model, kind, tokenizer, t, (source, target), 4) for t in texts],
            }
        )
    return results


def make_folder(folder, kind, rows, num_steps=NUM_STEPS):
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder, kind, rows)
    model = make_model(kind, tokenizer)
    fit(model, kind, tokenizer, rows, num_steps)
    if kind == "nllb":
        model.bfloat16().save_pretrained(folder)
    else:
        model.half().save_pretrained(folder)
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    if kind == "small":
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = "SMALL100Tokenizer"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def make_legacy(folder, nllb):
    shutil.copytree(nllb, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["legacy_behaviour"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main():
    multi30k = Path(sys.argv[1])
    rows, tests = (read_lines(multi30k, split) for split in ("train", "test2016"))
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(ARCHIVE, "w:xz") as archive:
        folder = Path(temporary)
        for kind in KINDS:
            make_folder(folder / kind, kind, rows)
        make_legacy(folder / "legacy", folder / "nllb")
        for kind in (*KINDS, "legacy"):
            expected = expected_of(folder / kind, kind, tests[:SENTENCES])
            (folder / kind / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))
            for path in sorted((folder / kind).iterdir()):
                archive.add(path, f"{kind}/{path.name}")


if __name__ == "__main__":
    main()
