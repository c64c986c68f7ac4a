"""The engine's own process: the host inside, the client outside, and the messages between."""
