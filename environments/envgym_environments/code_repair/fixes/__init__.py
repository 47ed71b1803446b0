"""Quick fixes of one logical line, by family: operators and values, names, statements."""
