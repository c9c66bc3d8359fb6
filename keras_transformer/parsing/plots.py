"""Pictures of constituency trees; `plots` exports them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, parse_trees
from keras_transformer.plots.style import PIECE_SIZE, Style, Theme, cut_piece, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAF_ROOM, LEVEL_ROOM = 0.42, 0.42  # inches of a word, and of a level


def trees(drawn: Mapping[str, Tree | str], *, style: Style = "light") -> "Figure":
    """Draws constituency trees, one below the other (section 6.3).

    If there are several, the constituents that are not in all of them stand out: those of another
    label or at other positions.

    Args:
        drawn: trees by name, such as "predicted" and "gold", also as texts in brackets.
        style: "light" or "dark".

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
        found = list(parse_trees([tree], f"`{name}`")) if isinstance(tree, str) else [tree]
        if len(found) != 1:
            raise InputError(f"`{name}` must be one tree. Received: {len(found)} trees")
        parsed[name] = found[0]
    placed = {name: _place(tree) for name, tree in parsed.items()}
    spans = [{node.span for node in nodes} for nodes in placed.values()]
    common = set.intersection(*spans)
    leaves = [leaf for tree in parsed.values() for leaf in tree.leaves()]
    depths = [1.5 + max(node.depth for node in nodes) for nodes in placed.values()]
    count = max(len(tree.words) for tree in parsed.values())
    size = (max(4.0, LEAF_ROOM * count), sum(LEVEL_ROOM * depth + 0.45 for depth in depths))
    grid = {"nrows": len(parsed), "gridspec_kw": {"height_ratios": depths}}
    with drawing(style, size, [leaf.word for leaf in leaves], **grid) as (figure, panels, theme):
        for panel, (name, nodes), depth in zip(panels, placed.items(), depths, strict=True):
            _draw_tree(panel, nodes, common, theme)
            panel.set(xlim=(-0.7, count - 0.3), ylim=(-depth + 0.6, 0.5))
            panel.set_title(name, loc="left", fontsize=10)
            panel.axis("off")
    return figure


class _Node(NamedTuple):
    """A constituent or a word on paper."""

    x: float  # in words
    depth: int  # levels from the root; words are all on the lowest
    text: str
    parent: int  # its place in the list; -1 for the root
    span: tuple[str, int, int]  # label, first word, word after the last


def _place(tree: Tree) -> list[_Node]:
    """Returns where the constituents, tags and words of a tree are drawn."""
    lowest = _height(tree)
    nodes: list[_Node] = []

    def add(tree: Tree, depth: int, parent: int, start: int) -> int:
        """Adds a tree from its first word, and returns the word after its last."""
        place, stop = len(nodes), start + 1
        nodes.append(_Node(start, depth, tree.label, parent, (tree.label, start, stop)))
        if tree.children:
            stop = start
            for child in tree.children:
                stop = add(child, depth + 1, place, stop)
            children = [node.x for node in nodes if node.parent == place]
            middle = (children[0] + children[-1]) / 2
            nodes[place] = nodes[place]._replace(x=middle, span=(tree.label, start, stop))
        else:
            nodes[place] = nodes[place]._replace(depth=lowest - 1)
            nodes.append(_Node(start, lowest, tree.word, place, ("", start, stop)))
        return stop

    add(tree, 0, -1, 0)
    return nodes


def _height(tree: Tree) -> int:
    """Returns the number of levels below the root, words included."""
    return 1 + max(map(_height, tree.children), default=0)


def _draw_tree(
    panel: "Axes", nodes: Sequence[_Node], common: set[tuple[str, int, int]], theme: Theme
) -> None:
    ink, other = theme.colors[4], theme.colors[1]
    for node in nodes:
        is_word = not node.span[0]
        if node.parent >= 0:
            above = nodes[node.parent]
            ends = [above.x, node.x], [-above.depth - 0.2, -node.depth + 0.25]
            panel.plot(*ends, color=ink, linewidth=0.6, alpha=0.5)
        is_common = is_word or node.span in common
        panel.text(
            node.x,
            -node.depth,
            cut_piece(node.text),
            ha="center",
            va="top" if is_word else "center",
            fontsize=PIECE_SIZE,
            color=ink if is_common else other,
            weight="normal" if is_common else "bold",
            rotation=90 if is_word else 0,
            bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 0.5},
        )
