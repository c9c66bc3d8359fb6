"""The benchmark: this package and its peers, side by side in one run.

    PYTHONPATH=benchmarks build/bench-venv/bin/python -m bench run --only decoding/base
    PYTHONPATH=benchmarks build/bench-venv/bin/python -m bench report

`cases` lists what is measured and by which *systems*: a form of this package (`ours`) or a peer
(`peer_*`). `run` gives each system a process of its own, and the systems of a case take turns.
`report` makes the page of the rounds. All systems get the same inputs (`inputs`), and those that
translate have the same weights (`models`). A system is a class with three methods:

    prepare(case) -> None      builds, loads, compiles and warms up
    run() -> output            the part that is timed
    count(output) -> dict      "tokens" and other columns of the table
"""
