"""Pictures of trees."""

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from keras_transformer.errors import InputError
from keras_transformer.parsing import plots


def test_trees_show_where_they_differ():
    """The second tree has the same S and another NP; the verb's VP is in the first alone."""
    predicted = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
    gold = "(S (NP (DT The) (NN dog) (VBZ barks)) (. .))"
    figure = plots.trees({"predicted": predicted, "gold": gold})
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["predicted", "gold"]
    bold = [
        [text.get_text() for text in panel.texts if text.get_weight() == "bold"]
        for panel in figure.axes
    ]
    assert bold == [["NP", "VP"], ["NP"]]
    at = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    # The words stand at 0, 1, 2 and 3, below all levels; NP is above the middle of its words.
    assert [at[word] for word in ("The", "dog", "barks")] == [(0, -3), (1, -3), (2, -3)]
    assert (at["NP"], at["VP"], at["S"]) == ((0.5, -1), (2, -1), (1.75, 0))
    with pytest.raises(InputError, match=r"`gold` must be one tree\. Received: 2 trees"):
        plots.trees({"gold": "(NN a) (NN b)"})
