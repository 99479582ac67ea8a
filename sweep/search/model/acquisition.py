"""What the next launch is worth: the expected improvement it brings per minute, launch included.

A launch shows its configuration's value with noise and moves the belief about every other. Its worth is by how much
it is expected to raise the best posterior mean among what was measured, itself then among it: the knowledge gradient
for correlated beliefs (Frazier, Powell & Dayanik 2009), which for a new configuration is the expected improvement
(Jones, Schonlau & Welch 1998) less what noise hides, and for one that ran is what measuring it again tells about
near-ties. Times the chance that it launches and keeps the constraints, over its minutes. Several objectives: the mean
over weighted sums of log values, each objective alone among them (after Knowles' ParEGO, 2006), so that both ends and
the middle of the front draw launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.model import Objective
from sweep.search.model.fit import CostModel
from sweep.search.model.gaussian import Array, Index

# Chance that a proposal explores: the least known configuration of those expected within EXPLORE_WITHIN of the best.
# Before so many were measured every launch explores as it is, and the least known one is the strangest.
EXPLORE = 0.05
EXPLORE_WITHIN = 0.1
EXPLORE_FROM = 4
# What a launch shows, in standard deviations, and the chance of it.
NODES = np.linspace(-6.0, 6.0, 61)
CHANCES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
# Residuals above this are worth telling the user about.
MISFIT = 0.1
# So many standard deviations behind the best, a launch is not made for its own chances.
HOPELESS = 3.0


def weights(objectives: int, rng: np.random.Generator) -> Array:
    """(m, objectives): each alone, then one random mixture."""
    alone = np.eye(objectives)
    return alone if objectives == 1 else np.concatenate([alone, rng.dirichlet(np.ones(objectives), size=1)])


def score(model: CostModel, allowed: Index, rng: np.random.Generator) -> tuple[Array, bool]:
    """(n,) worth per minute of every configuration, and whether this proposal explores, which it can only where one of
    ``allowed`` is expected near the best."""
    mixtures = weights(len(model.outlooks), rng)
    measured = np.array(sorted(set(model.measured)), dtype=np.intp)
    if len(measured) >= EXPLORE_FROM and rng.random() < EXPLORE:
        outlook = model.outlooks[int(rng.integers(len(model.outlooks)))]
        best = max(model.measured, key=lambda i: (outlook.mean[i], -i))
        near = outlook.mean >= outlook.mean[best] + np.log1p(-EXPLORE_WITHIN)
        if near[allowed].any():
            return np.where(near, outlook.spread(best), 0.0) * model.launches / model.minutes, True
    every = np.arange(len(model.configs), dtype=np.intp)
    between = [outlook.covariance(measured, every) for outlook in model.outlooks]
    total = np.sum([improvement(model, mixture, measured, between) for mixture in mixtures], axis=0)
    return total / len(mixtures) * model.launches / model.minutes, False


def improvement(model: CostModel, mixture: Array, measured: Index, between: Sequence[Array]) -> Array:
    """(n,) expected improvement of one weighted sum of log objectives; nothing measured: an optimistic value.
    ``between``: per objective, the covariance of ``measured`` with every configuration."""
    parts = [(w, o, c) for w, o, c in zip(mixture, model.outlooks, between, strict=True) if w > 0]
    mean = np.sum([w * o.mean for w, o, _ in parts], axis=0)
    var = np.sum([w**2 * o.var for w, o, _ in parts], axis=0)
    if not len(measured):
        return np.asarray(np.exp(mean + np.sqrt(var) - np.max(mean + np.sqrt(var))))
    best = int(np.argmax(mean[measured]))
    shown = np.sqrt(var + np.sum([(w * o.noise) ** 2 for w, o, _ in parts]))
    # By how much each mean moves per standard deviation of what is shown, beside the best measured one's.
    moves = np.sum([w**2 * c for w, _, c in parts], axis=0) / shown
    gap, slope = mean - mean[measured[best]], var / shown - moves[best]
    gain = np.maximum(gap[:, None] + slope[:, None] * NODES, 0.0)
    for one, other in enumerate(measured):
        np.maximum(gain, gap[other] + (moves[one] - moves[best])[:, None] * NODES, out=gain)
    return np.asarray(gain @ CHANCES)


def why(model: CostModel, chosen: int, explores: bool) -> str:
    """One line for the user: the expected gain over the best measured arm, in the objective where it may matter most,
    and what is least known about it; or which near-tie a second launch is to decide. Where it can hardly win itself,
    that it is launched for what it tells about others."""
    standing = _standing(model, chosen)
    of = f" in {standing.objective.key}" if len(model.outlooks) > 1 else ""
    rival = None if standing.rival is None else model.configs[standing.rival].label()
    if chosen in model.measured and rival is not None:
        return (
            f"measured again: expected {100 * np.expm1(standing.lead):+.1f} %{of} against {rival}, "
            f"which the launches so far leave uncertain (± {100 * standing.spread:.1f} %)"
        )
    length = model.accept_length.var[chosen]
    step = model.step_time(standing.objective.concurrency).var[chosen]
    tree = model.configs[chosen]
    if step >= length:
        unsure = f"step time at {tree.num_draft_tokens} draft tokens" if tree.num_draft_tokens else "step time"
    else:
        unsure = f"acceptance at depth {tree.num_steps}" if tree.num_steps else "acceptance"
    text = f"uncertain {unsure} (± {100 * np.sqrt(max(step, length)):.1f} %)"
    if rival is not None:
        if standing.lead < -HOPELESS * standing.spread:
            text = f"launched for what it tells about others: {text}"
        text = f"expected {100 * np.expm1(standing.lead):+.1f} %{of} over {rival}; {text}"
    if max(model.misfit) > MISFIT:
        text += "; measurements stray from the cost model, so what was measured counts for more"
    return "exploring: " + text if explores else text


@dataclass(frozen=True)
class _Standing:
    """A configuration against its ``rival``, the best other measured one (None: nothing else was measured), in one
    objective: ``lead`` and its standard deviation ``spread``, in logs."""

    objective: Objective
    rival: int | None
    lead: float = 0.0
    spread: float = 0.0


def _standing(model: CostModel, chosen: int) -> _Standing:
    """In the objective where a launch may matter most: where a new one stands highest, a measured one nearest."""
    others = [i for i in model.measured if i != chosen]
    if not others:
        return _Standing(model.objectives[0], None)
    found = []
    for objective, outlook in zip(model.objectives, model.outlooks, strict=True):
        rival = max(others, key=lambda i, mean=outlook.mean: (mean[i], -i))  # type: ignore[misc] # a default binds it
        lead, spread = float(outlook.mean[chosen] - outlook.mean[rival]), float(outlook.spread(rival)[chosen])
        found.append(_Standing(objective, rival, lead, spread))
    again = chosen in model.measured
    return max(found, key=lambda s: -abs(s.lead / s.spread) if again else s.lead / s.spread)
