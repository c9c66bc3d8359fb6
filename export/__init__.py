"""From a run to a served model: SavedModel and Session. May import the model only."""
