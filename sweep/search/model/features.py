"""Configurations as numbers: what drafts, what is verified, and where two configurations are near each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.model import ArmConfig, Scalar
from sweep.search.model.gaussian import Array, Index

# Octaves over which the residual forgets half of what it knows.
OCTAVES = 2.0


@dataclass(frozen=True)
class Vocabulary:
    """Categories of a space in first-seen order: drafter groups (algorithm, draft model), values of extra axes."""

    groups: Mapping[tuple[str | None, str | None], int]
    extras: Mapping[tuple[str, Scalar], int]
    depth: int

    @classmethod
    def of(cls, configs: Sequence[ArmConfig]) -> Vocabulary:
        groups: dict[tuple[str | None, str | None], int] = {}
        extras: dict[tuple[str, Scalar], int] = {}
        for config in configs:
            groups.setdefault((config.algorithm, config.draft_model), len(groups))
            for pair in config.extra:
                extras.setdefault(pair, len(extras))
        return cls(groups, extras, max((_depth(c) for c in configs), default=1))


@dataclass(frozen=True)
class Table:
    """Arrays over n configurations. ``depth`` drafts in a row that can be accepted; ``steps`` drafter passes per verify
    step; ``verified`` draft tokens checked beside the sampled one; ``width`` alternatives per depth at most."""

    group: Index
    depth: Index
    steps: Array
    topk: Array
    verified: Array
    width: Array
    no_graph: Array
    extras: Array
    near: Array  # (n, k) coordinates of the residual: depth, topk, verified, ..., load (0 here)

    def __len__(self) -> int:
        return len(self.depth)


def _depth(config: ArmConfig) -> int:
    if not config.speculative:
        return 0
    verified = max((config.num_draft_tokens or 2) - 1, 1)
    return min(config.num_steps or verified, verified)


def table(configs: Sequence[ArmConfig], vocabulary: Vocabulary) -> Table:
    """The arrays of these configurations. A lookup algorithm without steps (NGRAM) drafts as deep as it verifies and
    costs no drafter pass."""
    depth = np.array([_depth(c) for c in configs], dtype=np.intp)
    steps = np.array([float(c.num_steps or 0) for c in configs])
    topk = np.array([float(c.topk or 1) for c in configs])
    verified = np.array([float((c.num_draft_tokens or _depth(c) + 1) - 1) if c.speculative else 0.0 for c in configs])
    width = np.maximum(1.0, np.minimum(topk, verified / np.maximum(depth, 1)))
    no_graph = np.array([0.0 if c.cuda_graph else 1.0 for c in configs])
    group = np.array([vocabulary.groups.get((c.algorithm, c.draft_model), 0) for c in configs], dtype=np.intp)
    extras = np.zeros((len(configs), len(vocabulary.extras)))
    for row, config in enumerate(configs):
        for pair in config.extra:
            if pair in vocabulary.extras:
                extras[row, vocabulary.extras[pair]] = 1.0
    numbers = np.stack([np.log2(1.0 + depth), np.log2(topk), np.log2(1.0 + verified)], axis=1) / OCTAVES
    categories = np.eye(max(len(vocabulary.groups), 1))[group] * 0.5
    load = np.zeros((len(configs), 1))
    near = np.concatenate([numbers, no_graph[:, None], categories, extras * 0.7, load], axis=1)
    return Table(group, depth, steps, topk, verified, width, no_graph, extras, near)
