"""Credit: pure functions from groups of episodes to one float per sampled token."""
