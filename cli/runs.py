"""`keras-transformer runs`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from keras_transformer.cli.console import load_tensorflow, print_json, say
from keras_transformer.cli.options import Json
from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.tasks import metric_labels


def runs_command(
    folder: Annotated[Path, Argument(metavar="DIR", help="A folder with run directories in it.")],
    curves: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw the curves of all runs in one picture, .png or .svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder, and compare their curves."""
    if curves is not None and curves.suffix not in (".png", ".svg"):
        raise InputError(f"`--curves` must end in .png or .svg. Received: {curves}")
    load_tensorflow()
    from keras_transformer.plots import training_curves

    runs = {}
    for file in sorted(folder.glob("**/run.json")):
        try:
            runs[str(file.parent.relative_to(folder))] = Run.load(file.parent)
        except InputError as error:
            say(f"warning: {error}")
    if not runs:
        raise InputError(f"There is no run in {folder}: train writes one")
    labels = {"token_loss": "loss", **metric_labels()}
    rows = {name: _row(run, labels) for name, run in runs.items()}
    if as_json:
        print_json(rows)
    else:
        width = max(len(name) for name in (*rows, "run"))
        form = f"{{:{width}}}  {{:8}}  {{:>9}}  {{:>9}}" + "  {:>6}" * len(labels)
        typer.echo(form.format("run", "status", "updates", "best at", *labels.values()))
        for name, row in rows.items():
            typer.echo(form.format(name, *map(_cell, row.values())))
    if curves is not None:
        trained = {name: run for name, run in runs.items() if run.last and run.last.step}
        figure = training_curves({name: run.metrics() for name, run in trained.items()})
        figure.savefig(curves, dpi=144)
        say(f"Curves: {curves}")


def _row(run: Run, labels: Iterable[str]) -> dict[str, Any]:
    best = run.best.metrics if run.best else {}
    return {
        "status": run.status,
        "step": max((saved.step for saved in (*run.checkpoints, *run.states)), default=0),
        "best_step": run.best.step if run.best else None,
        **{name: best.get(f"val_{name}") for name in labels},
    }


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
