"""The names and quirks of each family of models."""
