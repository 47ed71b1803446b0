"""envgym: an episode is a path in a tree of turns, played in a world that can be forked at any turn."""
