"""From a run to a served model: SavedModel and session. Imports neither `trainers` nor `cli`."""
