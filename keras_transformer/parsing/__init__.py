"""Constituency parsing (section 6.3): trees, their symbols and constraint, and their tokenizer."""
