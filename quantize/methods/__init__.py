"""One short file per quantization method."""
