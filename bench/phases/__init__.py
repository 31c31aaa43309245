"""What a trial does: one module for each phase, and what several of them share."""
