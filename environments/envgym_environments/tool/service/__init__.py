"""Services with a database, policies and a user: an agent helps, graded by what it changed and told."""
