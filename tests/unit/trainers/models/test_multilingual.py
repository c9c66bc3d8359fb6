"""Imported models of many languages, against what transformers computes with them."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from file_edits import delete, edit_json
from marian_models import extract

from keras_transformer.errors import InputError
from keras_transformer.protection.counts import CountConstraint
from keras_transformer.protection.tokenizer import ProtectingTokenizer
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import Tokenizer, shifted
from keras_transformer.trainers.ensemble.combining import combine
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.models.multilingual import import_multilingual
from keras_transformer.trainers.models.published import import_model
from keras_transformer.translator import Translator

KINDS = ("m2m", "nllb", "legacy", "small")


class Expected(NamedTuple):
    """What transformers makes of texts of one language."""

    source: str
    target: str
    texts: list[str]
    source_ids: list[list[int]]
    target_text: str
    target_ids: list[int]
    logits: list[list[float]]
    greedy: list
    beam: list

    @property
    def tag(self):
        return f">>{self.source}:{self.target}<< "

    @property
    def tagged(self):
        return [self.tag + text for text in self.texts]


class Imported(NamedTuple):
    folder: Path
    translator: Translator
    expected: list[Expected]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return extract("multilingual", tmp_path_factory.mktemp("multilingual"))


@pytest.fixture(scope="module", params=KINDS)
def imported(request, folders):
    folder = folders / request.param
    run = import_model(folder, folder / "run", "en", "ces" if request.param == "nllb" else "cs")
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    return Imported(folder, Translator.of(run), [Expected(**each) for each in expected])


# What does not depend on how ids are read: the source's tag stands before it, and behind it.
few = pytest.mark.parametrize("imported", ["small", "legacy"], indirect=True)


def their_id(index):
    """The id of transformers for one of ours. The decoder starts with </s>, and <s> is its 0."""
    return [1, 3, 2, 2, 0][index] if index < 5 else index - 1


def test_tokens_are_those_of_hugging_face(imported):
    tokenizer = imported.translator.tokenizer
    for each in imported.expected:
        ids = tokenizer.encode(tf.constant(each.tagged)).ids.numpy()
        own = [[their_id(i) for i in row if i] for row in ids.tolist()]
        assert own == each.source_ids
        _, target = tokenizer.encode_pairs([each.tagged[0]], [each.target_text])
        assert [their_id(i) for i in target.ids.numpy()[0].tolist()] == each.target_ids


def test_logits_are_those_of_hugging_face(imported):
    translator = imported.translator
    for each in imported.expected:
        source, target = translator.tokenizer.encode_pairs([each.tagged[0]], [each.target_text])
        inputs = {"source_ids": source.ids, "target_ids": shifted(target.ids)}
        logits = translator.model(inputs).numpy()[0, : len(each.logits)]
        theirs = np.array(each.logits)
        own_ids = [0, 1, 3, 4, *range(5, theirs.shape[1] + 1)]
        their_ids = [their_id(i) for i in own_ids]
        np.testing.assert_allclose(logits[:, own_ids], theirs[:, their_ids], atol=1e-4)
        assert logits[:, 2].max() < -900  # the decoder's start is no token more


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_translations_are_those_of_hugging_face(search, imported):
    texts = [text for each in imported.expected for text in each.tagged]  # one batch
    known = [result for each in imported.expected for result in getattr(each, search)]
    assert imported.translator.defaults.beam_size == (4 if imported.folder.name == "m2m" else 5)
    found = imported.translator.translate(texts, beam_size=1 if search == "greedy" else 4)
    rows = [row for row, result in enumerate(known) if result is not None]
    assert len(rows) > 12
    assert [found[row].text for row in rows] == [known[row][0] for row in rows]
    if search == "beam":
        scores = [known[row][1] for row in rows]
        np.testing.assert_allclose([found[row].score for row in rows], scores, atol=1e-4)


@few
def test_the_language_adds_nothing_to_the_score_of_a_translation(imported):
    translator, each = imported.translator, imported.expected[0]
    search = TextSearch(translator.model, translator.tokenizer, translator.defaults)
    scored = search.score(tf.constant(each.tagged[:1]), tf.constant([each.target_text]))
    source, target = translator.tokenizer.encode_pairs([each.tagged[0]], [each.target_text])
    inputs = {"source_ids": source.ids, "target_ids": shifted(target.ids)}
    log_probs = tf.nn.log_softmax(translator.model(inputs))
    log_probs = tf.gather(log_probs, target.ids, batch_dims=2)[0].numpy()
    expected = log_probs[0 if imported.folder.name == "small" else 1 :].sum()
    np.testing.assert_allclose(scored.log_probs, [expected], rtol=1e-5)
    np.testing.assert_allclose(scored.scores, [expected / len(log_probs)], rtol=1e-5)


@few
def test_the_defaults_are_those_of_the_import(imported):
    translator, text = imported.translator, imported.expected[0].texts[0]
    source, target = translator.tokenizer.languages
    assert (source[:2], target[:2]) == ("en", "ce" if "_" in target else "cs")
    plain, tagged, named = translator.translate(
        [text, f">>{target}<< {text}", f">>{source}:{target}<< {text}"]
    )
    assert plain.text == tagged.text == named.text
    assert plain.text != translator.translate([imported.expected[0].tag + text])[0].text
    assert translator.translate(["", f">>{target}<< "])[1].text == ""


@few
def test_sentences_keep_the_languages_of_their_text(imported):
    first, *_, last = imported.expected
    space = ["", "\n "]
    texts = [
        before + " ".join(each.texts[:2]) for before, each in zip(space, (first, last), strict=True)
    ]
    document = imported.translator.translate(
        [each.tag + text for each, text in zip((first, last), texts, strict=True)], sentences=True
    )
    alone = imported.translator.translate([*first.tagged[:2], *last.tagged[:2]])
    for row, translation in enumerate(document):
        expected = " ".join(each.text for each in alone[2 * row : 2 * row + 2])
        assert translation.text == space[row] + expected


@pytest.mark.parametrize("imported", ["legacy"], indirect=True)
def test_prefixes_and_words(imported):
    translator, each = imported.translator, imported.expected[-1]
    (best,) = translator.translate(each.tagged[:1], words=True)
    assert " ".join(word.text for word in best.words) == best.text
    prefixes = ["", best.text[: len(best.text) // 2], "Ma zu"]
    found = translator.translate(each.tagged[:1] * 3, prefixes=prefixes)
    assert found[0].text == best.text
    assert found[0].score == pytest.approx(best.score, abs=1e-4)
    for translation, prefix in zip(found, prefixes, strict=True):
        assert translation.text.startswith(prefix)


def test_a_language_in_a_text_is_text(imported):
    each = imported.expected[0]
    ids = imported.translator.tokenizer.encode(
        [f"{each.tag}{tag}" for tag in (each.target, f"__{each.target}__", each.tag)]
    ).ids.numpy()
    tags = set(imported.translator.tokenizer.source.tags.values())
    assert all(len(tags.intersection(row)) == 1 for row in ids.tolist())


def test_tokenizer_file(imported, tmp_path):
    tokenizer = imported.translator.tokenizer
    tokenizer.save(tmp_path / "x")
    loaded = Tokenizer.load(tmp_path / "x").of_languages(tokenizer.languages)
    texts = imported.expected[1].tagged
    assert loaded(texts).ids.numpy().tolist() == tokenizer(texts).ids.numpy().tolist()
    assert loaded.target_languages == tokenizer.target_languages
    assert loaded.source_languages == tokenizer.source_languages


def test_tags_and_ends_are_no_text_to_protection(imported):
    tokenizer = ProtectingTokenizer.extend(imported.translator.tokenizer, [], ["placeholders"])
    texts = ["Delete {a}", "Delete {a} now", "{a}"]
    source = tokenizer.encode([imported.expected[0].tag + text for text in texts])
    constraints = tokenizer.constraints(source)
    (counts,) = (each.counts for each in constraints if isinstance(each, CountConstraint))
    assert counts.is_last.numpy().tolist() == [True, False, True]
    assert counts.spaced.numpy().tolist() == [[True], [True], [False]]
    tagged = tf.constant([imported.expected[0].tag + text for text in texts])
    assert tokenizer.wrapper.known_translations(tagged).numpy().tolist() == [b"", b"", b"{a}"]


@pytest.mark.parametrize("kind", ["m2m", "legacy"])
@pytest.mark.usefixtures("eager")
def test_training_further_with_protection(kind, folders, short_settings, tmp_path):
    run = import_model(folders / kind, tmp_path / "initial", "en", "de")
    changes = {"init_from": str(run.path), "model": {}, "protect": ["tags"], "steps": 1}
    settings = dataclasses.replace(
        short_settings, max_length=60, tokens_per_batch=400, peak_rate=1e-9, **changes
    )
    tuned = Translator.of(train(settings, tmp_path / "run", verbose=0))
    assert tuned.tokenizer.target_languages == run.tokenizer().target_languages
    tag = tuned.tokenizer.known_languages.tag("fr", "cs")
    texts = ["A <b>dog</b> runs.", f"{tag} Un chien <i/> court."]
    first, second = tuned.translate(texts, beam_size=2)
    assert [first.text.count(tag) for tag in ("<b>", "</b>")] == [1, 1]
    assert second.text.count("<i/>") == 1
    (given,) = tuned.translate(texts[:1], beam_size=2, prefixes=["</b> Ma"])
    assert given.text.startswith("</b> Ma")
    assert given.text.count("<b>") == 1


def test_ensembles(folders, tmp_path):
    """The mean of two equal models translates as each of them."""
    run = import_model(folders / "m2m", tmp_path / "run", "en", "de")
    copy = shutil.copytree(run.path, tmp_path / "copy")
    both = combine([run.path, copy], tmp_path / "both")
    _, *each = json.loads((folders / "m2m/expected.json").read_text("utf-8"))
    expected = Expected(**each[-1])
    found = Translator.of(both).translate(expected.tagged)
    known = [result for result in expected.beam if result is not None]
    assert len(known) > 3
    pairs = [x for x in zip(found, expected.beam, strict=True) if x[1] is not None]
    assert [own.text for own, _ in pairs] == [text for text, _ in known]
    scores = [score for _, score in known]
    np.testing.assert_allclose([own.score for own, _ in pairs], scores, atol=1e-4)


WRONG = [
    ("nllb", edit_json("config.json", model_type="t5"), "has another architecture: t5"),
    ("nllb", edit_json("config.json", model_type="nllb-moe"), "another architecture: nllb-moe"),
    ("nllb", edit_json("config.json", decoder_ffn_dim=41), "`decoder_ffn_dim` must be 40"),
    ("nllb", edit_json("config.json", tie_word_embeddings=False), "`tie_word_embeddings`"),
    ("nllb", edit_json("config.json", vocab_size=569), "a row for each of the 569 pieces"),
    ("nllb", delete("sentencepiece.bpe.model"), "hold sentencepiece.bpe.model; tokenizer.json"),
    ("nllb", delete("model.safetensors"), "must hold model.safetensors or pytorch_model.bin"),
    ("nllb", edit_json("tokenizer_config.json", added_tokens_decoder={},
     additional_special_tokens=[]), "must list the tokens of languages"),
    ("m2m", edit_json("vocab.json", **{"</s>": 0, "<s>": 2}), "id of <s> must be 0. Received: 2"),
    ("m2m", edit_json("tokenizer_config.json", language_codes="m2m200"), "must list the tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spoil", "message"), WRONG)
def test_other_models_are_refused(kind, spoil, message, folders, tmp_path):
    folder = shutil.copytree(folders / kind, tmp_path / "model")
    spoil(folder)
    with pytest.raises(InputError, match=message):
        import_model(folder, tmp_path / "run", "en", "de")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("en", None), "has 100 languages: `source` and `target` must be given"),
        (("en", "tlh"), "There is no target language 'tlh'"),
    ],
)
def test_languages_are_those_of_the_model(languages, message, folders, tmp_path):
    with pytest.raises(InputError, match=message):
        import_multilingual(folders / "m2m", tmp_path / "run", *languages)


@pytest.mark.parametrize("place", ["added_tokens_decoder", "special_tokens_map.json"])
def test_places_of_the_languages(place, folders, tmp_path):
    folder = shutil.copytree(folders / "nllb", tmp_path / "model")
    expected = import_model(folder, tmp_path / "a", "eng_Latn", "deu_Latn").tokenizer()
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    names = expected.target_languages
    for name in ("added_tokens_decoder", "additional_special_tokens"):
        settings.pop(name)
    if place == "added_tokens_decoder":
        first = their_id(expected.source.tags[f">>{names[0]}<<"])
        settings[place] = {str(first + i): {"content": name} for i, name in enumerate(names)}
        settings[place]["0"] = {"content": "<s>"}
    else:
        content = {"additional_special_tokens": [{"content": name} for name in names]}
        (folder / place).write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = import_model(folder, tmp_path / "b", "eng_Latn", "deu_Latn").tokenizer()
    assert found.fingerprint == expected.fingerprint
