"""From texts to translations: groups of rows, the beam search, and its step function."""
