"""The import of published Marian models."""
