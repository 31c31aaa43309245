"""The instrument: everything between a command line and a report.

Words that all packages use:

- suite: a model, its data and its recipe; a precision: how it computes, such as fp32 or amp-bf16;
- placement: the device, or the devices together, that a trial runs on;
- cell: a suite on a placement at one batch size. Within it precisions are compared;
- arm: one precision (and techniques) of a comparison; the baseline is fp32;
- phase: a kind of measurement, such as speed or memory, a folder of ``bench/phases/``;
- trial: a phase in a cell, for one arm or for all: what one process measures. A replicate is its
  repetition in another process;
- block: steps of one arm that are timed together; a round has two blocks of each arm, in an order
  such as ABBA.
"""

__version__ = "0.1.0"
