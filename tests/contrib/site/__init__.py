"""A small site that includes the package's addresses, for servers and workers that are real."""
