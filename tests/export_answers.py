"""What an export answers, and that it is what its translator does."""

import numpy as np
import tensorflow as tf

from keras_transformer.texts.texts import TextSearch


def answer(session, signature, **inputs):
    """Returns the outputs of a signature for columns of texts."""
    encoded = {name: [text.encode() for text in texts] for name, texts in inputs.items()}
    return session.run(signature, encoded)


def assert_same_translations(session, translator, texts):
    """The best three of each text, and the score of one; returns the translator's."""
    expected = translator.translate(texts, num_best=3)
    nbest = answer(session, "nbest", text=texts)
    for row, translation in enumerate(expected):
        found = translation.hypotheses
        written = [text.decode() for text in nbest["translations"][row]][: len(found)]
        assert written == [each.text for each in found]
        scores = [each.score for each in found]
        np.testing.assert_allclose(nbest["scores"][row, : len(found)], scores, atol=1e-4)
    pair = [texts[0]], [expected[0].text]
    search = TextSearch(translator.model, translator.tokenizer, translator.defaults)
    scored = search.score(*map(tf.constant, pair))
    found = answer(session, "score", text=pair[0], target=pair[1])
    np.testing.assert_allclose(found["score"], scored.scores, atol=1e-4)
    return expected
