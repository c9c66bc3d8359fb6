"""What published models have: the layout of their weights, and their tokenizers."""
