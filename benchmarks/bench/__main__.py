"""Measures cases, in turns with the peers, and makes the page of what was measured.

python -m bench list [--only PREFIX ...]
python -m bench run [--only PREFIX ...] [--targets] [--quick] [--again] [--run RUN] [--data FOLDER]
python -m bench report

A case that the results hold already, measured with the same code, the same RUN and all the systems
that are asked for, is not measured again without --again. What is measured again has all the
systems that it had before. Every case is written as soon as it is done, so a run that was
interrupted goes on where it ended.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import start
from bench.cases import (
    CEILINGS,
    CT2,
    FIT,
    FIT_XLA,
    HUB_FIT_XLA,
    MARIAN,
    MEMORY,
    OURS,
    PROCESS,
    SESSION,
    TORCH,
    Case,
    all_cases,
    sizes_of,
    smoke_cases,
)
from bench.driver import ENVIRONMENT, Crew, take_turns
from bench.figures import BUSY, count_flops
from bench.inputs import pair_lengths, texts
from bench.models import BUILD, ROOT, digest, folder_of, name_of_run, saved_model_of
from bench.report import write
from bench.worker import THREADS

RESULTS = ROOT / "benchmarks" / "results.json"
PACKAGES = (
    "keras3-transformer",
    "tensorflow",
    "keras",
    "keras-hub",
    "torch",
    "transformers",
    "ctranslate2",
    "numpy",
)
# What the targets are about: prefixes of cases, and who must be there.
TARGETS: dict[str, tuple[str, ...]] = {
    "decoding/base/forced/S25/B32/K4": (SESSION, PROCESS, CT2, MARIAN),
    "decoding/base/forced/S25/B1/K4": (SESSION, PROCESS, CT2, MARIAN),
    "multi30k/K4": (SESSION, PROCESS, CT2),
    "training/tiny/multi30k": (FIT, FIT_XLA, HUB_FIT_XLA, TORCH),
    "training/base/multi30k": (FIT, FIT_XLA, HUB_FIT_XLA, TORCH),
    "training/base/full": (FIT, FIT_XLA, TORCH),
    "growth-base/target": (PROCESS, MEMORY),
}
# Little of everything, within three minutes.
QUICK_CASES: dict[str, tuple[str, ...]] = {
    "decoding/tiny/forced/S25/B32/K4": (SESSION, CT2),
    "decoding/base/forced/S25/B32/K4": (SESSION, CT2),
    "multi30k/K4": (SESSION, CT2),
    "training/tiny/multi30k": (FIT, TORCH),
    "growth-small/target/00032": (PROCESS, MEMORY),
    "growth-small/target/00128": (PROCESS, MEMORY),
    "pipeline": ("pipeline",),
}


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("list", "run", "report"))
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="cases")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help="instead of a case's own")
    parser.add_argument("--targets", action="store_true", help="only what the targets are about")
    parser.add_argument("--quick", action="store_true", help="a little of everything, once")
    parser.add_argument("--smoke", action="store_true", help="whether all works: a tiny model")
    parser.add_argument("--again", action="store_true", help="also what has been measured")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--seconds", type=float, default=45.0, help="rounds end after so long")
    parser.add_argument("--run", type=Path, help="a run directory, trained on Multi30k")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("MULTI30K"), help="Multi30k; or $MULTI30K"
    )
    parser.add_argument("--results", type=Path, help=f"instead of {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--page", type=Path, help="instead of docs/benchmarks.md")
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)  # for TensorFlow in this process, and in all that it starts
    arguments.once = arguments.quick or arguments.smoke
    folder = BUILD / ("smoke" if arguments.smoke else "quick")
    results = arguments.results or (folder / "results.json" if arguments.once else RESULTS)
    page = arguments.page or (folder if arguments.once else ROOT / "docs") / "benchmarks.md"
    if arguments.run is not None and not (arguments.run / "run.json").is_file():
        parser.error(f"--run must be a run directory. Received: {arguments.run}")
    chosen = list(choose(arguments))
    if arguments.do == "list":
        for case in chosen:
            print(f"{case['id']:40} {' '.join(case['systems'])}")
    elif arguments.do == "run":
        results.parent.mkdir(parents=True, exist_ok=True)
        measure(chosen, arguments, results)
    elif not results.exists():
        raise SystemExit(f"There is no {results}: `bench run` makes it")
    else:
        write(json.loads(results.read_text()), page)
        say(f"Wrote {page}")


def choose(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yields the cases that the command line names, with their systems."""
    among = QUICK_CASES if arguments.quick else TARGETS if arguments.targets else {"": ()}
    cases = smoke_cases() if arguments.smoke else all_cases()
    for case in cases:
        if not any(case["id"].startswith(prefix) for prefix in arguments.only):
            continue
        for prefix, systems in among.items():
            if case["id"].startswith(prefix):
                yield {**case, "systems": arguments.systems or systems or case["systems"]}
                break


def measure(cases: list[Case], arguments: argparse.Namespace, path: Path) -> None:
    """Measures cases and writes each as soon as it is done."""
    results = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    here = machine()
    for done in results["cases"].values():
        done.setdefault("made_on", made_on(results["machine"]))
    results["machine"] = here
    rounds, seconds = (1, 0.0) if arguments.once else (arguments.rounds, arguments.seconds)
    code = digest("keras_transformer", "trainers", "export")
    crew = Crew(BUILD / "logs")
    began = time.monotonic()
    with contextlib.closing(crew):
        for number, case in enumerate(cases, 1):
            done = results["cases"].get(case["id"], {"systems": {}})
            if case["kind"] == "multi30k" and arguments.run is not None:
                case["model"] = name_of_run(arguments.run)
            is_whole = (
                done.get("code") == code
                and done.get("model") == case.get("model")
                and done.get("made_on") == made_on(here)
                and set(case["systems"]) <= set(done["systems"])
            )
            if is_whole and not (arguments.again or arguments.once):
                continue
            if not arguments.once:
                among = {*case["systems"], *CEILINGS}
                earlier = [name for name in done["systems"] if name not in among]
                case["systems"] = [*case["systems"], *earlier]
            say(
                f"{case['id']}: case {number} of {len(cases)}, "
                f"{(time.monotonic() - began) / 60:.1f} minutes so far"
            )
            try:
                prepare(case, arguments)
            except SkippedCaseError as reason:
                say(f"  skipped: {reason}")
                continue
            busy = busy_cores()
            if busy > BUSY:
                say(f"  other work takes {busy:.1f} cores: times mean little")
            if case["kind"] == "start":
                found = start.measure(case, case["systems"], rounds, say)
            else:
                found = take_turns(crew, case, case["systems"], rounds, seconds, say)
            judge(case, found)
            kept = {
                key: case[key]
                for key in case
                if key not in ("texts", "rows", "references", "saved_model")
            }
            results["cases"][case["id"]] = {
                **kept,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "busy": busy,
                "code": code,
                "made_on": made_on(here),
                "systems": found,
            }
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(results, indent=1))
            os.replace(temporary, path)
    say(f"Done in {(time.monotonic() - began) / 60:.1f} minutes: {path}")


class SkippedCaseError(Exception):
    """Says why a case cannot be measured here."""


def prepare(case: Case, arguments: argparse.Namespace) -> None:
    """Makes the models, and gives the case its inputs."""
    if case["kind"] == "multi30k":
        if arguments.run is None:
            raise SkippedCaseError("--run names no run directory that was trained on Multi30k")
        if arguments.data is None:
            raise SkippedCaseError("neither --data nor MULTI30K names the folder of Multi30k")
        folder = Path(arguments.data)
        source, references = (
            (folder / f"{language}.test2016.txt").read_text("utf-8").splitlines()
            for language in ("en", "de")
        )
        rows = slice(10 if arguments.smoke else 200 if arguments.quick else None)
        case["texts"], case["references"] = source[rows], references[rows]
        case["sentences"] = len(case["texts"])
    elif case["kind"] == "training":
        case["rows"] = json.loads(call("bench.inputs", json.dumps(case)))
        case["flops"] = count_flops(case, pair_lengths(case["lengths"]))
    elif "model" in case:
        case["texts"] = texts(case)
    if "model" in case:
        needed = folder_of(case["model"]) / "run"
        options = ["--run", str(arguments.run)] if case["kind"] == "multi30k" else []
        if case["kind"] != "growth":
            # Named once, for the code may change meanwhile.
            needed = saved_model_of(case["model"])
            case["saved_model"] = str(needed)
            options += ["--saved-model", str(needed)]
        if not needed.exists():
            say(f"  making the model {case['model']}")
            call("bench.models", case["model"], *options)


def call(module: str, *arguments: str) -> str:
    """Runs a module in a process of its own, and returns its last line."""
    log = BUILD / "logs" / "calls.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SkippedCaseError(f"python -m {module} failed: see {log}")
    return (done.stdout.splitlines() or [""])[-1]


def judge(case: Case, found: dict[str, dict[str, Any]]) -> None:
    """Puts in the place of the answers what they are worth, and says how fast they came."""
    answers = {name: each.pop("answers") for name, each in found.items() if "answers" in each}
    ours = next((answers[name] for name in OURS if name in answers), None)
    for name, texts_of in answers.items():
        if ours is not None:
            pairs = zip(ours, texts_of, strict=True)
            found[name]["same"] = sum(a == b for a, b in pairs) / len(ours)
        if "references" in case:
            import sacrebleu

            bleu = sacrebleu.corpus_bleu(texts_of, [case["references"]])
            found[name]["bleu"] = round(bleu.score, 2)
    for name, each in found.items():
        if each.get("seconds"):
            median = sorted(each["seconds"])[len(each["seconds"]) // 2]
            amount = f"{each['tokens'] / median:9,.0f} tokens/s" if "tokens" in each else ""
            if "flops" in each:
                amount = f"{each['flops'] / median / 1e9:9,.0f} GFLOP/s"
            same = f", {100 * each['same']:.0f} % as ours" if "same" in each else ""
            say(f"  {name:20}{median:8.2f} s {amount}{same}")


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores work while the systems wait."""

    def idle() -> int:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
        return int(fields[4]) + int(fields[5])  # idle, and waiting for a disk

    before, began = idle(), time.perf_counter()
    time.sleep(seconds)
    free = (idle() - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - began)
    return round(max(0.0, (os.cpu_count() or 1) - free), 2)


def made_on(machine: dict[str, Any]) -> dict[str, Any]:
    """What a figure depends on beside our code."""
    return {name: machine[name] for name in ("cpu", "cores", "python", "packages")}


def machine() -> dict[str, Any]:
    """What the measurements were made on."""
    cpu = next(
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    flags = Path("/proc/cpuinfo").read_text()
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": cpu,
        "vector": next((name for name in ("avx512f", "avx2") if name in flags), "no AVX2"),
        "cores": len(os.sched_getaffinity(0)),
        "threads": THREADS,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "revision": revision.stdout.strip(),
        "num_params": {size: _num_params(size) for size in ("base", "tiny")},
    }


def _num_params(size: str) -> int:
    """Parameters of a model with shared embeddings; biases and norms included."""
    sizes = sizes_of(size)
    d, f = sizes.d_model, sizes.d_ff
    attention, norm, feed_forward = 4 * (d * d + d), 2 * d, 2 * d * f + d + f
    encoder = sizes.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = sizes.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    return sizes.vocab_size * d + encoder + decoder


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
