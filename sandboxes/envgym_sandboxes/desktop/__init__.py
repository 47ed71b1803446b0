"""A display with real applications in any sandbox: see `envgym.screen`."""
