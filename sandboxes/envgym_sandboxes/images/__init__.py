"""Images of worlds: root file systems from recipes or files, named, and identified by their content."""
