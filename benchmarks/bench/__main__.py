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

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Reads the command line."""
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
    # The modules are imported here, because each system's process imports this one first.
    if arguments.do != "report":
        cases = [case for case in all_cases() if case["id"].startswith(tuple(arguments.only))]
        if arguments.quick:
            cases = [{**case, **QUICK[case["id"]]} for case in cases if case["id"] in QUICK]
        for case in cases:
            if case["kind"] == "multi30k":
                case |= {"run": arguments.run, "data": arguments.data}
            case["systems"] = arguments.systems or case["systems"]
    if arguments.do == "run":
        from bench.run import measure

        measure(cases, rounds, 1 if arguments.quick else arguments.rounds)
    elif arguments.do == "profile":
        from bench.profiler import print_profile

        if arguments.systems is None:
            parser.error("profile needs --systems, of TensorFlow")
        if any(case["kind"] == "multi30k" and not (case["run"] and case["data"]) for case in cases):
            parser.error("multi30k needs --run and --data (or MULTI30K)")
        for case in cases:
            for system in case["systems"]:
                print_profile(case, system)
    elif not rounds.exists():
        raise SystemExit(f"There is no {rounds}: `bench run` writes it")
    else:
        import pandas as pd

        from bench.report import compact, write

        table = pd.read_csv(rounds)
        page = (build if arguments.quick else ROOT / "docs") / "benchmarks.md"
        write(table, page)
        print(f"Wrote {page}")
        if not arguments.quick:
            release = metadata.version("keras3-transformer").rsplit(".", 1)[0]
            path = ROOT / "benchmarks" / "results" / f"{release}.csv"
            compact(table).to_csv(path, index=False, float_format="%.4g")
            print(f"Wrote {path}")


if __name__ == "__main__":
    main()
