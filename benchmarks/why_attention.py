"""Sets the Transformer beside the recurrent model that it replaces: docs/why-attention.md.

    python benchmarks/why_attention.py RUNS [--skip-timing]

RUNS holds the trainings of `MODELS`, or some of them, evaluated on test2016; the page has the
commands. The script times updates of both models on an idle machine, unless `--skip-timing` keeps
the last figures. It writes benchmarks/results/why-attention-*.csv, the page's tables and pictures.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import sacrebleu
import tensorflow as tf
from claims import fill, markdown

from keras_transformer.architectures import build_model
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.plot_style import drawing, show_grid
from keras_transformer.run import Run
from keras_transformer.trainers.batches import BatchPlan, make_dataset
from keras_transformer.trainers.evaluation import read_evaluations
from keras_transformer.trainers.host_memory import keep_freed_memory
from keras_transformer.trainers.prepared import open_prepared
from keras_transformer.trainers.recipes import TrainSettings, load_recipe
from keras_transformer.trainers.training_model import Adam, TrainingModel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/why-attention.md"
RESULTS = ROOT / "benchmarks/results"
MODELS = {  # names of runs
    "transformer": "Transformer",
    "recurrent": "recurrent",
    "transformer-r-drop": "Transformer, R-Drop",
    "recurrent-r-drop": "recurrent, R-Drop",
}
RECIPES = {"transformer": "multi30k-ende-tiny", "recurrent": "multi30k-ende-recurrent"}
SPLIT = "test2016"
BOUNDS = (8, 12, 16, 20)  # words of a reference
LENGTHS = (8, 16, 32, 64, 128, 256)  # tokens of each side of the timed batches
TOKENS = 2_048  # of each side of a timed batch
ROUNDS = 7
CHAIN_LENGTHS = (8, 16, 32, 64)  # tokens of each side
PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")  # operations of TensorFlow
BATCH_TOKENS = 3_072  # of the batches of the corpus, as in the trainings
BATCHES = 40  # of the corpus, whose updates are timed
R_DROP = 4.0  # of the page's commands
MINUTES = 20  # of updates, after which the models are compared


def curves_of(runs: dict[str, Run]) -> pd.DataFrame:
    """Returns the BLEU of each validation."""
    rows = [
        {"model": name, "updates": line["step"], "bleu": line["val_bleu"]}
        for name, run in runs.items()
        for line in run.metrics()
    ]
    return pd.DataFrame(rows, columns=["model", "updates", "bleu"])


def scores_of(runs: dict[str, Run]) -> pd.DataFrame:
    """Returns the BLEU of the test split, of all sentences and of each length."""
    rows = []
    for name, run in runs.items():
        for found in read_evaluations(run.path / "evaluation"):
            if found.name == SPLIT:
                row = {"model": name, "parameters": run.model().count_params()}
                row |= {"updates": run.metrics()[-1]["step"]}
                row["published protocol"] = found.scores["bleu_multimodal"]["value"]
                rows.append(row | bleu_by_words(found.hypotheses, found.references))
    columns = ["model", "parameters", "updates", "published protocol", *bleu_by_words([], [])]
    return pd.DataFrame(rows, columns=columns)


def bleu_by_words(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """Returns 13a BLEU without case for each group of reference lengths."""
    bleu = sacrebleu.BLEU(lowercase=True, force=True)
    words = np.array([len(reference.split()) for reference in references])
    found = {}
    for below, longest in itertools.pairwise((0, *BOUNDS, 10_000)):
        rows = np.flatnonzero((words > below) & (words <= longest)).tolist()
        columns = [[texts[row] for row in rows] for texts in (hypotheses, references)]
        label = f"{below + 1}-{longest}" if longest in BOUNDS else f"from {below + 1}"
        found[label] = bleu.corpus_score(columns[0], [columns[1]]).score if rows else np.nan
    return found


def compiled(settings: TrainSettings, vocab_size: int, r_drop: float) -> TrainingModel:
    """Returns the model of settings, ready for `train_step`."""
    model = TrainingModel(build_model(settings.config(vocab_size)), r_drop)
    model.compile(Adam(1e-4), LabelSmoothedCrossEntropy(0.1, reduction="sum"))
    model.optimizer.build(model.trainable_variables)
    return model


def time_lengths() -> pd.DataFrame:
    """Times updates of batches with the same number of tokens, by the length of their rows."""
    random, rows = np.random.default_rng(1), []
    for name, recipe in RECIPES.items():
        settings = TrainSettings.from_dict(load_recipe(recipe))
        model = compiled(settings, 10_000, r_drop=0.0)
        step = tf.function(model.train_step, reduce_retracing=True, autograph=False)
        for length in LENGTHS:
            ids = tf.constant(random.integers(4, 10_000, (TOKENS // length, length)), tf.int32)
            batch = {"source_ids": ids, "target_ids": ids}, ids, tf.ones(ids.shape) / TOKENS
            times = []
            for _ in range(ROUNDS + 2):
                started = time.perf_counter()
                step(batch)
                times.append(time.perf_counter() - started)
            rows.append({"model": name, "tokens": length, "seconds": statistics.median(times[2:])})
    return pd.DataFrame(rows)


def time_updates(corpus: Path) -> pd.DataFrame:
    """Times the same updates of a prepared corpus, with and without R-Drop."""
    rows = []
    for name in MODELS:
        recipe = load_recipe(RECIPES[name.removesuffix("-r-drop")])
        settings = TrainSettings.from_dict({**recipe, "tokens_per_batch": BATCH_TOKENS})
        pairs = open_prepared(corpus, settings).training
        plan = BatchPlan(pairs.lengths, settings.tokens_per_batch, seed=1)
        batches = list(make_dataset(pairs, plan, range(BATCHES)))
        model = compiled(settings, 10_000, R_DROP if name.endswith("r-drop") else 0.0)
        step = tf.function(model.train_step, reduce_retracing=True, autograph=False)
        for batch in batches[:5]:
            step(batch)
        started = time.perf_counter()
        for batch in batches:
            step(batch)
        rows.append({"model": name, "seconds": (time.perf_counter() - started) / BATCHES})
    return pd.DataFrame(rows)


def chains_of_recipes() -> pd.DataFrame:
    """Counts the products that a forward pass computes one after another, by sentence length."""
    rows = []
    for name, recipe in RECIPES.items():
        model = build_model(TrainSettings.from_dict(load_recipe(recipe)).config(500))
        rows += [
            {"model": name, "tokens": length, "products": longest_chain(model, length)}
            for length in CHAIN_LENGTHS
        ]
    return pd.DataFrame(rows)


def longest_chain(model: keras.Model, length: int) -> int:
    """Returns the number of matrix products on the longest path of a forward pass's graph.

    The graph is for a pair of sentences of `length` tokens. Its recurrent layers are unrolled, so
    that each step is a product of the graph.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN):
            layer.unroll = True
    spec = tf.TensorSpec([1, length], tf.int32)
    forward = tf.function(
        lambda source, target: model({"source_ids": source, "target_ids": target}), autograph=False
    )
    graph = forward.get_concrete_function(spec, spec).graph
    depth: dict[str, int] = {}
    for operation in graph.get_operations():  # in the order of their creation: inputs come first
        before = max((depth[each.op.name] for each in operation.inputs), default=0)
        depth[operation.name] = before + (operation.type in PRODUCTS)
    return depth[graph.structured_outputs.op.name]


# --- The page -------------------------------------------------------------------------------------


def scores_table(scores: pd.DataFrame, updates: pd.DataFrame, curves: pd.DataFrame) -> str:
    """A row for each training."""
    seconds = updates.set_index("model").seconds
    rows = []
    for row in scores.to_dict("records"):
        name, count = row["model"], int(row["updates"])
        found = curves[curves.model == name]
        early = np.interp(60 * MINUTES, found.updates * seconds[name], found.bleu)
        rows.append(
            [MODELS[name], f"{row['parameters']:,}", f"{count:,}", f"{1 / seconds[name]:.2f}"]
            + [f"{count * seconds[name] / 60:.0f}", f"{early:.1f}"]
            + [f"{found.bleu.max():.1f}"]
            + [f"{row['published protocol']:.2f}"]
        )
    head = ["", "parameters", "updates", "updates per second", "minutes"]
    head += [f"validation BLEU, greedy, after {MINUTES} minutes", "the best"]
    return markdown([*head, "test2016 BLEU, beam 5"], rows)


def lengths_table(times: pd.DataFrame) -> str:
    """Time by length, and how it grows."""
    table = times.pivot(index="tokens", columns="model", values="seconds") * 1e3
    rows = [
        [f"{length}", *(f"{row[name]:,.0f}" for name in RECIPES)]
        + [f"{row.recurrent / row.transformer:.2f}"]
        for length, row in table.iterrows()
    ]
    return markdown(["tokens of a row", "Transformer, ms", "recurrent, ms", "ratio"], rows)


def chains_table(chains: pd.DataFrame) -> str:
    """Products one after another, by length."""
    table = chains.pivot(index="tokens", columns="model", values="products")
    rows = [
        [f"{length}", *(f"{row[name]}" for name in RECIPES)] for length, row in table.iterrows()
    ]
    return markdown(["tokens of each side", "Transformer", "recurrent"], rows)


def draw_chains(chains: pd.DataFrame) -> Any:
    """Products one after another, by length."""
    with drawing("light", (7, 3.8)) as (figure, (panel,), theme):
        for index, name in enumerate(RECIPES):
            found = chains[chains.model == name]
            panel.plot(
                found.tokens, found.products, "os"[index] + "-", color=theme.colors[index],
                label=MODELS[name],
            )  # fmt: skip
        panel.set_xticks(CHAIN_LENGTHS)
        panel.set(xlabel="Tokens of each side", ylabel="Products one after another", ylim=(0, None))
        panel.legend()
        show_grid(panel)
    return figure


def draw_curves(curves: pd.DataFrame, updates: pd.DataFrame) -> Any:
    """Validation BLEU by updates and by time."""
    seconds = updates.set_index("model").seconds
    with drawing("light", (9, 3.8), ncols=2, sharey=True) as (figure, panels, theme):
        for index, (name, label) in enumerate(MODELS.items()):
            found = curves[curves.model == name]
            if found.empty:  # not trained
                continue
            look = {"color": theme.colors[index % 2], "linestyle": "--" if index < 2 else "-"}
            panels[0].plot(found.updates, found.bleu, label=label, **look)
            panels[1].plot(found.updates * seconds[name] / 60, found.bleu, **look)
        panels[0].set(xlabel="Updates", ylabel="Validation BLEU, greedy")
        panels[1].set(xlabel="Minutes of updates")
        panels[0].legend(loc="lower right")
        for panel in panels:
            show_grid(panel)
    return figure


def draw_bleu(scores: pd.DataFrame) -> Any:
    """BLEU by the words of the reference."""
    groups = [*bleu_by_words([], [])]
    width = 0.8 / max(1, len(scores))
    with drawing("light", (9, 3.8)) as (figure, (panel,), theme):
        for index, row in enumerate(scores.to_dict("records")):
            places = np.arange(len(groups)) + (index - (len(scores) - 1) / 2) * width
            color = theme.colors[[*MODELS].index(row["model"]) % 2]
            alpha = 1.0 if row["model"].endswith("r-drop") else 0.5
            values = [row[group] for group in groups]
            panel.bar(
                places, values, width, label=MODELS[row["model"]], color=color, alpha=alpha,
            )  # fmt: skip
        panel.set_xticks(range(len(groups)), groups)
        panel.set(xlabel="Words of the reference", ylabel="BLEU")
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1))
        show_grid(panel)
    return figure


def draw_times(times: pd.DataFrame) -> Any:
    """Time of an update by the length of its rows."""
    with drawing("light", (7, 3.8)) as (figure, (panel,), theme):
        for index, name in enumerate(RECIPES):
            found = times[times.model == name]
            panel.plot(
                found.tokens, found.seconds * 1e3, "os"[index] + "-", color=theme.colors[index],
                label=MODELS[name],
            )  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.set_xticks(LENGTHS, LENGTHS)
        panel.set(
            xlabel="Tokens of a row", ylabel=f"ms an update of {TOKENS:,} tokens", ylim=(0, None)
        )
        panel.legend()
        show_grid(panel)
    return figure


def write_page(
    curves: pd.DataFrame,
    scores: pd.DataFrame,
    times: pd.DataFrame,
    updates: pd.DataFrame,
    chains: pd.DataFrame,
    page: Path,
) -> None:
    """Fills the page's markers, and draws the pictures beside it."""
    pictures = {
        "curves": (draw_curves(curves, updates), "Validation BLEU by updates and by minutes"),
        "bleu": (draw_bleu(scores), "BLEU by the words of the reference"),
        "chains": (draw_chains(chains), "Products one after another by the length of a sentence"),
        "times": (draw_times(times), "Time of an update by the length of its rows"),
    }
    tables = {
        "curves": scores_table(scores, updates, curves),
        "bleu": "",
        "chains": chains_table(chains),
        "times": lengths_table(times),
    }
    text = page.read_text("utf-8")
    for name, (figure, alt) in pictures.items():
        file = page.with_name(f"{page.stem}-{name}.png")
        figure.savefig(file, dpi=110)
        text = fill(text, name, f"{tables[name]}\n\n![{alt}]({file.name})".strip())
    page.write_text(text, "utf-8")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUNS", type=Path, help="folder of the trainings")
    parser.add_argument("--skip-timing", action="store_true", help="keep the timed figures")
    arguments = parser.parse_args()
    keep_freed_memory()  # as `train` does
    paths = {name: arguments.runs / name for name in MODELS}
    runs = {name: Run.load(path) for name, path in paths.items() if path.is_dir()}
    if not runs:
        parser.error(f"{arguments.runs} must hold a run of {', '.join(MODELS)}")
    tables = {"curves": curves_of(runs), "scores": scores_of(runs), "chains": chains_of_recipes()}
    if not arguments.skip_timing:
        run = next(iter(runs.values()))
        keras.config.set_dtype_policy(run.settings["precision"])
        tables["times"] = time_lengths()
        tables["updates"] = time_updates(run.path / "corpus")
    for name, table in tables.items():
        table.round(4).to_csv(RESULTS / f"why-attention-{name}.csv", index=False)
    found = [
        pd.read_csv(RESULTS / f"why-attention-{name}.csv")
        for name in ("curves", "scores", "times", "updates", "chains")
    ]
    write_page(*found, PAGE)


if __name__ == "__main__":
    main()
