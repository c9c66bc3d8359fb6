"""Protected strings: placeholders, tags, addresses and symbols that a translation keeps."""
