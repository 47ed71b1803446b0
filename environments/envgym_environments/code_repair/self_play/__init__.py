"""Self-play on real repositories (SSR): one policy injects bugs, another repairs them, and both learn."""
