"""The making of ensembles."""
