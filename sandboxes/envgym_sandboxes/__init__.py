"""Where actions happen: sandbox backends."""
