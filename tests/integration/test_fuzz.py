"""Whatever text comes in: no error, valid UTF-8 out, and no row changes another's answer.

FUZZ_INPUTS=10000 FUZZ_MODEL=MODELS/NAME/1 runs it at length on an export of one's own.
"""

import os
import random

import pytest

from keras_transformer.export.session import SavedModelSession

NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "240"))
BLOCK = 128  # code points; the smallest that Unicode's blocks are made of is 16
LONG = 30_000

SPECIAL = [
    b"",
    b"\x00" * 300,
    " \t\r\n\u00a0\u3000\u2028".encode(),
    b"one\ntwo\r\nred\n\n",
    b"\x01\x02\x1b[31m\x7f\x80\x9f",
    "\u202eabc\u202c \u2066x\u2069 \u200f\u200e\u061c".encode(),
    b"\xed\xa0\x80 lone \xed\xbf\xbf",  # surrogates
    b"\xf4\x90\x80\x80 \xc0\xaf \xff\xfe",  # beyond Unicode, overlong, byte-order marks
    "\u2581\u2581one\u2581two \u2581".encode() * 9,
    b"<s> </s> <pad> <unk> <0xC3> ##x",
    ("a" + "\u0301" * 400).encode(),
    "👩‍👩‍👧‍👦".encode() * 60,
    "\ufdfa".encode() * 50,  # NFKC makes 18 characters of it
    b"x" * LONG,
    b"one two red. " * (LONG // 13),
    "漢字".encode() * (LONG // 6),
    b" " * LONG,
]


def text_of_block(rng, number):
    """Characters of one part of Unicode, among words."""
    start = number * BLOCK
    characters = [chr(rng.randrange(start, start + BLOCK)) for _ in range(rng.randrange(1, 12))]
    text = "".join(characters).encode("utf-8", errors="surrogatepass")
    return rng.choice([text, b"red " + text, text + b" dog.", text.join([b"one", b"two"])])


@pytest.fixture(scope="module")
def texts():
    """Random bytes, all of Unicode in turn, and what has broken programs before."""
    rng = random.Random(29)
    blocks = list(range(0x110000 // BLOCK))
    rng.shuffle(blocks)
    texts = [*SPECIAL, rng.randbytes(LONG)]
    while len(texts) < NUM_INPUTS:
        texts.append(text_of_block(rng, blocks[len(texts) % len(blocks)]))
        texts.append(rng.randbytes(rng.randrange(120)))
    rng.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def loaded(request):
    path = os.environ.get("FUZZ_MODEL")
    return SavedModelSession(path) if path else request.getfixturevalue("served")


def answers(loaded, signature, texts, batch_size):
    found = []
    for start in range(0, len(texts), batch_size):
        outputs = loaded.run(signature, {"text": texts[start : start + batch_size]})
        found += zip(outputs["translation"], outputs["score"], strict=True)
    for translation, score in found:
        translation.decode()  # valid UTF-8
        assert score <= 0
    return found


@pytest.mark.timeout(3_600)
def test_rows_do_not_depend_on_each_other(loaded, texts):
    one = answers(loaded, "serving_default", texts, 37)
    order = random.Random(31).sample(range(len(texts)), len(texts))
    other = answers(loaded, "serving_default", [texts[i] for i in order], 23)
    num_other = 0
    for i, (translation, score) in zip(order, other, strict=True):
        assert score == pytest.approx(one[i][1], abs=1e-3, rel=1e-4), texts[i][:100]
        # Hypotheses that score alike may change places, which is rare.
        assert translation == one[i][0] or score == pytest.approx(one[i][1], abs=1e-5)
        num_other += translation != one[i][0]
    assert num_other <= len(texts) / 100


@pytest.mark.timeout(3_600)
def test_documents(loaded, texts):
    chosen = [text for text in texts if len(text) < 2_000][: NUM_INPUTS // 4]
    chosen += [b"one two red. " * 300, b"x" * 3_000]
    one = answers(loaded, "document", chosen, 31)
    other = answers(loaded, "document", chosen[::-1], 17)[::-1]
    for i, (translation, score) in enumerate(other):
        assert score == pytest.approx(one[i][1], rel=1e-3, abs=1e-3), chosen[i][:100]
        assert translation == one[i][0] or score == pytest.approx(one[i][1], rel=1e-5, abs=1e-5)
