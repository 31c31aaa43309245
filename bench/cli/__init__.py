"""The command line: words to a checked request, ``list``, and the terminal's display."""
