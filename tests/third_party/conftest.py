"""The package's own tests run against its installed copy, not from here."""

collect_ignore = ["coinflip"]
