"""Pictures: the drawn data, and labels of any script that are all legible."""

import io
import itertools
import sys

import numpy as np
import pytest
import reference
import sacrebleu

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from keras_transformer import letters, plots
from keras_transformer.errors import InputError

STYLES = ("light", "dark")
ODD_PIECES = ["$x_1$", "\\frac{", "_a", "%s", "▁", " ", "\n", "\u202eab", "é", "שלום", "مرحبا",
              "नमस्ते", "你好", "👩‍👩‍👧", "\ufffd", "\U0010fffd", "w" * 99]  # fmt: skip


def weights(*shape, seed=7):
    scores = np.random.default_rng(seed).exponential(size=shape)
    return scores / scores.sum(axis=-1, keepdims=True)


def save(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return file.getvalue()


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
    figure = plots.attention_heads(scores, queries, keys, title="All")
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


@pytest.mark.parametrize("draw", [plots.attention_heads, plots.alignment])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 2), (3, 11), (13, 29), (83, 170)])
def test_labels_do_not_overlap(draw, num_queries, num_keys):
    queries = ["pneumonoultramicroscopic"] * num_queries
    keys = [f"{'long-' * (n % 5)}{n}" for n in range(num_keys)]
    figure = draw(weights(2, num_queries, num_keys), queries, keys)
    panel = figure.axes[0]
    assert_apart(panel.xaxis)
    assert_apart(panel.yaxis)
    figure_box = figure.bbox
    for box in boxes(panel.yaxis) + boxes(
        figure.axes[1 if draw is plots.attention_heads else 0].xaxis
    ):
        assert box.x0 >= figure_box.x0 - 1
        assert box.y0 >= figure_box.y0 - 1


@pytest.mark.parametrize("style", STYLES)
def test_any_piece_is_legible(style):
    count = len(ODD_PIECES)
    scores = weights(1, count, count)
    figure = plots.alignment(scores, ODD_PIECES, ODD_PIECES, title="$1 \\x 你", style=style)
    assert save(figure)  # without a warning, as warnings are errors
    panel = figure.axes[0]
    shown = labels(panel.yaxis)
    assert shown[:5] == ODD_PIECES[:5]
    assert shown[5:8] == ["␣", "␣", "ab"]
    assert shown[8:11] == ODD_PIECES[8:11]
    assert shown[-2:] == ["<10FFFD>", "w" * 17 + "…"]
    assert_apart(panel.xaxis)
    assert_apart(panel.yaxis)


def test_a_font_is_found_for_what_the_first_lacks(monkeypatch):
    """Matplotlib brings STIX fonts, which have characters that DejaVu Sans lacks."""
    dejavu = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    stix = font_manager.get_font(font_manager.findfont("STIXGeneral")).get_charmap()
    character = min(filter(str.isalpha, map(chr, stix.keys() - dejavu.keys())))
    families, texts = letters.printable([f"a{character}"])
    assert texts == [f"a{character}"]
    path = font_manager.findfont(font_manager.FontProperties(family=families[1:]))
    assert ord(character) in font_manager.get_font(path).get_charmap()
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    letters.find_fonts.cache_clear()
    assert letters.printable([f"a{character}"]) == (
        ["DejaVu Sans"],
        [f"a<{ord(character):04X}>"],
    )
    letters.find_fonts.cache_clear()


@pytest.mark.parametrize("num_heads", [1, 4, 7])
def test_any_piece_is_legible_at_any_head(num_heads):
    pieces = ODD_PIECES[:-5]
    figure = plots.attention_heads(weights(num_heads, 5, 12), pieces[:5], pieces, title="a")
    assert save(figure)
    for panel in figure.axes[:num_heads]:
        for axis in (panel.xaxis, panel.yaxis):
            if boxes(axis):
                assert_apart(axis)


def test_positional_encoding():
    table = reference.positional_encoding(23, 14)
    figure = plots.positional_encoding(table)
    np.testing.assert_array_equal(images(figure)[0], table)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("Dimension", "Position")
    low, high = figure.axes[0].get_images()[0].get_clim()
    assert low == -high


def test_learning_rate():
    sizes = {"$a": (512, 4000), "_b": (16, 100)}
    schedules = {
        name: lambda done, sizes=pair: [
            reference.learning_rate(step + 1, *sizes) for step in done.tolist()
        ]
        for name, pair in sizes.items()
    }
    axes = plots.learning_rate(schedules, 9_000).axes[0]
    for drawn, (d_model, warmup_steps) in zip(lines(axes), sizes.values(), strict=True):
        assert drawn[0, 0] == 1
        assert drawn[-1, 0] == 9_000
        for step, rate in drawn[::97]:
            expected = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
            assert rate == pytest.approx(expected, rel=1e-12)
    assert legend(axes) == ["$a", "_b"]


METRICS = [
    {"step": 10, "loss": 5.0, "val_loss": 4.5, "perplexity": 90.0, "val_perplexity": 60.0},
    {"step": 20, "loss": 4.0, "val_loss": 4.1, "perplexity": 30.0, "val_perplexity": 35.0,
     "val_bleu": 12.5},
]  # fmt: skip


def test_training_curves():
    other = [{"step": 7, "loss": 6.0, "perplexity": 200.0}]
    figure = plots.training_curves({"_first": METRICS, "second $": other})
    loss, perplexity, bleu = figure.axes
    assert [axes.get_title() for axes in figure.axes] == [
        "Loss, label-smoothed",
        "Perplexity",
        "BLEU",
    ]
    assert [line.tolist() for line in lines(loss)] == [
        [[10, 5.0], [20, 4.0]], [[10, 4.5], [20, 4.1]], [[7, 6.0]],
    ]  # fmt: skip
    assert lines(perplexity)[1].tolist() == [[10, 60.0], [20, 35.0]]
    assert [line.tolist() for line in lines(bleu)] == [[[20, 12.5]]]
    assert perplexity.get_yscale() == "log"
    assert legend(loss) == ["_first", "second $", "training", "validation"]
    looks = {(line.get_color(), line.get_linestyle()) for line in loss.get_lines()}
    assert len(looks) == 2  # a run, a look


def test_a_run_may_have_the_name_of_a_split():
    figure = plots.training_curves({"training": METRICS, "validation": METRICS[:1]})
    assert legend(figure.axes[0]) == ["training", "validation"] * 2


def test_what_nobody_measured_has_no_panel():
    figure = plots.training_curves({"run": [{"step": 1, "loss": 3.0}]})
    assert [axes.get_title() for axes in figure.axes] == ["Loss, label-smoothed"]


@pytest.mark.parametrize("runs", [{}, {"run": []}, {"run": [{"step": 3}]}])
def test_no_metrics(runs):
    with pytest.raises(InputError, match="There are no metrics to draw"):
        plots.training_curves(runs)


def test_length_histogram():
    lengths = np.array([[2, 3], [2, 5], [5, 3], [4, 3]], np.uint16)
    figure = plots.length_histogram(lengths, names=("en", "de"), padding_share=0.256)
    drawn = [patch.get_data() for patch in figure.axes[0].patches]
    for side in (0, 1):
        values, edges = drawn[2 * side].values, drawn[2 * side].edges
        counts = dict(zip(edges[:-1].tolist(), values.tolist(), strict=True))
        expected = {n: (lengths[:, side] == n).sum() for n in range(1, 6)}
        assert counts == expected
    assert legend(figure.axes[0]) == ["en: median 3, longest 5", "de: median 3, longest 5"]
    assert (
        figure.get_suptitle() == "4 pairs, 25.6% of the positions in training's batches are padding"
    )


def test_long_lengths_are_all_counted():
    lengths = np.stack([np.arange(1, 1_001), np.full(1_000, 1_000)], axis=1)
    patches = plots.length_histogram(lengths).axes[0].patches
    assert [patch.get_data().values.sum() for patch in patches] == [1_000] * 4


def test_bleu_by_length():
    references = [" ".join("abcdefghijk"[:n]) for n in (3, 9, 5, 3, 11, 4)]
    hypotheses = [" ".join("abcdefgxyz!"[:n]) for n in (3, 9, 5, 4, 11, 4)]
    figure = plots.bleu_by_length(hypotheses, references, bounds=[4, 8], title="test")
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["3-4\nn = 3", "5\nn = 1", "9-11\nn = 2"]
    expected = [
        sacrebleu.corpus_bleu([hypotheses[n] for n in rows], [[references[n] for n in rows]]).score
        for rows in ([0, 3, 5], [2], [1, 4])
    ]
    assert len(set(expected)) > 1
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)


def test_bleu_without_case():
    references = ["Der Hund sieht die Katze"] * 3
    hypotheses = [text.lower() for text in references]
    (cased,), (lowercased,) = (
        plots.bleu_by_length(hypotheses, references, lowercase=lowercase).axes[0].patches
        for lowercase in (False, True)
    )
    assert cased.get_height() < 50
    assert lowercased.get_height() == pytest.approx(100)


def test_bars_hold_about_as_many_sentences():
    references = ["w " * n for n in range(1, 61)]
    axes = plots.bleu_by_length(references, references).axes[0]
    counts = [int(label.split(" = ")[1]) for label in labels(axes.xaxis)]
    assert sum(counts) == 60
    assert len(counts) == 6
    assert all(9 <= count <= 11 for count in counts)


@pytest.mark.parametrize("length", [0, 4])
def test_sentences_of_one_length_are_one_bar(length):
    axes = plots.bleu_by_length(["a b c d"] * 3, [" ".join("abcd"[:length])] * 3).axes[0]
    assert labels(axes.xaxis) == [f"{length}\nn = 3"]


def pictures(style):
    metrics = {"run": METRICS}
    yield plots.attention_heads(weights(2, 3, 4), list("abc"), list("klmn"), style=style)
    yield plots.alignment(weights(2, 3, 4), list("abc"), list("klmn"), style=style)
    yield plots.positional_encoding(reference.positional_encoding(5, 6), style=style)
    yield plots.learning_rate({"a": lambda done: done * 1e-4}, 30, style=style)
    yield plots.training_curves(metrics, style=style)
    yield plots.length_histogram(np.array([[2, 3], [4, 1]]), style=style)
    yield plots.bleu_by_length(["a b c d"], ["a b c d"], style=style)


def contrast(one, other):
    """The contrast ratio of WCAG 2.2."""

    def luminance(color):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", STYLES)
def test_text_and_curves_stand_out(style):
    papers = set()
    for figure in pictures(style):
        save(figure)
        papers.add(figure.get_facecolor())
        for axes in figure.axes:
            texts = [axes.title, axes.xaxis.label, axes.yaxis.label]
            texts += axes.get_xticklabels() + axes.get_yticklabels() + axes.texts
            texts += axes.get_legend().get_texts() if axes.get_legend() else []
            for text in texts:
                assert contrast(text.get_color(), figure.get_facecolor()) >= 4.5
            for line in axes.get_lines():
                assert contrast(line.get_color(), axes.get_facecolor()) >= 3
    assert len(papers) == 1


def test_no_settings_stay_and_none_get_in():
    import matplotlib

    with matplotlib.rc_context({"text.color": "red", "axes.facecolor": "lime"}):
        before = dict(matplotlib.rcParams)
        figure = plots.positional_encoding(np.eye(3))
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].get_facecolor()[:3] == (1, 1, 1)


def test_pyplot_keeps_no_figure():
    from matplotlib import pyplot

    plots.positional_encoding(np.eye(3))
    assert pyplot.get_fignums() == []


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    letters.find_fonts.cache_clear()
    scores = np.ones((1, 1, 2))
    for draw in (
        lambda: plots.positional_encoding(np.eye(3)),
        lambda: plots.attention_heads(scores, "a", "xy"),
        lambda: plots.alignment(scores, "a", "xy"),
    ):
        with pytest.raises(InputError, match=r"pip install 'keras3-transformer\[plots\]'"):
            draw()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.positional_encoding(np.eye(3), style="sepia"), "`style` .* style='sepia'"),
        (lambda: plots.attention_heads(np.ones((2, 3)), "abc", "xy"), r"Received: \(2, 3\), 3"),
        (lambda: plots.attention_heads(np.ones((1, 2, 3)), "abc", "xy"), "3 queries and 2 keys"),
        (lambda: plots.alignment(np.ones((1, 0, 2)), "", "xy"), "`scores` must be"),
        (lambda: plots.alignment(np.ones((2, 1, 2)), "a", "xy", head=2), "0 to 1. .*head=2"),
        (lambda: plots.positional_encoding(np.empty((0, 4))), r"must not be empty.*\(0, 4\)"),
        (lambda: plots.length_histogram(np.empty((0, 2))), r"must not be empty.*\(0, 2\)"),
        (lambda: plots.learning_rate({}, 100), "Received: 0 schedules, steps=100"),
        (lambda: plots.learning_rate({"a": np.sqrt}, 0), "Received: 1 schedules, steps=0"),
        (lambda: plots.bleu_by_length([], []), "0 translations and 0 references"),
        (lambda: plots.bleu_by_length(["a"], ["a", "b"]), "1 translations and 2 references"),
    ],
)
def test_wrong_arguments(draw, message):
    with pytest.raises(InputError, match=message):
        draw()


def test_many_runs_look_different():
    looks = [
        tuple(map(str, look.values()))
        for look in itertools.islice(plots._looks(plots._THEMES["light"]), 24)
    ]
    assert len(set(looks)) == 24
