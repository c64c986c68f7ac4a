"""The widgets of the terminal app: they show data and post messages."""
