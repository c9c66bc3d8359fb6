"""What Marian's models have: the layout of their weights, and their tokenizer."""
