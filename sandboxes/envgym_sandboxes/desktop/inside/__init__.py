"""What runs inside the sandbox, with Debian's Python: the display, its programs, and who looks at them."""
