"""MiniWoB++: 130 small pages, each with its own problem by seed and its own reward."""
