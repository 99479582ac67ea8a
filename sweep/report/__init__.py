"""The page a study's owner reads the next morning: facts from the rows, plots, one HTML file or a Markdown text."""
