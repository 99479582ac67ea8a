"""specsweep: find the speculative-decoding configuration that pays, and say how sure that is."""

__version__ = "0.1.0"
