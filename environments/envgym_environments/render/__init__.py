"""Write code whose picture looks like another one: render, compare, improve (RRVF, arXiv 2507.20766)."""
