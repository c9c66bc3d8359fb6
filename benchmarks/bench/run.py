"""Measures cases and writes the table of their rounds."""

import os
import platform
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import psutil

from bench import inputs, models
from bench.cases import Case
from bench.processes import ENVIRONMENT, Row, new_process, take_starts, take_turns
from bench.systems import THREADS
from keras_transformer.errors import InputError
from keras_transformer.export.options import computes_bfloat16

PACKAGES = ("keras3-transformer", "tensorflow", "keras", "keras-hub", "torch", "transformers")
PACKAGES += ("ctranslate2", "numpy")


def measure(cases: list[Case], path: Path, num_rounds: int) -> None:
    """Measures cases, and adds the rounds of each to a CSV file as soon as it is done."""
    os.environ.update(ENVIRONMENT)
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    began = time.monotonic()
    with TemporaryDirectory(prefix="models-", dir=path.parent) as folder:
        for number, case in enumerate(cases, 1):
            minutes = (time.monotonic() - began) / 60
            print(f"{case['id']}: case {number} of {len(cases)}, {minutes:.1f} minutes so far")
            if not computes_bfloat16():  # it would take minutes
                case["systems"] = [name for name in case["systems"] if "bfloat16" not in name]
            try:
                complete(case, Path(folder), log)
            except InputError as error:  # such as a run that other systems cannot compute
                print(f"  skipped: {error}")
                continue
            row = {"case": case["id"], **_machine()}
            row |= {"sentences": len(case.get("texts", ())), "flops": inputs.case_flops(case)}
            take = take_starts if case["kind"] == "start" else take_turns
            turns, counts = take(case, num_rounds, log)
            if not turns:
                continue
            _compare(case, counts)
            found = pd.DataFrame([{**row, **counts[turn["system"]], **turn} for turn in turns])
            medians = found.groupby("system", sort=False).median(numeric_only=True)
            print(medians.dropna(axis="columns", how="all").T.to_string(), flush=True)
            rounds = pd.read_csv(path) if path.exists() else pd.DataFrame({"case": []})
            pd.concat([rounds[rounds.case != case["id"]], found]).to_csv(path, index=False)
    print(f"Done in {(time.monotonic() - began) / 60:.1f} minutes: {path}")


def complete(case: Case, folder: Path, log: Path) -> None:
    """Gives a case its inputs, and makes its model."""
    if case["kind"] == "multi30k" and not (case["run"] and case["data"]):
        raise InputError("It needs --run and --data (or MULTI30K)")
    # In another process: TensorFlow would start threads in this one.
    with new_process(log) as process:
        if case["kind"] == "training":
            case |= process.submit(inputs.batches, case).result()
        if "model" in case:
            case["folder"] = folder / case["model"]
            case.setdefault("run", case["folder"] / "run")
            process.submit(models.make, case).result()
    if case["kind"] == "multi30k":
        case["texts"], case["references"] = (
            Path(case["data"], f"{language}.test2016.txt")
            .read_text("utf-8")
            .splitlines()[: case["captions"]]
            for language in ("en", "de")
        )
    elif "model" in case:
        case["texts"] = inputs.texts(case)


def _compare(case: Case, counts: dict[str, Row]) -> None:
    """Replaces the answers by their BLEU and the share that equals our first system's."""
    answers = {name: each.pop("answers") for name, each in counts.items() if "answers" in each}
    ours = answers.get("session", answers.get("process"))
    for name, translations in answers.items():
        if ours is not None:
            same = [a == b for a, b in zip(ours, translations, strict=True)]
            counts[name]["same"] = sum(same) / len(same)
        if "references" in case:
            import sacrebleu

            bleu = sacrebleu.corpus_bleu(translations, [case["references"]], lowercase=True)
            counts[name]["bleu"] = round(bleu.score, 2)


def _machine() -> dict[str, Any]:
    """What the figures depend on, and the time."""
    info = Path("/proc/cpuinfo").read_text()
    cpu = info.split("model name\t: ")[1].splitlines()[0]
    vector = next((name for name in ("avx512f", "avx2") if name in info), "no AVX2")
    memory = round(psutil.virtual_memory().total / 2**30)
    cores = len(os.sched_getaffinity(0))
    versions = []
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # a peer that is skipped
            versions.append(f"{name} {metadata.version(name)}")
    describe = f"git -C {Path(__file__).parent} describe --always --dirty"
    return {
        "machine": f"{cpu} ({vector}), {THREADS} of {cores} cores, {memory} GiB, no GPU. "
        f"Python {platform.python_version()}, {', '.join(versions)}",
        "revision": subprocess.getoutput(describe),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "busy": round(psutil.cpu_percent(1.0) / 100 * (os.cpu_count() or 1), 2),  # by others
    }
