"""The ensemble: several trained models as one, whose probabilities are the mean of theirs."""
