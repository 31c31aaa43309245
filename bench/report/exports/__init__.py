"""What other programs read: typed frames, JSON, and the formats of other tools."""
