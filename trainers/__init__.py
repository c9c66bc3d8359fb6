"""From text to a run: data, fitting and scores. Imports neither `export` nor `cli`."""
