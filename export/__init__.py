"""From a run to a served model: SavedModel and session. May import `keras_transformer` only."""
