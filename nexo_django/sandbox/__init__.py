"""Sandboxes: where an agent's tools read, write and run, and what they can't get out of."""
