"""What a trial does: one module for each phase."""
