"""The import of published models."""
