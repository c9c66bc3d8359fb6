"""`keras-transformer evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli.console import load_tensorflow, progress_bar, say


def evaluate_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    data: Annotated[str, typer.Option(help="A corpus, as for train.")],
    split: Annotated[str, typer.Option(help="Which split to translate.")] = "test",
    beam_size: Annotated[int, typer.Option(help="Beams; 1 is greedy search.")] = 4,
    alpha: Annotated[float, typer.Option(help="Strength of the length penalty.")] = 0.6,
    batch_size: Annotated[int, typer.Option(help="Most sentences to translate at once.")] = 64,
    checkpoint: Annotated[
        Literal["best", "last"],
        typer.Option(help="The best is that of the lowest validation loss."),
    ] = "best",
) -> None:
    """Translate a split and print sacreBLEU and chrF with their signatures."""
    load_tensorflow()
    from keras_transformer.run import Run
    from keras_transformer.trainers.corpora import load_corpus
    from keras_transformer.trainers.evaluation import evaluate
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    pairs = load_corpus(data, opened.source, opened.target).pairs(split)
    translator = Translator.load(run, checkpoint)
    output = run / "evaluation" / split
    with progress_bar("Translating") as progress:
        scores = evaluate(
            translator,
            pairs,
            output,
            beam_size=beam_size,
            alpha=alpha,
            batch_size=batch_size,
            progress=progress,
        )
    typer.echo(f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}")
    typer.echo(f"chrF {scores.chrf:.2f}  {scores.chrf_signature}")
    say(f"Evaluation: {scores.num_pairs:,} sentences: {output}.hypothesis, .reference, .source")
