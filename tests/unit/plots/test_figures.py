"""Pictures: the drawn data, and labels that are legible."""

import io
import itertools
import shutil
import sys

import numpy as np
import pytest
import reference

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from keras_transformer import plots
from keras_transformer.errors import InputError
from keras_transformer.plots.style import find_fonts

ODD_PIECES = ["$x_1$", "\\frac{", "_a", "%s", "▁b", "é", "שלום", "w" * 99]


def weights(*shape, seed=7):
    scores = np.random.default_rng(seed).exponential(size=shape)
    return scores / scores.sum(axis=-1, keepdims=True)


def images(figure):
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.get_images()]


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def lines(axes):
    return [line.get_xydata() for line in axes.get_lines()]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def boxes(axis):
    """Extents of an axis's labels in pixels, in order."""
    renderer = FigureCanvasAgg(axis.figure).get_renderer()
    return [
        label.get_window_extent(renderer) for label in axis.get_ticklabels() if label.get_text()
    ]


def assert_apart(axis):
    """No label overlaps the next one."""
    axis.figure.draw_without_rendering()
    side = "x" if axis.axis_name == "x" else "y"
    spans = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes(axis))
    assert spans
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start + 0.5


def test_every_head_is_drawn():
    scores, queries, keys = weights(5, 3, 4), ["a", "b", "c"], ["k", "l", "m", "n"]
    figure = plots.attention_heads(scores.tolist(), queries, keys, title="All")
    for drawn, expected in zip(images(figure)[:5], scores, strict=True):
        np.testing.assert_array_equal(drawn, expected)
    panels = figure.axes[:5]
    assert [panel.get_title() for panel in panels] == [f"Head {n}" for n in range(1, 6)]
    assert {panel.get_images()[0].get_clim() for panel in panels} == {(0, scores.max())}
    assert labels(panels[0].yaxis) == queries
    assert labels(panels[4].xaxis) == keys
    assert figure.get_suptitle() == "All"


def test_alignment_is_the_mean_or_a_head():
    scores, queries, keys = weights(3, 2, 4), ["a", "b"], ["k", "l", "m", "n"]
    mean = plots.alignment(scores, queries, keys)
    np.testing.assert_allclose(images(mean)[0], (scores[0] + scores[1] + scores[2]) / 3)
    np.testing.assert_array_equal(
        images(plots.alignment(scores, queries, keys, head=1))[0], scores[1]
    )
    assert labels(mean.axes[0].xaxis) == keys
    assert labels(mean.axes[0].yaxis) == queries


def test_lines_go_from_queries_to_keys():
    """Two heads; the lines of a weight of 0.04 and of none are left out."""
    scores = np.array([[[0.96, 0.04, 0], [0, 0, 1]], [[0, 0.5, 0.5], [0.25, 0.75, 0]]])
    figure = plots.attention_lines(scores, ["a", "b"], ["k", "l", "m"])
    left, right = figure.axes
    (drawn,) = left.collections
    to_row = left.transData + right.transData.inverted()  # of the right column
    found = {}
    for (start, end), color in zip(drawn.get_segments(), drawn.get_colors(), strict=True):
        assert (start[0], end[0]) == (0, 1)
        key = (tuple(color[:3]), round(start[1]), round(to_row.transform(end)[1]))
        found[key] = color[3]
    first, second = (line.get_color() for line in left.get_legend().get_lines())
    heads = [to_rgb(first), to_rgb(second)]
    weights = {(n, t, s): scores[n, t, s] for n, t, s in np.argwhere(scores > 0.05).tolist()}
    assert {
        (heads.index(color), *rest): alpha for (color, *rest), alpha in found.items()
    } == weights
    assert [labels(axes.yaxis) for axes in figure.axes] == [["a", "b"], ["k", "l", "m"]]
    assert legend(left) == ["Head 1", "Head 2"]


def test_lines_of_a_query():
    figure = plots.attention_lines(weights(13, 5, 4), list("abcde"), list("klmn"), query=2)
    segments = np.array(figure.axes[0].collections[0].get_segments())
    assert set(segments[:, 0, 1].round()) == {2}
    shown = figure.axes[0].get_legend().get_lines()
    assert len({tuple(to_rgb(line.get_color())) for line in shown}) == 13  # a head, a color
    even = np.full((2, 1, 50), 0.02)  # too little to draw
    figure = plots.attention_lines(even, ["a"], [str(n) for n in range(50)])
    figure.savefig(io.BytesIO(), dpi=50)


@pytest.mark.parametrize("draw", [plots.attention_heads, plots.attention_lines, plots.alignment])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 2), (83, 170)])
def test_labels_do_not_overlap(draw, num_queries, num_keys):
    queries = ["pneumonoultramicroscopic"] * num_queries
    keys = [f"{'long-' * (n % 5)}{n}" for n in range(num_keys)]
    figure = draw(weights(2, num_queries, num_keys), queries, keys)
    axes = [figure.axes[0].yaxis, figure.axes[draw is plots.attention_heads].xaxis]
    if draw is plots.attention_lines:
        axes[1] = figure.axes[1].yaxis
    for axis in axes:
        assert_apart(axis)
        for box in boxes(axis):
            assert min(box.x0, box.y0) >= -1  # inside the figure


@pytest.mark.parametrize(
    ("draw", "style"),
    [(plots.attention_heads, "light"), (plots.attention_lines, "dark"), (plots.alignment, "dark")],
)
def test_any_piece_is_drawn(draw, style):
    scores = weights(4, len(ODD_PIECES), len(ODD_PIECES))
    figure = draw(scores, ODD_PIECES, ODD_PIECES, title="$1 \\x", style=style)
    figure.savefig(io.BytesIO(), dpi=50)  # without a warning, as warnings are errors
    shown = labels(figure.axes[0].yaxis)
    assert shown == [*ODD_PIECES[:4], "␣b", "é", "שלום", "w" * 17 + "…"]


def only_in_stix():
    """A letter of the STIX fonts, which Matplotlib brings, that DejaVu Sans lacks."""
    dejavu, stix = (
        font_manager.get_font(font_manager.findfont(name)).get_charmap().keys()
        for name in ("DejaVu Sans", "STIXGeneral")
    )
    return min(filter(str.isalpha, map(chr, stix - dejavu)))


def test_a_font_is_found_for_what_the_first_lacks():
    character = only_in_stix()
    first, *families = find_fonts(frozenset(f"a{character}\U0010fffd"))
    assert first == "DejaVu Sans"
    path = font_manager.findfont(font_manager.FontProperties(family=families))
    assert ord(character) in font_manager.get_font(path).get_charmap()
    assert find_fonts(frozenset("aé")) == ["DejaVu Sans"]


def test_a_new_font_is_found_and_a_missing_one_is_named(tmp_path, monkeypatch, caplog):
    """Matplotlib's list of fonts is a file, which is older than the fonts."""
    known = font_manager.fontManager
    new = str(shutil.copy(font_manager.findfont("STIXGeneral"), tmp_path / "new.ttf"))
    dejavu = [font for font in known.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(known, "ttflist", dejavu)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [new])
    characters = {only_in_stix(), "ᚠ", "ᚢ", "\U00012000"}
    assert find_fonts(frozenset(characters))[-1] == "STIXGeneral"
    find_fonts(frozenset({*characters, "\U00012001"}))
    assert [caplog.text.count(script) for script in ("CUNEIFORM", "RUNIC")] == [1, 1]


def test_positional_encoding():
    table = reference.positional_encoding(23, 14)
    figure = plots.positional_encoding(table)
    np.testing.assert_array_equal(images(figure)[0], table)
    low, high = figure.axes[0].get_images()[0].get_clim()
    assert low == -high


def test_learning_rate():
    sizes = {"$a": (512, 4000), "b": (16, 100)}
    schedules = {
        name: lambda done, sizes=pair: [
            reference.learning_rate(step + 1, *sizes) for step in done.tolist()
        ]
        for name, pair in sizes.items()
    }
    axes = plots.learning_rate(schedules, 9_000).axes[0]
    for drawn, (d_model, warmup_steps) in zip(lines(axes), sizes.values(), strict=True):
        assert (drawn[0, 0], drawn[-1, 0]) == (1, 9_000)
        for step, rate in drawn[::97]:
            assert rate == pytest.approx(reference.learning_rate(step, d_model, warmup_steps))
    assert legend(axes) == ["$a", "b"]


METRICS = [
    {"step": 10, "loss": 5.0, "val_loss": 4.5, "perplexity": 90.0, "val_perplexity": 60.0},
    {"step": 20, "loss": 4.0, "val_loss": 4.1, "perplexity": 30.0, "val_perplexity": 35.0,
     "val_bleu": 12.5},
]  # fmt: skip


def test_training_curves():
    other = [{"step": 7, "loss": 6.0, "perplexity": 200.0, "val_rouge": 3.5}]
    figure = plots.training_curves({"first": METRICS, "second $": other})
    loss, perplexity, bleu, rouge = figure.axes  # no panel for chrF, which was not measured
    assert [panel.get_title() for panel in (bleu, rouge)] == ["BLEU", "ROUGE"]
    assert [line.tolist() for line in lines(loss)] == [
        [[10, 5.0], [20, 4.0]], [[10, 4.5], [20, 4.1]], [[7, 6.0]],
    ]  # fmt: skip
    assert lines(perplexity)[1].tolist() == [[10, 60.0], [20, 35.0]]
    assert [line.tolist() for line in lines(bleu)] == [[[20, 12.5]]]
    assert perplexity.get_yscale() == "log"
    assert legend(rouge) == ["first", "second $", "training", "validation"]
    box = rouge.get_legend().get_window_extent()  # beside the curves, and not cut
    assert rouge.get_window_extent().x1 < box.x0 < box.x1 < figure.bbox.x1
    looks = {(line.get_color(), line.get_linestyle()) for line in loss.get_lines()}
    assert len(looks) == 2  # a run, a look


def test_length_histogram():
    lengths = np.array([[2, 3], [2, 5], [5, 3], [4, 3]], np.uint16)
    figure = plots.length_histogram(lengths, names=("en", "de"), padding_share=0.256)
    drawn = [patch.get_data() for patch in figure.axes[0].patches]
    for side in (0, 1):
        values, edges = drawn[2 * side].values, drawn[2 * side].edges
        counts = dict(zip(edges[:-1].tolist(), values.tolist(), strict=True))
        assert counts == {n: (lengths[:, side] == n).sum() for n in range(1, 6)}
    assert legend(figure.axes[0]) == ["en: median 3, longest 5", "de: median 3, longest 5"]
    assert figure.get_suptitle().startswith("4 pairs, 25.6% of the positions")


def test_long_lengths_are_all_counted():
    lengths = np.stack([np.arange(1, 1_001), np.full(1_000, 1_000)], axis=1)
    patches = plots.length_histogram(lengths).axes[0].patches
    assert [patch.get_data().values.sum() for patch in patches] == [1_000] * 4


def test_bleu_by_length():
    axes = plots.bleu_by_length([(3, 4, 1_500, 30.5), (9, 9, 2, 0.0)], tokenize="char").axes[0]
    assert labels(axes.xaxis) == ["3-4\nn = 1,500", "9\nn = 2"]
    assert [bar.get_height() for bar in axes.patches] == [30.5, 0.0]
    assert "char" in axes.get_xlabel()


def test_bleu_by_noise():
    axes = plots.bleu_by_noise(30.5, {"title": 28.25, "typing": 0.0}).axes[0]
    assert labels(axes.yaxis) == ["as it is", "title", "typing"]
    assert [bar.get_width() for bar in axes.patches] == [30.5, 28.25, 0.0]


def test_figures_leave_matplotlib_as_it_is():
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context({"text.color": "red", "axes.facecolor": "lime"}):
        before = dict(matplotlib.rcParams)
        figure = plots.positional_encoding(np.eye(3))
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].get_facecolor()[:3] == (1, 1, 1)
    assert pyplot.get_fignums() == []


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(InputError, match=r"pip install 'keras3-transformer\[plots\]'"):
        plots.positional_encoding(np.eye(3))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.positional_encoding(np.eye(3), style="sepia"), "`style`"),
        (lambda: plots.attention_heads(np.ones((2, 3)), "abc", "xy"), "`scores`"),
        (lambda: plots.attention_heads(np.ones((1, 2, 3)), "abc", "xy"), "`scores`"),
        (lambda: plots.alignment(np.ones((2, 1, 2)), "a", "xy", head=2), "`head`"),
        (lambda: plots.attention_lines(np.ones((1, 1, 2)), "a", "xy", query=1), "`query`"),
        (lambda: plots.training_curves({"run": [{"step": 3}]}), "no metrics"),
        (lambda: plots.bleu_by_length([]), "`groups`"),
    ],
)
def test_wrong_arguments(draw, message):
    with pytest.raises(InputError, match=message):
        draw()
