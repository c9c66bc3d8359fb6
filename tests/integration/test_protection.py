"""Protected strings from training text to a served answer, and in sources of every kind."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from command_line import cli
from eager import eagerly
from export_answers import answer
from export_kinds import PROTECT, PROTECTED

from keras_transformer.errors import InputError
from keras_transformer.export.session import SavedModelSession
from keras_transformer.model.transformer import Transformer
from keras_transformer.protection.tokenizer import ProtectingTokenizer
from keras_transformer.trainers.data.prepared import CorpusManifest
from keras_transformer.trainers.fitting.fine_tuning import initialize
from keras_transformer.trainers.fitting.training import train
from keras_transformer.translator import Translator

STRINGS = ["%s", "%1$d", "%%", "{name}", "${x}", "<b>", "</b>", "<i>", "</i>", "<br/>", "&amp;"]
STRINGS += ["https://a.org/b?c=%20d", "me@mail.org", "👩‍👩‍👧", "🇨🇿", "→", "אור"]
WORDS = ["red", "dog", "öl", "two", ".", "'", "(", "日", "x"]


@pytest.fixture(scope="module")
def run(tiny_settings, tmp_path_factory):
    """A run whose training text has placeholders."""
    folder = tmp_path_factory.mktemp("protected")
    for split in ("train", "val"):
        for language, lines in zip(("en", "de"), zip(*PROTECTED, strict=True), strict=True):
            (folder / f"{language}.{split}.txt").write_text("".join(f"{x}\n" for x in lines))
    settings = dataclasses.replace(
        tiny_settings, data=str(folder), vocab_size=340, protect=PROTECT, steps=2, extra_length=2
    )
    with eagerly():
        return train(settings, folder / "run", verbose=0)


@pytest.fixture(scope="module")
def translator(kinds):
    """Random weights, with which a search finds anything."""
    return kinds["protected"].translator


@pytest.fixture(scope="module")
def served(kinds):
    return SavedModelSession(kinds["protected"].path)


def sources(count, seed=1):
    """Random texts with the strings that each protects: few, many, adjacent, unbalanced."""
    chance = random.Random(seed)
    for number in range(count):
        share, length = chance.choice([0.1, 0.5, 1.0]), chance.randint(0, 40 if number % 5 else 4)
        pool = chance.sample(STRINGS, chance.randint(1, 6))
        parts = [chance.choice(pool if chance.random() < share else WORDS) for _ in range(length)]
        # No space between most; addresses and foreign words would be one with a neighbour.
        text = "".join(f" {part} " if part[0] in "hmאx" else part for part in parts)
        yield text, Counter(part for part in parts if part in STRINGS)


def found_in(translation):
    """The strings in a translation, the longest first, because one may be part of another."""
    found, text = Counter(), translation.decode()
    for string in sorted(STRINGS, key=len, reverse=True):
        found[string] = text.count(string)
        text = text.replace(string, "\0")
    return +found


def test_every_string_comes_back_as_often_as_it_was(served):
    texts, strings = zip(*sources(400), strict=True)
    outputs = answer(served, "nbest", text=texts)
    num_strings = 0
    for row, expected in enumerate(strings):
        is_found = outputs["scores"][row] > -1e9
        assert is_found[0]
        for translation in outputs["translations"][row][is_found]:
            assert found_in(translation) == expected, (texts[row], translation)
            num_strings += expected.total()
    assert num_strings > 2000
    for row in (3, 77):  # a row does not depend on the others
        alone = answer(served, "nbest", text=texts[row : row + 1])
        assert alone["translations"][0].tolist() == outputs["translations"][row].tolist()


def test_all_signatures(served, translator):
    text = "red {name} dog. <b>two</b> 5 %s"
    comment = "<!-- A “dog.” Dog. A\ncat. -->"  # would be four sentences
    document = answer(
        served, "document", text=["", f"{text}\n\n{comment} A dog. {'{name}' * 90} {text}"]
    )
    assert comment in document["translation"][1].decode()
    assert found_in(document["translation"][1]) == Counter(
        {"{name}": 92, "<b>": 2, "</b>": 2, "%s": 2}
    )
    (greedy,) = answer(served, "greedy", text=[text])["translation"]
    assert found_in(greedy) == Counter({"{name}": 1, "<b>": 1, "</b>": 1, "%s": 1})
    attention = answer(served, "attention", text=[text])
    pieces = [piece.decode() for piece in attention["source_pieces"][0]]
    assert [piece for piece in pieces if "⟦" in piece] == ["⟦1⟧", "⟦2⟧", "⟦3⟧", "⟦4⟧"]
    assert list(translator.attention(text, "rot").source_pieces) == pieces


def test_a_prefix_with_strings(served, translator):
    """What a prefix has too often stays; the rest of the translation has what is missing."""
    text = "red {name} dog. <b>two</b> 5 %s"
    prefixes = ["rot %s", "rot {name}{name", "</b> {name} ", "{name} {name}", "%x", ""]
    outputs = answer(served, "complete", text=[text] * 6, prefix=prefixes)
    own = translator.translate([text] * 6, prefixes=prefixes, words=True)
    expected = Counter(["{name}", "<b>", "</b>", "%s"])
    extra = [[], [], [], ["{name}"], [], []]
    for number, (found, prefix) in enumerate(zip(outputs["translation"], prefixes, strict=True)):
        assert found.decode() == own[number].text
        assert f"{own[number].text} ".startswith(prefix)
        words = "".join(word.text for word in own[number].words)
        assert found_in(words.encode()) == found_in(found)
        assert found_in(found) == expected + Counter(extra[number]), found
    np.testing.assert_allclose(outputs["score"], [each.score for each in own], atol=1e-4)
    assert (
        outputs["translation"][-1]
        == answer(served, "serving_default", text=[text])["translation"][0]
    )


KNOWN = {  # texts whose translation needs no model
    "{name}": "{name}",
    " %s\t<b> ": " %s\t<b> ",
    "&nbsp;": "&nbsp;",
    "\x01{name}\x0b": "\x01{name}\x0b",
    "⟦dog|Pudel⟧ 🇨🇿": "Pudel 🇨🇿",
    "⟦dog|⟧ %s": "%s",
}


def test_a_text_of_protected_strings_only_is_kept(served, translator):
    texts = [*KNOWN, "%s 5", ""]  # a digit is text
    outputs = answer(served, "nbest", text=texts)
    assert [text.decode() for text in outputs["translations"][:-2, 0]] == [*KNOWN.values()]
    assert outputs["scores"][:-2].max(axis=1).tolist() == [0.0] * len(KNOWN)
    assert found_in(outputs["translations"][-2, 0]) == Counter(["%s"])
    assert outputs["scores"][-2, 0] < 0
    assert answer(served, "attention", text=["{name}", ""])["target_lengths"].tolist() == [0, 0]
    (best, _) = translator.translate(["%s", "red"], num_best=2)
    assert [each.text for each in best.hypotheses] == ["%s"]


def test_a_sentence_of_protected_strings_only_is_kept(served, translator):
    document = "{name} red.\n%s\n\n⟦dog|Pudel⟧"
    outputs = answer(served, "document", text=[document])
    assert outputs["translation"][0].decode().endswith("\n%s\n\nPudel")
    (own,) = translator.translate([document], sentences=True, words=True)
    assert [word.text for word in own.words][-2:] == ["%s", "Pudel"]


def test_only_a_prefix_needs_the_model(translator):
    found = translator.translate(["%s"] * 2, prefixes=["", "rot "], words=True)
    assert [(word.text, word.probability) for word in found[0].words] == [("%s", 1.0)]
    assert found[1].text.startswith("rot ")
    assert found[1].score < 0


@pytest.mark.usefixtures("eager")
def test_terms(run, tmp_path):
    (tmp_path / "terms.tsv").write_text("dog\tPudel\n")
    code, out, err = cli("translate", run.path, "red dog", "--terms", tmp_path / "terms.tsv")
    assert (code, out.count("Pudel")) == (0, 1), err


def test_pairs_whose_sides_do_not_agree_are_dropped(run):
    manifest = CorpusManifest.read(run.path / "corpus")
    assert manifest.train.total.dropped == {"protected": 6}
    assert [*manifest.train.total.examples["protected"][0]] == ["two", "%s zwei"]
    assert manifest.train.total.protected == 24  # four of five pairs, six times
    assert run.settings["protect"] == PROTECT


@pytest.mark.usefixtures("eager")
def test_a_run_without_protection_gets_it(tiny_run, tiny_settings, run, tmp_path):
    settings = dataclasses.replace(
        tiny_settings,
        data=run.settings["data"],
        init_from=str(tiny_run.path),
        protect=["placeholders"],
        steps=1,
        extra_length=2,
    )
    tuned = train(settings, tmp_path / "tuned", verbose=0)
    tokenizer, before = tuned.tokenizer(), tiny_run.tokenizer()
    assert isinstance(tokenizer, ProtectingTokenizer)
    assert tuned.config.vocab_size == before.vocab_size + 32
    model = Transformer(tuned.config)
    initialize(model, tokenizer, settings, is_new=True)
    kept = [
        (model.target_embedding, tiny_run.model().target_embedding),
        (model.encoder_layers[0], tiny_run.model().encoder_layers[0]),
    ]
    for layer, known in kept:
        for weight, expected in zip(layer.get_weights(), known.get_weights(), strict=True):
            np.testing.assert_array_equal(weight[: len(expected)], expected)
    frozen = dataclasses.replace(settings, freeze="embeddings")
    with pytest.raises(InputError, match="`freeze` must not be embeddings, because `protect`"):
        train(frozen, tmp_path / "frozen", verbose=0)
    (translation,) = Translator.of(tuned).translate(["red %s%s dog"])
    assert translation.text.count("%s") == 2
