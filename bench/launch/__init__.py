"""Launchers: trials run on this machine, on the ranks of torchrun or srun, or on a Ray cluster."""
