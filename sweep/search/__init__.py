"""What to launch next: samplers by name, the cost model of speculative decoding, and when to stop.

Entry points: :class:`sweep.search.proposer.Proposer` and the values in :mod:`sweep.search.view`.
"""
