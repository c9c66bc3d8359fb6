"""The recurrent model that the Transformer replaces."""
