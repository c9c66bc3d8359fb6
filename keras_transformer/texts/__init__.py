"""From strings to strings: texts, their sentences, and the beginnings of translations."""
