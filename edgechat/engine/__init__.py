"""Tokens in, tokens out. Runs in the engine's process only."""
