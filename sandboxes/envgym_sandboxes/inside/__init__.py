"""Programs that run inside a sandbox, in whatever Python there is; they need nothing but the standard library."""
