"""Running submitted code on given data in a sandbox, with what it did told and measured from outside of it."""
