"""What may stay in a set of tasks: no near-duplicates, nothing that is held out, and files of known licence."""
