"""The files that results are written to."""
