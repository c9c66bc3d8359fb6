from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import parse_trees
from keras_transformer.trainers.parsing.bracketing import COLLINS, Rules, TreeCounts, score_brackets

SAMPLE = Path(__file__).parents[3] / "data" / "evalb"
# EVALB's sample.prm.
SAMPLE_RULES = Rules(
    deleted=COLLINS.deleted - {"."}, equal_labels=(("T", "TT"),), equal_words=(("This", "this"),)
)
STATUS = ("valid", "error", "skipped")  # EVALB's 0, 1, 2


def trees_of(*texts):
    return list(parse_trees(texts, "texts"))


def score_one(predicted, gold, rules=COLLINS):
    return score_brackets([predicted], trees_of(gold), rules).trees[0]


@pytest.fixture(scope="module")
def sample():
    predicted = (SAMPLE / "sample.tst").read_text().splitlines()
    return score_brackets(predicted, list(parse_trees(open_lines("gld"), "gold")), SAMPLE_RULES)


def open_lines(suffix):
    return (SAMPLE / f"sample.{suffix}").read_text().splitlines()


@pytest.mark.parametrize("number", range(24))
def test_sample_of_evalb_sentence_by_sentence(sample, number):
    row = open_lines("rsl")[3 + number].split()
    tree = sample.trees[number]
    columns = (number + 1, tree.length, STATUS.index(tree.status))
    assert columns == tuple(map(int, row[:3]))
    matched, gold, predicted, crossing, num_words, correct_tags = map(int, row[5:11])
    expected = TreeCounts(
        tree.status, tree.length, num_words, gold, predicted, matched, crossing, correct_tags
    )
    if tree.status != "valid":  # EVALB does not count these brackets
        assert (expected.gold, tree.gold) == (0, 4)
        expected = expected._replace(gold=4)
    assert tree == expected


@pytest.mark.parametrize(("heading", "limit"), [("-- All --", 999), ("-- len<=40 --", 40)])
def test_sample_of_evalb_in_sum(sample, heading, limit):
    lines = open_lines("rsl")
    start = lines.index(heading) + 1
    expected = [float(line.split("=")[1]) for line in lines[start : start + 11]]
    figures = sample.up_to(limit).figures()
    names = """num_trees num_errors num_skipped num_valid recall precision exact_match
        average_crossing no_crossing few_crossing tagging_accuracy"""
    assert [round(figures[name], 2) for name in names.split()] == expected


def test_f1_of_the_sample(sample):
    # 86 matched of 98 and 95; the seven failed sentences have 4 brackets each.
    assert sample.f1 == pytest.approx(100 * 2 * 86 / (98 + 95))
    assert sample.f1_all == pytest.approx(100 * 2 * 86 / (98 + 7 * 4 + 95))


GOLD = "(TOP (S (NP-SBJ (NN a)) (, ,) (VP (VB b) (PRT (RP c)) (NP-2 (NN d) (X (-NONE- *)))) (. .)))"


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        # S, NP, VP, PRT and NP; six words with punctuation, of which the rules keep four.
        (GOLD, TreeCounts("valid", 6, 4, 5, 5, 5, 0, 4)),
        (
            "(S (NP (NN a)) (, ,) (VP (VB b) (ADVP (RB c)) (NP (NN d))) (. .))",
            TreeCounts("valid", 6, 4, 5, 5, 5, 0, 3),
        ),
        # The words a b form one constituent, which crosses VP; S1 is a label as others.
        (
            "(S1 (S (NP (NN a) (, ,) (VP (VB b))) (RP c) (NP (NP (NN d))) (. .)))",
            TreeCounts("valid", 6, 4, 5, 6, 2, 1, 4),
        ),
        # The comma is a noun: another number of words.
        ("(S (NP (NN a)) (NN ,) (VB b) (RP c) (NN d))", TreeCounts("error", 6, 4, 5)),
        ("(S (NN a) (VB b) (RP c) (NN D))", TreeCounts("error", 6, 4, 5)),
        ("(S (NN a) (VB b) (RP c) (NN d)", TreeCounts("error", 6, 4, 5)),
        ("(S (. .) (. .))", TreeCounts("skipped", 6, 4, 5)),
        (None, TreeCounts("skipped", 6, 4, 5)),
        ("", TreeCounts("skipped", 6, 4, 5)),
    ],
)
def test_collins_rules(predicted, expected):
    assert score_one(predicted, GOLD) == expected
    if predicted and expected.status != "error":
        assert score_one(*trees_of(predicted), GOLD) == expected


def test_repeated_brackets_match_once_each():
    deep, flat = "(S (NP (NP (NP (NN a)))) (VP (VB b)))", "(S (NP (NP (NN a))) (VP (VB b)))"
    assert score_one(deep, flat).matched == score_one(flat, deep).matched == 4
    assert (score_one(deep, flat).gold, score_one(deep, flat).predicted) == (4, 5)


def test_scores_by_hand():
    gold = trees_of("(S (NP (NN a)) (VP (VB b)))", "(NP (NN a))", "(S (NP (NN a) (NN b)) (VB c))")
    scores = score_brackets(["(S (NP (NN a)) (VB b))", None, "(S (NN a) (X (NN b) (UH c)))"], gold)
    # 2 of 2 brackets, then none, then 1 of 2, and X crosses NP.
    assert scores.figures() == pytest.approx(
        {
            "f1": 100 * 2 * 3 / (5 + 4),
            "precision": 100 * 3 / 4,
            "recall": 100 * 3 / 5,
            "exact_match": 0,
            "average_crossing": 1 / 2,
            "no_crossing": 50,
            "few_crossing": 100,
            "tagging_accuracy": 100 * 4 / 5,
            "f1_all": 100 * 2 * 3 / (6 + 4),
            "num_trees": 3,
            "num_valid": 2,
            "num_errors": 0,
            "num_skipped": 1,
        }
    )
    assert scores.up_to(2).trees == scores.trees[:2]
    assert set(scores.up_to(1).figures().values()) == {0, 1}  # one sentence, skipped
    with pytest.raises(InputError, match=r"`predicted` must have 1 trees\. Received: 2"):
        score_brackets([None, None], trees_of("(UH a)"))
