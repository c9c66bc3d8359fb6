"""Pictures of constituency trees."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, parse_trees
from keras_transformer.plots.style import PIECE_SIZE, Style, Theme, cut_piece, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAF_ROOM, LEVEL_ROOM = 0.42, 0.42  # inches of a word, and of a level


def trees(drawn: Mapping[str, Tree | str], *, style: Style = "light") -> "Figure":
    """Draws constituency trees, one below the other, in a `style`, "light" or "dark" (section 6.3).

    If there are several, the constituents that are not in all of them stand out: those of another
    label or at other positions.

    Args:
        drawn: trees by name, such as "predicted" and "gold", also as texts in brackets.

    Raises:
        InputError: if there is no tree, or a text is not one tree.

    Example:
        >>> from keras_transformer.parsing import plots
        >>> tree = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
        >>> figure = plots.trees({"predicted": tree, "gold": tree})
    """
    if not drawn:
        raise InputError("`drawn` must hold a tree. Received: none")
    parsed = {}
    for name, tree in drawn.items():
        parts = list(parse_trees([tree], f"`{name}`")) if isinstance(tree, str) else [tree]
        if len(parts) != 1:
            raise InputError(f"`{name}` must be one tree. Received: {len(parts)} trees")
        parsed[name] = parts[0]
    common = set.intersection(*(set(_spans(tree)) for tree in parsed.values()))
    words = [word for tree in parsed.values() for word in tree.words]
    count = max(len(tree.words) for tree in parsed.values())
    heights = [1.5 + _height(tree) for tree in parsed.values()]  # in levels
    size = (max(4.0, LEAF_ROOM * count), sum(LEVEL_ROOM * height + 0.45 for height in heights))
    grid = {"nrows": len(parsed), "gridspec_kw": {"height_ratios": heights}}
    with drawing(style, size, words, **grid) as (figure, panels, theme):
        for panel, (name, tree), height in zip(panels, parsed.items(), heights, strict=True):
            _draw_tree(panel, tree, common, theme)
            panel.set(xlim=(-0.7, count - 0.3), ylim=(-height + 0.6, 0.5))
            panel.set_title(name, loc="left", fontsize=10)
            panel.axis("off")
    return figure


def _height(tree: Tree) -> int:
    """Returns the number of levels below the root, words included."""
    return 1 + max(map(_height, tree.children), default=0)


def _spans(tree: Tree, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yields the label, the first word and the word after the last of all constituents and tags."""
    yield tree.label, start, start + len(tree.words)
    for child in tree.children:
        yield from _spans(child, start)
        start += len(child.words)


def _draw_tree(panel: "Axes", tree: Tree, common: set[tuple[str, int, int]], theme: Theme) -> None:
    lowest = _height(tree)
    ink, other = theme.colors[4], theme.colors[1]
    paper = {"facecolor": theme.paper, "edgecolor": "none", "pad": 0.5}

    def draw(tree: Tree, depth: int, start: int) -> tuple[float, int]:
        """Returns where the root of the tree is."""
        look: dict[str, Any] = {"ha": "center", "fontsize": PIECE_SIZE, "bbox": paper}
        is_common = (tree.label, start, start + len(tree.words)) in common
        if tree.children:
            places = []
            for child in tree.children:
                places.append(draw(child, depth + 1, start))
                start += len(child.words)
            x, y = (places[0][0] + places[-1][0]) / 2, depth
        else:
            x, y, places = float(start), lowest - 1, [(float(start), lowest)]
            word = cut_piece(tree.word)
            panel.text(x, -lowest, word, va="top", rotation=90, color=ink, **look)
        for below in places:
            ends = [x, below[0]], [-y - 0.2, 0.25 - below[1]]
            panel.plot(*ends, color=ink, linewidth=0.6, alpha=0.5)
        look |= {"color": ink} if is_common else {"color": other, "weight": "bold"}
        panel.text(x, -y, cut_piece(tree.label), va="center", **look)
        return x, y

    draw(tree, 0, 0)
