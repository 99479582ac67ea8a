"""Location and spread that three bad rounds cannot move.

Rounds: Tukey's biweight about the median with the scale known from all launches, c = 4.685, which costs 5 % of the
efficiency of the mean when the noise is normal (Beaton & Tukey 1974) and gives a half-speed block no weight at all.
Prompts: the mean, because what differs between prompts is what is asked; only what lies further than ``FENCE`` robust
standard deviations from its own category's median is pulled back to the fence (normal efficiency > 0.999).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BIWEIGHT = 4.685
FENCE = 4.0
GROSS = 0.25  # of a log: 22 % slower or 28 % faster than the arm's other rounds
EFFICIENCY = 0.95
_MAD = 1.4826022185056018  # 1 / Phi^-1(3/4): median absolute deviation to standard deviation of a normal


def row_median(values: Array) -> Array:
    """Median of each row over its finite entries; NaN for a row without any."""
    count = np.isfinite(values).sum(axis=1)
    ordered = np.sort(values, axis=1)  # NaN sorts last
    rows = np.arange(len(values))
    low = ordered[rows, np.maximum((count - 1) // 2, 0)] if values.shape[1] else np.full(len(values), np.nan)
    high = ordered[rows, np.minimum(count // 2, max(values.shape[1] - 1, 0))] if values.shape[1] else low
    return np.where(count > 0, (low + high) / 2, np.nan)


def row_mean(values: Array) -> Array:
    """Mean of each row over its finite entries; NaN for a row without any."""
    fine = np.isfinite(values)
    count = fine.sum(axis=1)
    total = np.where(fine, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def pooled_scale(residuals: Array) -> float:
    """Robust standard deviation of the entries of all rows about their rows' medians; 0 where no row has two.

    Taking a centre out of n entries shrinks what is left by sqrt((n - 1) / n), which is undone per row.
    """
    count = np.isfinite(residuals).sum(axis=1)
    rows = count > 1
    if not rows.any():
        return 0.0
    scaled = residuals[rows] * np.sqrt(count[rows] / (count[rows] - 1))[:, None]
    entries = np.abs(scaled[np.isfinite(scaled)])
    return float(_MAD * np.median(entries))


def biweight(values: Array, scale: float) -> Array:
    """Biweight location of each row (shape rows x units, NaN absent) for a known ``scale``.

    Rows of one or two entries, rows whose entries all lie outside and a zero scale give the median.
    """
    centre = row_median(values)
    if scale <= 0:
        return centre
    fine = np.isfinite(values)
    rows = fine.sum(axis=1) > 2
    for _ in range(30):
        distance = (np.where(fine, values, np.inf) - np.where(np.isfinite(centre), centre, 0.0)[:, None]) / (
            BIWEIGHT * scale
        )
        weight = np.where(np.abs(distance) < 1, (1 - np.minimum(distance**2, 1.0)) ** 2, 0.0)
        total = weight.sum(axis=1)
        moved = (weight * np.where(fine, values, 0.0)).sum(axis=1) / np.maximum(total, 1e-300)
        new = np.where(rows & (total > 1e-12), moved, centre)
        shift = np.nanmax(np.abs(new - centre)) if np.isfinite(centre).any() else 0.0
        centre = new
        if shift < 1e-9:
            break
    return centre


def gross(values: Array, groups: npt.NDArray[np.int_]) -> Mask:
    """Rounds that are bad beyond doubt, among launches of the same arm (equal non-negative ``groups``, two or more).

    Two half-speed rounds of three look like the launch's own speed, but not beside the arm's other launches: an entry
    further than ``GROSS`` from the median of all the arm's rounds, and than eight of their robust standard
    deviations, is dropped. A launch that has nothing else keeps its entries: then it is the launch that is slow.
    """
    out = np.zeros(values.shape, dtype=bool)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        entries = values[rows][np.isfinite(values[rows])]
        if len(rows) < 2 or not len(entries):
            continue
        distance = np.abs(values[rows] - np.median(entries))
        limit = max(GROSS, 8.0 * _MAD * float(np.median(np.abs(entries - np.median(entries)))))
        bad = np.where(np.isfinite(distance), distance, 0.0) > limit
        bad[(bad | ~np.isfinite(distance)).all(axis=1)] = False
        out[rows] = bad
    return out


def unsteady(residuals: Array, scale: float) -> Mask:
    """Launches whose rounds contradict each other so that none can be believed.

    A round counts as off when it lies further than ``GROSS`` and eight scales from the launch's location; with a third
    of the rounds off it is not known which are right (two bad rounds of three look like one).
    """
    off = np.abs(np.where(np.isfinite(residuals), residuals, 0.0)) > max(GROSS, 8.0 * scale)
    bad = off.sum(axis=1)
    return np.asarray((bad > 0) & (3 * bad >= np.isfinite(residuals).sum(axis=1)))


def fence(values: Array, groups: npt.NDArray[np.int_]) -> Array:
    """Pull entries (rows x prompts) to within ``FENCE`` scales of their row's median in the same group of columns.

    The scale is pooled over all rows and groups; groups of fewer than three columns are left alone.
    """
    centre = np.full_like(values, np.nan)
    for group in np.unique(groups):
        columns = groups == group
        if columns.sum() >= 3:
            centre[:, columns] = row_median(values[:, columns])[:, None]
    scale = pooled_scale(values - centre) if np.isfinite(centre).any() else 0.0
    if scale <= 0:
        return values
    fenced = np.clip(values, centre - FENCE * scale, centre + FENCE * scale)
    return np.where(np.isfinite(centre), fenced, values)


def moderated_variance(residuals: Array, pooled: float, strength: float = 4.0) -> tuple[Array, Array]:
    """Variance per entry of each row and its degrees of freedom.

    A launch of three rounds cannot know its own spread: its sum of squares (entries winsorised at 2.5 pooled scales)
    is shrunk towards the pooled variance, which counts as ``strength`` degrees of freedom (the moderated variance of
    Smyth 2004 with a fixed prior weight).
    """
    count = np.isfinite(residuals).sum(axis=1)
    clipped = np.clip(np.where(np.isfinite(residuals), residuals, 0.0), -2.5 * pooled, 2.5 * pooled)
    own = (clipped**2).sum(axis=1)  # estimates (n - 1) * variance: one centre was taken out
    df = np.maximum(count - 1, 0) + strength
    return (own + strength * pooled**2) / df, df
