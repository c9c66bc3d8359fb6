"""Trains the variations of docs/claims.md on Multi30k, and writes the page's figures.

    python benchmarks/variations.py MULTI30K RUNS [--only NAME ...] [--seeds 1 2] [--steps N]
        [--keep-results]

A call may be interrupted at any moment: the next one skips what is finished in RUNS, and resumes
the rest. All trainings in RUNS have the same number of steps. At its end, a call writes what is
finished in RUNS to benchmarks/results/variations.csv and docs/claims.md; `--only` without a name
trains nothing. `--keep-results` does not train again what the CSV file has.
"""

import argparse
import dataclasses
import gc
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from claims import GROUPS, SHORT, VARIATIONS, write_page
from saturation import encoder_products, measure_softmax, measure_untrained

from keras_transformer import InputError, Translator
from keras_transformer.bleu import make_bleu
from keras_transformer.files import write_atomically
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.trainers.corpora import Pair, load_corpus
from keras_transformer.trainers.evaluation import evaluate, read_sentences
from keras_transformer.trainers.preparation import prepare
from keras_transformer.trainers.prepared import load_tokenizer
from keras_transformer.trainers.recipes import TrainSettings, change_recipe, load_recipe
from keras_transformer.trainers.training import train
from keras_transformer.translation import score_texts

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "benchmarks/variations.toml"
RESULTS, PAGE = ROOT / "benchmarks/results/variations.csv", ROOT / "docs/claims.md"
COLUMNS = ["variation", "seed", "steps", "parameters", "lengths", "pairs", "perplexity"]
COLUMNS += ["greedy", "beam", "d_k", "is_scaled", "variance", "max_weight", "entropy", "gradient"]
BEAMS = {"greedy": 1, "beam": 4}


def settings_of(name: str, seed: int, steps: int | None, runs: Path) -> TrainSettings:
    """Returns the settings of a training of a variation."""
    values = change_recipe(load_recipe(RECIPE), VARIATIONS[name].changes)
    values["data"] = str(runs / f"corpus-{values['max_length']}")
    return TrainSettings.from_dict({**values, "seed": seed, "steps": steps or values["steps"]})


def prepare_corpora(data: str, runs: Path) -> None:
    """Tokenizes all pairs, and the short ones, into the same subwords."""
    tokenizer = None
    for name in ("base", "short"):
        settings = settings_of(name, 1, None, runs)
        of_text = dataclasses.replace(settings, data=data)
        tokenizer = prepare(of_text, settings.data, tokenizer=tokenizer).tokenizer


def train_and_measure(settings: TrainSettings, path: Path, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Trains a model, or the rest of it, and returns its rows of the table."""
    run = train(settings, path, verbose=0, resume=True)
    translator = Translator.of(run, "last")
    model, attention = translator.model, translator.model.encoder_layers[0].self_attention
    rows = measure_translations(translator, pairs, path / "evaluation")
    products = encoder_products(model, source_ids_of(translator.tokenizer, pairs))
    measured = measure_softmax(products, attention.scale)._asdict()
    return rows.assign(
        steps=settings.steps,
        parameters=model.count_params(),
        d_k=attention.d_k,
        is_scaled=model.config.scale_attention,
        **{name: rows.lengths.map({"all": value}) for name, value in measured.items()},
    )


def source_ids_of(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> np.ndarray:
    """Returns the token ids of the sources, int32 [B, S]."""
    return tokenizer.encode(tf.constant([pair.source for pair in pairs]), 512).ids.numpy()


def measure_translations(
    translator: Translator, pairs: Sequence[Pair], folder: Path
) -> pd.DataFrame:
    """Returns perplexity and BLEU for each of `GROUPS`, and writes the translations."""
    model, tokenizer, options = translator.model, translator.tokenizer, translator.defaults
    sources, references = map(list, zip(*pairs, strict=True))
    texts = tf.constant(sources), tf.constant(references)
    lengths = np.stack([tokenizer.tokenize(each).row_lengths().numpy() + 1 for each in texts])
    log_probs = score_texts(model, tokenizer, *texts, options).log_probs.numpy()
    found = {}
    for name, beam_size in BEAMS.items():
        evaluate(translator, pairs, folder / name, "de", beam_size=beam_size)
        found[name] = read_sentences(folder / f"{name}.hypothesis", len(pairs))
    bleu = make_bleu("13a", lowercase=True)
    table = []
    for group, (below, longest) in GROUPS.items():
        longer = lengths.max(axis=0)
        rows = np.flatnonzero((longer > below) & (longer <= longest))
        scores = {
            name: bleu.corpus_score(
                [hypotheses[n] for n in rows], [[references[n] for n in rows]]
            ).score
            for name, hypotheses in found.items()
        }
        perplexity = np.exp(-log_probs[rows].sum() / lengths[1, rows].sum())
        table.append({"lengths": group, "pairs": len(rows), "perplexity": perplexity, **scores})
    return pd.DataFrame(table)


def run_all(
    names: Sequence[str], seeds: Sequence[int], steps: int | None, data: str, runs: Path
) -> None:
    """Trains and measures what is not finished, all variations of a seed before the next seed."""
    pairs = list(load_corpus(data, "en", "de").pairs("val"))
    prepare_corpora(data, runs)
    for seed, name in itertools.product(seeds, names):
        run, table = runs / f"{name}-{seed}", runs / f"{name}-{seed}.csv"
        if table.exists():
            continue
        started = time.monotonic()
        try:
            rows = train_and_measure(settings_of(name, seed, steps, runs), run, pairs)
        except InputError as error:  # such as a training that diverges
            print(f"{run.name}: {error}", flush=True)
            continue
        save(rows.assign(variation=name, seed=seed), table)
        found = ", ".join(f"{column} {rows[column][0]:.2f}" for column in ("perplexity", *BEAMS))
        print(f"{run.name}: {found}, {time.monotonic() - started:.0f} s", flush=True)
        keras.utils.clear_session()
        gc.collect()
    if not (runs / "untrained.csv").exists():
        tokenizer = load_tokenizer(runs / f"corpus-{SHORT}")
        untrained = measure_untrained(source_ids_of(tokenizer, pairs), tokenizer.vocab_size)
        save(untrained, runs / "untrained.csv")


def restore(results: pd.DataFrame, runs: Path) -> None:
    """Writes the tables of trainings whose runs are elsewhere."""
    runs.mkdir(parents=True, exist_ok=True)
    for (name, seed), rows in results.groupby(["variation", "seed"]):
        path = runs / f"{name}-{seed:.0f}.csv"
        if not path.exists():
            save(rows, path)


def save(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as a whole, or not at all."""
    write_atomically(path, table.to_csv(index=False).encode())


def collect(runs: Path) -> pd.DataFrame:
    """Returns the tables of all finished trainings as one."""
    table = pd.concat([pd.read_csv(path) for path in sorted(runs.glob("*.csv"))])
    counts = dict.fromkeys(("seed", "steps", "parameters", "pairs"), "Int64")
    return table.reindex(columns=COLUMNS).astype(counts).round(4)


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
    parser.add_argument("--keep-results", action="store_true", help="do not repeat what was run")
    arguments = parser.parse_args()
    if arguments.keep_results:
        restore(pd.read_csv(RESULTS), arguments.runs)
    run_all(arguments.only, arguments.seeds, arguments.steps, arguments.data, arguments.runs)
    save(collect(arguments.runs), RESULTS)
    write_page(pd.read_csv(RESULTS), PAGE)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
