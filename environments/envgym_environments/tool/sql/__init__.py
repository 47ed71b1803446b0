"""Questions to SQLite databases: drawn with schema and data, explored over several turns, graded by execution."""
