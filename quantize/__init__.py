"""The quantization pipeline: a checkpoint in, a smaller one out, with a receipt of what it cost."""
