"""The command ``compare``: runs against earlier ones of the same questions, or both by turns."""
