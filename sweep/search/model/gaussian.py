"""Linear-Gaussian regression: explicit terms with priors, plus a residual process for what the terms do not say.

    y(row) = basis(row) . phi + sum_r load_r(row) . delta_r(point(row)) + noise,
    phi ~ N(mean, diag(var)),   delta_r ~ GP(0, amplitude^2 k)

(Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 2.7). The amplitude of the residual and
the noise are unknown: each pair of a small grid gets its evidence, and posteriors are averaged by it. A large residual
means that the measurements contradict the terms; predictions then stay near what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
T = TypeVar("T")

# How main effects share the residual's variance among the three leading features (depth, topk, verified tokens).
MAIN_SHARES = (0.1, 0.05, 0.85)
# Of what is not a main effect, the part that is a point's own.
OWN_SHARE = 0.2
# Main effects forget faster than the joint one by this factor.
MAIN_RATE = 2.0
# Grid points whose posterior weight is below this are left out of the average.
NEGLIGIBLE = 0.1
MOST_PARTS = 12


@dataclass(frozen=True)
class Rows:
    """Linear functionals: ``basis`` (n, p), ``loads`` (n, r) on the residuals at points ``at`` (n,) of ``features``
    (m, k), of which the first three have main effects and the last is the load."""

    basis: Array
    loads: Array
    features: Array
    at: Index

    def take(self, index: Index | Sequence[int]) -> Rows:
        at = self.at[index]
        return Rows(self.basis[index], self.loads[index], self.features[at], np.arange(len(at), dtype=np.intp))

    def __len__(self) -> int:
        return len(self.basis)


def correlation(a: Array, b: Array, main: float) -> Array:
    """(n, m) correlation of the residual between points.

    The share ``main`` of it is a function of each of the first three features alone (Matern 1/2, rough enough for a
    cliff): what the form gets wrong about verified tokens it gets wrong at every depth. Main effects fade with the last
    feature, the load. The rest is a joint function of all features (Matern 3/2), a part of it each point's own.
    """
    square = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T, 0.0)
    distance = np.sqrt(3.0 * square)
    out = (1.0 - main) * ((1.0 - OWN_SHARE) * (1.0 + distance) * np.exp(-distance) + OWN_SHARE * (square < 1e-9))
    load = np.abs(a[:, -1, None] - b[None, :, -1])
    for k, share in enumerate(MAIN_SHARES):
        out += main * share * np.exp(-MAIN_RATE * np.abs(a[:, k, None] - b[None, :, k]) - load)
    return np.asarray(out)


@dataclass(frozen=True)
class Hyper:
    """One grid point: residual ``amplitude``, ``noise`` (standard deviation per unit of the rows' own scale), and the
    share of the residual that is ``main`` effects."""

    amplitude: float
    noise: float
    log_prior: float = 0.0
    main: float = 0.5


@dataclass(frozen=True)
class Prior:
    """Of the terms: ``mean`` (p,) and ``var`` (p,)."""

    mean: Array
    var: Array

    def covariances(self, a: Rows, b: Rows, points: Points | None = None) -> Covariances:
        """Between rows, for any hyperparameters: the parts that do not depend on them are kept. ``points``: between
        the rows' own points, where they are known already."""
        return Covariances((a.basis * self.var) @ b.basis.T, a, b, points or Points(a.features, b.features))

    def variance(self, a: Rows, amplitude: float) -> Array:
        return np.asarray((a.basis**2) @ self.var + amplitude**2 * (a.loads**2).sum(1))


class Points:
    """Correlation (n, m) between two sets of points for any share of main effects, each computed once."""

    def __init__(self, a: Array, b: Array) -> None:
        self._a, self._b = a, b
        self._under: dict[float, Array] = {}

    def under(self, main: float) -> Array:
        if main not in self._under:
            self._under[main] = correlation(self._a, self._b, main)
        return self._under[main]


class Covariances:
    """Prior covariance (n, m) between two sets of rows under any grid point."""

    def __init__(self, terms: Array, a: Rows, b: Rows, points: Points) -> None:
        self._terms, self._a, self._b, self._points = terms, a, b, points
        self._residual: dict[float, Array] = {}

    def under(self, hyper: Hyper) -> Array:
        if hyper.main not in self._residual:
            spread = self._points.under(hyper.main)[np.ix_(self._a.at, self._b.at)]
            self._residual[hyper.main] = spread * (self._a.loads @ self._b.loads.T)
        return np.asarray(self._terms + hyper.amplitude**2 * self._residual[hyper.main])


class Conditioned:
    """The posterior under one grid point. ``own``: the rows' covariance with themselves."""

    def __init__(
        self,
        prior: Prior,
        rows: Rows,
        y: Array,
        scale: Array,
        hyper: Hyper,
        own: Covariances | None = None,
        log_prior: float = 0.0,
    ) -> None:
        self.prior, self.rows, self.hyper = prior, rows, hyper
        covariance = (own or prior.covariances(rows, rows)).under(hyper)
        covariance[np.diag_indices(len(rows))] += (hyper.noise * scale) ** 2 + 1e-10
        self._factor = cholesky(covariance, lower=True, check_finite=False)
        innovation = y - rows.basis @ prior.mean
        self._alpha = cho_solve((self._factor, True), innovation, check_finite=False)
        self.evidence = (
            float(-0.5 * innovation @ self._alpha - np.log(np.diag(self._factor)).sum() + hyper.log_prior) + log_prior
        )

    def terms(self) -> Array:
        """Posterior mean of the terms (p,)."""
        return np.asarray(self.prior.mean + self.prior.var * (self.rows.basis.T @ self._alpha))

    def residual(self, features: Array) -> Array:
        """Posterior mean of each residual process at points of ``features`` (n, k): (n, r)."""
        weighted = np.zeros((len(self.rows.features), self.rows.loads.shape[1]))
        np.add.at(weighted, self.rows.at, self.rows.loads * self._alpha[:, None])
        near = correlation(features, self.rows.features, self.hyper.main)
        return np.asarray(self.hyper.amplitude**2 * near @ weighted)

    def mean(self, target: Rows) -> Array:
        residual = self.residual(target.features)[target.at]
        return np.asarray(target.basis @ self.terms() + (target.loads * residual).sum(1))

    def explained(self, cross: Array) -> Array:
        """(n_observed, n_target) W of the prior covariance ``cross`` (same shape); posterior = prior - W^T W."""
        return np.asarray(solve_triangular(self._factor, cross, lower=True, check_finite=False))

    def update(self, cross: Array) -> Array:
        """What the observations add to the mean of targets with this prior covariance to them."""
        return np.asarray(cross.T @ self._alpha)


@dataclass(frozen=True)
class Part:
    """One hypothesis of a mixture: its ``weight``, its ``fit``, and the targets as it sees them, offset + target .
    unknowns."""

    weight: float
    fit: Conditioned
    target: Rows
    offset: Array | float = 0.0


class Posterior:
    """The average over hypotheses at the same targets. Mean and variance by moments.

    Hypotheses of one form share their rows and targets, and with them the prior covariances.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = []
        shared: dict[int, tuple[Covariances, Array]] = {}
        near: dict[tuple[int, int], Points] = {}
        for part in parts:
            fit, target = part.fit, part.target
            if id(target) not in shared:
                points = (id(fit.rows.features), id(target.features))
                if points not in near:
                    near[points] = Points(fit.rows.features, target.features)
                cross = fit.prior.covariances(fit.rows, target, near[points])
                shared[id(target)] = cross, target.basis @ fit.prior.mean + part.offset
            cross, before = shared[id(target)]
            between = cross.under(fit.hyper)
            mean, white = before + fit.update(between), fit.explained(between)
            var = fit.prior.variance(target, fit.hyper.amplitude) - (white * white).sum(0)
            self._parts.append((part.weight, part, mean, white, var))
        self.mean = np.sum([w * m for w, _, m, _, _ in self._parts], axis=0)
        self.var = np.maximum(np.sum([w * (v + (m - self.mean) ** 2) for w, _, m, _, v in self._parts], axis=0), 1e-12)
        self.noise = float(np.sqrt(sum(w * p.fit.hyper.noise**2 for w, p, _, _, _ in self._parts)))

    def covariance(self, a: Index, b: Index) -> Array:
        """(len(a), len(b)) between targets."""
        out = np.zeros((len(a), len(b)))
        shared: dict[int, Covariances] = {}
        for weight, part, mean, white, _ in self._parts:
            key = id(part.target)
            if key not in shared:
                shared[key] = part.fit.prior.covariances(part.target.take(a), part.target.take(b))
            shift = np.outer(mean[a] - self.mean[a], mean[b] - self.mean[b])
            out += weight * (shared[key].under(part.fit.hyper) - white[:, a].T @ white[:, b] + shift)
        return out


def fits(
    prior: Prior,
    rows: Rows,
    y: Array,
    scale: Array,
    grid: Sequence[Hyper],
    own: Covariances | None = None,
    log_prior: float = 0.0,
) -> list[Conditioned]:
    """One fit per grid point. ``log_prior``: of the form that made the rows."""
    own = own or prior.covariances(rows, rows)
    return [Conditioned(prior, rows, y, scale, hyper, own, log_prior) for hyper in grid]


def average(found: Sequence[tuple[Conditioned, T]]) -> list[tuple[float, tuple[Conditioned, T]]]:
    """Fits, each with what belongs to it, and their posterior weights; negligible ones dropped, the heaviest first."""
    evidence = np.array([fit.evidence for fit, _ in found])
    weights = np.exp(evidence - evidence.max())
    order = np.argsort(-weights, kind="stable")[:MOST_PARTS]
    order = order[weights[order] >= NEGLIGIBLE]
    total = float(weights[order].sum())
    return [(float(weights[i]) / total, found[i]) for i in order]
