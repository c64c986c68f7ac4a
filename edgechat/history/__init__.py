"""Conversations, in SQLite."""
