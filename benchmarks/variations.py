"""Trains the variations of docs/claims.md on Multi30k, and prints a table as the paper's Table 3.

    python benchmarks/variations.py MULTI30K RUNS [--only NAME ...] [--seeds 1 2] [--steps N]

A call may be interrupted at any moment: the next one skips what is finished in RUNS, and resumes
the rest. The table is of all that is finished there; `--only` without a name trains nothing.
"""

import argparse
import dataclasses
import gc
import itertools
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import sacrebleu
import tensorflow as tf

from keras_transformer import InputError, Translator
from keras_transformer.search.texts import score_texts
from keras_transformer.trainers.data.corpora import Pair, load_corpus
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.settings import TrainSettings, change_recipe, load_recipe

RECIPE = Path(__file__).with_name("variations.toml")
SHORT = 16  # tokens of a side, the end included: half of the training pairs
LEARNED = ("model.position_encoding=learned", "model.max_length=100")
UNSCALED = "model.scale_attention=false"
# By name: the part of the paper's Table 3 or its section, a label, and changes to the recipe.
VARIATIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "base": ("base", "4 heads of 32, dropout 0.1, label smoothing 0.1", ()),
    "heads-1": ("(A)", "1 head of 128", ("model.num_heads=1",)),
    "heads-8": ("(A)", "8 heads of 16", ("model.num_heads=8",)),
    "d_k-16": ("(B)", "d_k 16, d_v 32", ("model.d_k=16",)),
    "dropout-0.0": ("(D)", "dropout 0", ("model.dropout_rate=0.0",)),
    "dropout-0.3": ("(D)", "dropout 0.3", ("model.dropout_rate=0.3",)),
    "smoothing-0.0": ("(D)", "label smoothing 0", ("label_smoothing=0.0",)),
    "smoothing-0.2": ("(D)", "label smoothing 0.2", ("label_smoothing=0.2",)),
    "learned": ("(E)", "learned positions", LEARNED),
    "short": ("3.5", "short pairs", (f"max_length={SHORT}",)),
    "short-learned": ("3.5", "short pairs, learned", (f"max_length={SHORT}", *LEARNED)),
    "no-d_model": ("3.4", "no sqrt(d_model)", ("model.scale_embeddings=false",)),
    "no-d_k": ("3.2.1", "no 1 / sqrt(d_k)", (UNSCALED,)),
    "no-d_k-heads-1": ("3.2.1", "the same with 1 head", (UNSCALED, "model.num_heads=1")),
}
# Pairs by the tokens of their longer side: above the first number, up to the second.
GROUPS = {"all": (0, 10_000), f"to {SHORT}": (0, SHORT), f"from {SHORT + 1}": (SHORT, 10_000)}
BEAMS = {"greedy": 1, "beam": 4}


def settings_of(name: str, seed: int, steps: int | None, runs: Path) -> TrainSettings:
    """Returns the settings of a training of a variation."""
    values = change_recipe(load_recipe(RECIPE), VARIATIONS[name][2])
    values["data"] = str(runs / f"corpus-{values['max_length']}")
    return TrainSettings.from_dict({**values, "seed": seed, "steps": steps or values["steps"]})


def prepare_corpora(data: str, runs: Path) -> None:
    """Tokenizes all pairs, and the short ones, into the same subwords."""
    tokenizer = None
    for name in ("base", "short"):
        settings = settings_of(name, 1, None, runs)
        of_text = dataclasses.replace(settings, data=data)
        tokenizer = prepare(of_text, settings.data, tokenizer=tokenizer).tokenizer


def measure(translator: Translator, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Returns perplexity and BLEU for each of `GROUPS`."""
    tokenizer, options = translator.tokenizer, translator.defaults
    sources, references = map(list, zip(*pairs, strict=True))
    texts = tf.constant(sources), tf.constant(references)
    lengths = np.stack([tokenizer.tokenize(each).row_lengths().numpy() + 1 for each in texts])
    log_probs = score_texts(translator.model, tokenizer, *texts, options).log_probs.numpy()
    columns = {"reference": references, "length": lengths[1], "log_prob": log_probs}
    for name, beam_size in BEAMS.items():
        columns[name] = [each.text for each in translator.translate(sources, beam_size=beam_size)]
    table, longer, rows = pd.DataFrame(columns), lengths.max(axis=0), []
    for group, (below, longest) in GROUPS.items():
        found = table[(longer > below) & (longer <= longest)]
        row = {"lengths": group, "pairs": len(found)}
        row["perplexity"] = np.exp(-found.log_prob.sum() / found.length.sum())
        for name in BEAMS:
            row[name] = sacrebleu.corpus_bleu(
                found[name].tolist(), [found.reference.tolist()], lowercase=True
            ).score
        rows.append(row)
    return pd.DataFrame(rows).assign(parameters=translator.model.count_params())


def run_all(
    names: Sequence[str], seeds: Sequence[int], steps: int | None, data: str, runs: Path
) -> None:
    """Trains and measures what is not finished, all variations of a seed before the next seed."""
    pairs = list(load_corpus(data, "en", "de").pairs("val"))
    prepare_corpora(data, runs)
    for seed, name in itertools.product(seeds, names):
        path, table = runs / f"{name}-{seed}", runs / f"{name}-{seed}.csv"
        if table.exists():
            continue
        try:
            run = train(settings_of(name, seed, steps, runs), path, verbose=0, resume=True)
        except InputError as error:  # such as a training that diverges
            print(f"{path.name}: {error}", flush=True)
            continue
        rows = measure(Translator.of(run, "last"), pairs).assign(variation=name, seed=seed)
        rows.to_csv(table.with_suffix(".part"), index=False)
        table.with_suffix(".part").rename(table)
        print(f"{path.name}: {rows.loc[0, ['perplexity', *BEAMS]].to_dict()}", flush=True)
        keras.utils.clear_session()
        gc.collect()


def table_3(results: pd.DataFrame) -> str:
    """Means of the seeds, and half of the distance between the lowest and the highest."""
    rows = []
    for name, (part, label, _) in VARIATIONS.items():
        for lengths in GROUPS:
            found = results[(results.variation == name) & (results.lengths == lengths)]
            if len(found):
                figures = found[["perplexity", *BEAMS]]
                cells = zip(figures.mean(), (figures.max() - figures.min()) / 2, strict=True)
                cells = [f"{mean:.2f} ± {spread:.2f}" for mean, spread in cells]
                rows.append([part, label, lengths, f"{found.parameters.iloc[0]:,}", *cells])
    head = ["part", "", "tokens", "parameters", "perplexity", "BLEU, greedy", "BLEU, beam 4"]
    return pd.DataFrame(rows, columns=head).to_markdown(index=False, disable_numparse=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="MULTI30K", help="folder of {language}.{split}.txt")
    parser.add_argument("runs", metavar="RUNS", type=Path, help="folder of the trainings")
    parser.add_argument("--only", nargs="*", default=[*VARIATIONS], choices=VARIATIONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, help="updates of each training [2,000]")
    arguments = parser.parse_args()
    run_all(arguments.only, arguments.seeds, arguments.steps, arguments.data, arguments.runs)
    print(table_3(pd.concat(map(pd.read_csv, arguments.runs.glob("*.csv")))))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
