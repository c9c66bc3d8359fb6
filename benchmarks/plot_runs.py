"""Draws the validation curves of runs, for docs/results.md.

pip install matplotlib
python benchmarks/plot_runs.py OUTPUT.png NAME=RUN [NAME=RUN ...]
"""

import sys

import matplotlib.pyplot as plt

from keras_transformer.run import Run

CURVES = {"val_perplexity": "Perplexity per subword", "val_bleu": "BLEU, greedy search"}


def main(output: str, *named_runs: str) -> None:
    """Draws a panel a metric, a line a run."""
    figure, panels = plt.subplots(1, len(CURVES), figsize=(10, 4), layout="constrained")
    for panel, (metric, label) in zip(panels, CURVES.items(), strict=True):
        for named in named_runs:
            name, _, path = named.partition("=")
            lines = [line for line in Run.load(path).metrics() if metric in line]
            steps, values = zip(*((line["step"], line[metric]) for line in lines), strict=True)
            panel.plot(steps, values, marker=".", label=name)
        panel.set(xlabel="Updates", ylabel=label, title=f"Validation: {label.lower()}")
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[0].legend()
    figure.savefig(output, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
