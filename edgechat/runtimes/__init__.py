"""A runtime is a loaded model that decodes batches of tokens against a KV cache that it owns."""
