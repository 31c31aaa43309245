"""The command ``compare``: runs against earlier runs of the same questions, and both measured by turns."""
