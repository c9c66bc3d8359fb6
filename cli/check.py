"""`keras-transformer check`, and how other commands find an export."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from keras_transformer.cli.console import ProgressBar, load_tensorflow, print_json, say
from keras_transformer.cli.options import Json
from keras_transformer.errors import InputError
from keras_transformer.export.metadata import find_version, read_metadata
from keras_transformer.export.options import computes_bfloat16
from keras_transformer.run import runs_inside

if TYPE_CHECKING:
    from keras_transformer.export.check import Finding


def find_export(model: str | Path, expected: str = "an export, with a saved_model.pb") -> Path:
    """Returns the newest version of a model, or the version itself; warns if it is slow here."""
    version = find_version(model)
    if version is None:
        raise InputError(f"{model} must be {expected}{_inside(model)}")
    compute = None
    with contextlib.suppress(InputError):  # of another program's export
        compute = read_metadata(version).get("compute")
    if compute == "bfloat16" and not computes_bfloat16():
        say(
            f"warning: {version} computes in bfloat16, for which this processor has no "
            "instructions, so it is slow here; export with --compute float32"
        )
    return version


def _inside(folder: str | Path) -> str:
    """Returns the end of a message about a folder: the runs and exports below it, if any."""
    if not os.path.lexists(folder):
        return "; it does not exist"
    exports = {
        file.parents[1]
        for depth in ("*", "*/*")
        for file in Path(folder).glob(f"{depth}/[0-9]*/saved_model.pb")
    }
    names = sorted(map(str, exports.union(runs_inside(Path(folder)))))
    return f"; there is {' and '.join(names[:5])}" if names else ""


def check_command(
    model: Annotated[
        Path, Argument(metavar="SAVEDMODEL", help="An export, MODELS/NAME[/VERSION].")
    ],
    as_json: Json = False,
) -> None:
    """Check that a model server would load an export.

    The command loads it as TF Serving does, and compares its answers with those of its model.
    """
    load_tensorflow()
    from keras_transformer.export.check import check_saved_model, require_success

    path = find_export(model)
    with ProgressBar("Checking"):
        findings = check_saved_model(path, (lambda finding: None) if as_json else say_finding)
    if as_json:
        print_json({finding.name: finding._asdict() for finding in findings})
    require_success(findings, f"{path} failed its check")
    say(f"Check: no problems found: {path}")


def say_finding(finding: "Finding") -> None:
    verdict = "FAILED" if finding.problem else "ok"
    say(f"  {finding.name:10} {verdict:6} {finding.problem or finding.detail}")
