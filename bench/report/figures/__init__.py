"""The report's figures, drawn with matplotlib."""
