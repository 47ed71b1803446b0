"""Who samples tokens: policies over models that run in this process."""
