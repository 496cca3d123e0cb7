"""The places that keep sessions: the database, JSONL files, or the process's memory."""
