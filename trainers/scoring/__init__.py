"""Test sets, translations and their scores."""
