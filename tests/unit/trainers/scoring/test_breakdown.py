"""Scores of parts of a test set, against sacreBLEU's of those parts and hand arithmetic."""

import pytest
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.scoring.breakdown import bleu_by_length, sentence_chrf


def test_bleu_by_length():
    references = [" ".join("abcdefghijk"[:n]) for n in (3, 9, 5, 3, 11, 4)]
    hypotheses = [" ".join("abcdefgxyz!"[:n]) for n in (3, 9, 5, 4, 11, 4)]
    groups = bleu_by_length(hypotheses, references, bounds=[4, 8])
    assert [group[:3] for group in groups] == [(3, 4, 3), (5, 5, 1), (9, 11, 2)]
    expected = [
        sacrebleu.corpus_bleu([hypotheses[n] for n in rows], [[references[n] for n in rows]]).score
        for rows in ([0, 3, 5], [2], [1, 4])
    ]
    assert len(set(expected)) > 1
    assert [group.bleu for group in groups] == pytest.approx(expected)


def test_bleu_of_a_language_without_spaces():
    """By hand: of 9 characters the 8th is wrong, and so are 1, 2, 3 and 4 n-grams."""
    references, hypotheses = ["我喜欢大的黑色狗。", "我是猫。"], ["我喜欢大的黑色猫。", "我是猫。"]
    groups = bleu_by_length(hypotheses, references, bounds=[4], tokenize="char")
    assert [group[:3] for group in groups] == [(4, 4, 1), (9, 9, 1)]
    expected = [100, 100 * (8 / 9 * 6 / 8 * 5 / 7 * 4 / 6) ** 0.25]
    assert [group.bleu for group in groups] == pytest.approx(expected)
    with pytest.raises(InputError, match="`tokenize`"):
        bleu_by_length(hypotheses, references, tokenize="b")


def test_groups_hold_about_as_many_sentences():
    references = ["w " * n for n in range(1, 61)]
    counts = [group.num_pairs for group in bleu_by_length(references, references)]
    assert sum(counts) == 60
    assert len(counts) == 6
    assert all(9 <= count <= 11 for count in counts)


@pytest.mark.parametrize("lowercase", [False, True])
def test_case_counts_unless_the_model_knows_none(lowercase):
    scores = sentence_chrf(
        ["die katze", "ein Kind", "der"], ["Die Katze", "ein Hund", "der"], lowercase
    )
    assert [score == 100 for score in scores] == [lowercase, False, True]
