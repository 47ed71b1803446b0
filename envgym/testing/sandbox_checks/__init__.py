"""The checks of `envgym.testing.check_sandbox`, a module per part of the contract."""
