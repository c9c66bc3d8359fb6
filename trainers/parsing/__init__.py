"""Treebanks, and the scores of trees."""
