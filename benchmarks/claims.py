"""The variations of docs/claims.md, what the paper says of them, and the page's figures."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from keras_transformer.plot_style import drawing, show_grid

NOT_RUN = "No figures yet: `python benchmarks/variations.py` has not been run."
SHORT = 16  # tokens of a side, the end included: half of the training pairs
LEARNED = ("model.position_encoding=learned", "model.max_length=100")
UNSCALED = "model.scale_attention=false"


class Variation(NamedTuple):
    """A training.

    Attributes:
        part: its part of the paper's Table 3, or its section.
        label: what it changes.
        changes: to the recipe, as `train --set` takes them.
    """

    part: str
    label: str
    changes: tuple[str, ...] = ()


VARIATIONS = {
    "base": Variation("base", "4 heads of 32, dropout 0.1, label smoothing 0.1"),
    "heads-1": Variation("(A)", "1 head of 128", ("model.num_heads=1",)),
    "heads-8": Variation("(A)", "8 heads of 16", ("model.num_heads=8",)),
    "d_k-16": Variation("(B)", "d_k 16, d_v 32", ("model.d_k=16",)),
    "dropout-0.0": Variation("(D)", "dropout 0", ("model.dropout_rate=0.0",)),
    "dropout-0.3": Variation("(D)", "dropout 0.3", ("model.dropout_rate=0.3",)),
    "smoothing-0.0": Variation("(D)", "label smoothing 0", ("label_smoothing=0.0",)),
    "smoothing-0.2": Variation("(D)", "label smoothing 0.2", ("label_smoothing=0.2",)),
    "learned": Variation("(E)", "learned positions", LEARNED),
    "short": Variation("3.5", "short pairs", (f"max_length={SHORT}",)),
    "short-learned": Variation("3.5", "short pairs, learned", (f"max_length={SHORT}", *LEARNED)),
    "no-d_model": Variation("3.4", "no sqrt(d_model)", ("model.scale_embeddings=false",)),
    "no-d_k": Variation("3.2.1", "no 1 / sqrt(d_k)", (UNSCALED,)),
    "no-d_k-heads-1": Variation("3.2.1", "the same with 1 head", (UNSCALED, "model.num_heads=1")),
}
# Groups of pairs by the tokens of their longer side: above the first number, up to the second.
WITHIN, BEYOND = f"to {SHORT}", f"from {SHORT + 1}"
BARS = {"to 12": (0, 12), "13-16": (12, 16), "17-20": (16, 20), "21-24": (20, 24)}
BARS["from 25"] = (24, 10_000)
GROUPS = {"all": (0, 10_000), WITHIN: (0, SHORT), BEYOND: (SHORT, 10_000), **BARS}


class Claim(NamedTuple):
    """What the paper says: that one variation has a better figure than another.

    Attributes:
        text: the claim.
        section: of the paper.
        paper: both figures of the paper's Table 3, if it has them.
        better: a variation.
        worse: a variation.
        column: "perplexity" or "beam".
        lengths: of `GROUPS`.
        margin: below which both figures are nearly equal, if that is the claim.
    """

    text: str
    section: str
    paper: str
    better: str
    worse: str
    column: str = "beam"
    lengths: str = "all"
    margin: float | None = None


CLAIMS = (
    Claim("One head is worse", "3.2.2, (A)", "25.8, 24.9", "base", "heads-1"),
    Claim("Too many heads are worse", "6.2, (A)", "25.8, 25.4", "base", "heads-8"),
    Claim("Half of d_k is worse", "6.2, (B)", "25.8, 25.4", "base", "d_k-16"),
    Claim("Dropout helps", "6.2, (D)", "25.8, 24.6", "base", "dropout-0.0"),
    Claim("Label smoothing helps BLEU", "5.4, (D)", "25.8, 25.3", "base", "smoothing-0.0"),
    Claim("... and hurts perplexity", "5.4, (D)", "4.67, 4.92", "smoothing-0.0", "base",
          "perplexity"),
    Claim("Learned positions are nearly as good", "3.5, (E)", "25.8, 25.7", "base", "learned",
          margin=0.5),
    Claim("Sinusoids go beyond the lengths of training", "3.5", "", "short", "short-learned",
          lengths=BEYOND),
    Claim("Embeddings need sqrt(d_model)", "3.4", "", "base", "no-d_model"),
    Claim("Scores need 1 / sqrt(d_k)", "3.2.1", "", "base", "no-d_k"),
    Claim("... also with d_k = 128", "3.2.1", "", "heads-1", "no-d_k-heads-1"),
)  # fmt: skip
FORMS = {"perplexity": "{:.2f}", "greedy": "{:.1f}", "beam": "{:.1f}", "parameters": "{:,.0f}"}
LABELS = {"perplexity": "Perplexity", "greedy": "BLEU, greedy", "beam": "BLEU, beam 4"}
POSITIONS = {
    "base": "sinusoids, all pairs",
    "learned": "learned, all pairs",
    "short": f"sinusoids, pairs to {SHORT}",
    "short-learned": f"learned, pairs to {SHORT}",
}
TRAINED = ("base", "heads-1", "heads-8", "no-d_k", "no-d_k-heads-1")
SOFTMAXES = {"normal": "normal", "initial": "initial values", "trained": "trained"}
MEASURED = {  # label, and digits
    "variance": ("Variance of q.k", 1),
    "max_weight": ("Largest weight", 2),
    "entropy": ("Entropy, nats", 2),
    "gradient": ("Gradient", 3),
}


def values_of(results: pd.DataFrame, name: str, column: str, lengths: str = "all") -> pd.Series:
    """Returns a figure of a variation, for each seed."""
    rows = (results.variation == name) & (results.lengths == lengths)
    return results.loc[rows, column].dropna()


def cell(values: pd.Series, column: str) -> str:
    """The mean of the seeds, and half of the distance between the lowest and the highest."""
    if values.empty:
        return "-"
    form, spread = FORMS[column], (values.max() - values.min()) / 2
    has_spread = len(values) > 1 and column != "parameters"
    return form.format(values.mean()) + (f" ± {form.format(spread)}" if has_spread else "")


def verdict(claim: Claim, better: pd.Series, worse: pd.Series) -> str:
    """Whether the seeds show what the paper says."""
    if better.empty or worse.empty:
        return "not run"
    if claim.margin is not None:
        return "yes" if abs(better.mean() - worse.mean()) < claim.margin else "no"
    if claim.column == "perplexity":
        better, worse = -better, -worse
    if better.min() > worse.max():
        return "yes"
    return "no" if better.max() < worse.min() else "the seeds overlap"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def claims_table(results: pd.DataFrame) -> str:
    """The claims, the paper's figures, the figures here, and whether they agree."""
    rows = []
    for claim in CLAIMS:
        found = [
            values_of(results, name, claim.column, claim.lengths)
            for name in (claim.better, claim.worse)
        ]
        here = ", ".join(cell(values, claim.column) for values in found)
        rows.append([claim.text, claim.section, claim.paper, here, verdict(claim, *found)])
    return markdown(["the claim", "section", "the paper", "here", "shown"], rows)


def table_3(results: pd.DataFrame) -> str:
    """A row for each variation that was run, as the paper's Table 3."""
    columns = ["parameters", "perplexity", "greedy", "beam"]
    rows = [
        [part, label, *(cell(values_of(results, name, column), column) for column in columns)]
        for name, (part, label, _) in VARIATIONS.items()
        if len(values_of(results, name, "beam"))
    ]
    return markdown(["", "", "parameters", *LABELS.values()], rows)


def lengths_table(results: pd.DataFrame) -> str:
    """The variations of positions, within the lengths of the short pairs and beyond them."""
    columns = [(name, lengths) for name in ("perplexity", "beam") for lengths in (WITHIN, BEYOND)]
    rows = [
        [label, *(cell(values_of(results, name, *column), column[0]) for column in columns)]
        for name, label in POSITIONS.items()
    ]
    return markdown(["", *(f"{LABELS[name]}, {lengths}" for name, lengths in columns)], rows)


def softmaxes(results: pd.DataFrame) -> pd.DataFrame:
    """The means of the seeds of `MEASURED`, by kind of model, scale and d_k."""
    found = results[results.variation.isin([*SOFTMAXES, *TRAINED])].dropna(subset="gradient")
    kind = found.variation.where(found.variation.isin([*SOFTMAXES]), "trained")
    kind = pd.Categorical(kind, [*SOFTMAXES])
    return found.groupby([kind, "is_scaled", "d_k"], observed=True)[[*MEASURED]].mean()


def softmax_table(results: pd.DataFrame) -> str:
    """What the softmaxes of each kind of model do."""
    rows = [
        [SOFTMAXES[kind], f"{d_k:.0f}", "yes" if is_scaled else "no"]
        + [f"{row[name]:.{digits}f}" for name, (_, digits) in MEASURED.items()]
        for (kind, is_scaled, d_k), row in softmaxes(results).iterrows()
    ]
    return markdown(["q and k", "d_k", "scaled", *(label for label, _ in MEASURED.values())], rows)


def draw_variations(results: pd.DataFrame) -> Any:
    """A dot for each seed of each variation, and a line at the mean of the base."""
    names = [name for name in VARIATIONS if len(values_of(results, name, "beam"))]
    names = [name for name in reversed(names) if "short" not in name]  # another picture's
    size = (8.5, 1.2 + 0.3 * len(names))
    with drawing("light", size, ncols=2, sharey=True) as (figure, panels, theme):
        for panel, column in zip(panels, ("perplexity", "beam"), strict=True):
            for row, name in enumerate(names):
                values = values_of(results, name, column)
                panel.plot(values, [row] * len(values), "o", color=theme.colors[0], alpha=0.7)
            panel.axvline(values_of(results, "base", column).mean(), color="gray", linewidth=1)
            labels = [name if name == "base" else VARIATIONS[name].label for name in names]
            panel.set_yticks(range(len(names)), labels)
            panel.set(xlabel=LABELS[column])
            show_grid(panel)
    return figure


def draw_lengths(results: pd.DataFrame) -> Any:
    """The figures of the variations of positions, by the length of the pairs."""
    with drawing("light", (9, 3.8), ncols=2) as (figure, panels, theme):
        for panel, column in zip(panels, ("perplexity", "beam"), strict=True):
            for index, (name, label) in enumerate(POSITIONS.items()):
                found = [values_of(results, name, column, lengths) for lengths in BARS]
                look = {"color": theme.colors[index % 2], "linestyle": "-" if index < 2 else "--"}
                means = [values.mean() for values in found]
                panel.plot(range(len(BARS)), means, marker="os"[index % 2], label=label, **look)
                lowest, highest = ([f(values) for values in found] for f in (np.min, np.max))
                panel.fill_between(
                    range(len(BARS)), lowest, highest, alpha=0.15, color=look["color"]
                )
            panel.axvline([*BARS].index("17-20") - 0.5, color="gray", linestyle=":")
            panel.set_xticks(range(len(BARS)), BARS)
            panel.set(xlabel="Tokens of the longer side", ylabel=LABELS[column])
            show_grid(panel)
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_formatter("{x:g}")
        panels[0].yaxis.set_minor_formatter("{x:g}")
        panels[0].legend()
    return figure


def draw_softmaxes(results: pd.DataFrame) -> Any:
    """The variance of the scores, the largest weight and the gradient, by d_k."""
    table = softmaxes(results)
    looks = {"normal": "-", "initial": "o", "trained": "s"}
    with drawing("light", (11, 3.8), ncols=3) as (figure, panels, theme):
        for panel, column in zip(panels, ("variance", "max_weight", "gradient"), strict=True):
            for (kind, is_scaled), group in table.groupby(level=[0, 1], observed=True):
                group = group.droplevel([0, 1])
                hollow = {"markerfacecolor": theme.paper} if kind == "initial" else {}
                label = f"{SOFTMAXES[kind]}, {'' if is_scaled else 'not '}scaled"
                color = theme.colors[0 if is_scaled else 1]
                panel.plot(
                    group.index, group[column], looks[kind], color=color, label=label, **hollow
                )
            panel.set_xscale("log", base=2)
            panel.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1,024"])
            panel.set(xlabel="d_k", ylabel=MEASURED[column][0])
            show_grid(panel)
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_formatter("{x:,g}")
        panels[-1].set_ylim(0)
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


PICTURES = {
    "variations": (draw_variations, "Perplexity and BLEU of each variation and seed"),
    "lengths": (draw_lengths, "Perplexity and BLEU by length"),
    "softmaxes": (draw_softmaxes, "Variance, largest weight and gradient by d_k"),
}
TABLES = {
    "claims": claims_table,
    "variations": table_3,
    "lengths": lengths_table,
    "softmaxes": softmax_table,
}


def write_page(results: pd.DataFrame, page: Path) -> None:
    """Writes the tables between the page's markers, and the pictures beside the page."""
    text = page.read_text("utf-8")
    for name, table in TABLES.items():
        content = NOT_RUN if results.empty else table(results)
        if name in PICTURES and not results.empty:
            draw, alt = PICTURES[name]
            file = page.with_name(f"{page.stem}-{name}.png")
            draw(results).savefig(file, dpi=110)
            content += f"\n\n![{alt}]({file.name})"
        text = fill(text, name, content)
    page.write_text(text, "utf-8")


def fill(text: str, name: str, content: str) -> str:
    """Puts a content between the markers of its name."""
    pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)"
    filled, count = re.subn(pattern, lambda match: match[1] + content + match[2], text, flags=re.S)
    if not count:
        raise ValueError(f"The page has no markers of {name}")
    return filled
