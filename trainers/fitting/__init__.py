"""From a prepared corpus to a run."""
