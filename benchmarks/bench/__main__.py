"""Measures cases, in turns with the peers, and writes the page of the results.

    python -m bench run [--only PREFIX ...] [--quick] [--run RUN] [--data FOLDER]
    python -m bench report [--quick]
    python -m bench profile --only PREFIX ... --systems SYSTEM ...

The results of a case are written to build/bench/rounds.csv as soon as it is measured, and replace
older ones. After an interruption, continue with --only.
"""

import argparse
import os
from importlib import metadata
from pathlib import Path

from bench.cases import QUICK, all_cases
from keras_transformer.errors import InputError

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("run", "report", "profile"))
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="cases")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help="instead of a case's own")
    parser.add_argument("--quick", action="store_true", help="a little of everything, one round")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--run", type=Path, help="a run directory, trained on Multi30k")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("MULTI30K"), help="Multi30k; or $MULTI30K"
    )
    arguments = parser.parse_args()
    build = ROOT / "build" / "bench" / ("quick" if arguments.quick else "")
    rounds = build / "rounds.csv"
    cases = [case for case in all_cases() if case["id"].startswith(tuple(arguments.only))]
    if arguments.quick:
        cases = [{**case, **QUICK[case["id"]]} for case in cases if case["id"] in QUICK]
    for case in cases:
        if case["kind"] == "multi30k":
            case |= {"run": arguments.run, "data": arguments.data}
        case["systems"] = arguments.systems or case["systems"]
    # The modules are imported here, because each system's process imports this one first.
    if arguments.do == "run":
        from bench.run import measure

        measure(cases, rounds, 1 if arguments.quick else arguments.rounds)
    elif arguments.do == "profile":
        from bench.profiler import print_profile

        if arguments.systems is None:
            parser.error("profile needs --systems, of TensorFlow")
        for case in cases:
            for system in case["systems"]:
                print_profile(case, system)
    elif not rounds.exists():
        parser.error(f"there is no {rounds}: `bench run` writes it")
    else:
        from bench.report import write

        page = (build if arguments.quick else ROOT / "docs") / "benchmarks.md"
        release = metadata.version("keras3-transformer").rsplit(".", 1)[0]
        results = build if arguments.quick else ROOT / "benchmarks" / "results"
        write(rounds, page, results / f"{release}.csv")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
