"""The contracts, executable: conformance kits and fakes that third parties run in three lines."""
