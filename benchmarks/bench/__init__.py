"""The benchmark: this package and its peers, side by side in one run.

    PYTHONPATH=benchmarks build/bench-venv/bin/python -m bench run --only decoding/base
    PYTHONPATH=benchmarks build/bench-venv/bin/python -m bench report

`cases` says what is measured, by which *systems*. A system is this package in one of its forms, or
a peer. Each lives in a process of its own (`worker`), and all systems of a case take turns in it
(`driver`): A B C A B C. What came out goes to a JSON file, every repeat of it; `figures` reckons
with it, and `report` and `pictures` make the page.

A system is a class with three methods:

    prepare(case) -> None      builds, loads, compiles and warms up; not timed with the rest
    run() -> output            what is timed
    count(output) -> dict      "tokens", and what else is to be written down

All of them get the same inputs (`inputs`) and, where a peer can take them, the same weights
(`models`, `convert`).
"""
