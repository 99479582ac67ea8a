"""What the next launch is worth: expected improvement per minute, launch included.

One objective: E[max(0, f(x) - f(best measured))] with the correlation of the two (Jones, Schonlau & Welch 1998), times
the chance that x launches and keeps the constraints, over its minutes. Several: the mean of that over weighted sums of
log values, each objective alone among them (after Knowles' ParEGO, 2006), so that both ends and the middle of the front
draw launches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from sweep.search.model.fit import CostModel
from sweep.search.model.gaussian import Array, Index

# Chance that a proposal explores: the least known configuration of those expected within EXPLORE_WITHIN of the best.
EXPLORE = 0.05
EXPLORE_WITHIN = 0.1
# Residuals above this are worth telling the user about.
MISFIT = 0.1


def weights(objectives: int, rng: np.random.Generator) -> Array:
    """(m, objectives): each alone, then one random mixture."""
    alone = np.eye(objectives)
    return alone if objectives == 1 else np.concatenate([alone, rng.dirichlet(np.ones(objectives), size=1)])


def expected_improvement(mean: Array, sd: Array) -> Array:
    """E[max(0, z)] for z ~ N(mean, sd^2)."""
    ratio = mean / sd
    return np.asarray(mean * ndtr(ratio) + sd * np.exp(-0.5 * ratio**2) / np.sqrt(2.0 * np.pi))


def score(model: CostModel, allowed: Index, rng: np.random.Generator) -> tuple[Array, bool]:
    """(n,) worth per minute of every configuration, and whether this proposal explores, which it can only where one of
    ``allowed`` is expected near the best."""
    mixtures = weights(len(model.outlooks), rng)
    if model.measured and rng.random() < EXPLORE:
        outlook = model.outlooks[int(rng.integers(len(model.outlooks)))]
        best = max(model.measured, key=lambda i: (outlook.mean[i], -i))
        near = outlook.mean >= outlook.mean[best] + np.log1p(-EXPLORE_WITHIN)
        if near[allowed].any():
            return np.where(near, outlook.spread(best), 0.0) * model.launches / model.minutes, True
    total = np.sum([improvement(model, mixture) for mixture in mixtures], axis=0)
    return total / len(mixtures) * model.launches / model.minutes, False


def improvement(model: CostModel, mixture: Sequence[float] | Array) -> Array:
    """(n,) expected improvement of one weighted sum of log objectives; nothing measured: an optimistic value."""
    pairs = [(w, o) for w, o in zip(mixture, model.outlooks, strict=True) if w > 0]
    mean = np.sum([w * o.mean for w, o in pairs], axis=0)
    if not model.measured:
        sd = np.sum([w * np.sqrt(o.var) for w, o in pairs], axis=0)
        return np.asarray(np.exp(mean + sd - np.max(mean + sd)))
    best = max(model.measured, key=lambda i: (mean[i], -i))
    # Objectives on one launch move together; adding their spreads is the cautious end.
    sd = np.sum([w * o.spread(best) for w, o in pairs], axis=0)
    return expected_improvement(mean - mean[best], sd)


def why(model: CostModel, chosen: int, explores: bool) -> str:
    """One line for the user: the expected gain over the best measured arm, and what is least known about it."""
    outlook = model.outlooks[0]
    length, level = model.accept_length.var[chosen], model.levels[0]
    step = model.step_time(level).var[chosen]
    tree = model.configs[chosen]
    if step >= length:
        unsure = f"step time at {tree.num_draft_tokens} draft tokens" if tree.num_draft_tokens else "step time"
    else:
        unsure = f"acceptance at depth {tree.num_steps}" if tree.num_steps else "acceptance"
    text = f"uncertain {unsure} (± {100 * np.sqrt(max(step, length)):.1f} %)"
    if model.measured:
        best = max(model.measured, key=lambda i: (outlook.mean[i], -i))
        gain = float(np.expm1(outlook.mean[chosen] - outlook.mean[best]))
        text = f"expected {100 * gain:+.1f} % over {model.configs[best].label()}; " + text
    if max(model.misfit) > MISFIT:
        text += "; measurements stray from the cost model, so what was measured counts for more"
    return "exploring: " + text if explores else text
