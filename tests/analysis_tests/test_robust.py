"""Estimators against what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.analysis.robust import (
    EFFICIENCY,
    biweight,
    fence,
    gross,
    moderated_variance,
    pooled_scale,
    row_mean,
    unsteady,
)


def test_biweight_costs_about_five_percent_and_ignores_a_half_speed_round() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.02, (20_000, 8))
    efficiency = float(row_mean(values).var() / biweight(values, 0.02).var())
    assert efficiency == pytest.approx(EFFICIENCY, abs=0.02)
    spoilt = values.copy()
    spoilt[:, 0] -= 0.69
    assert abs(float(biweight(spoilt, 0.02).mean())) < 1e-3
    assert float(row_mean(spoilt).mean()) < -0.08  # what a mean would have made of it


def test_pooled_scale_undoes_the_loss_of_the_centre() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(5, 0.03, (4000, 3))
    assert pooled_scale(values - row_mean(values)[:, None]) == pytest.approx(0.03, rel=0.05)
    assert pooled_scale(np.array([[1.0], [2.0]])) == 0.0


def test_fence_pulls_in_a_stall_but_leaves_what_a_category_does() -> None:
    rng = np.random.default_rng(3)
    groups = np.repeat([0, 1], 10)
    values = rng.normal(0, 0.02, (6, 20)) + np.where(groups == 1, 0.2, 0.0)
    assert fence(values, groups) == pytest.approx(values)
    stalled = values.copy()
    stalled[0, 3] -= 0.7
    fenced = fence(stalled, groups)
    assert fenced[0, 3] > -0.15
    assert np.delete(fenced, 3, axis=1) == pytest.approx(np.delete(stalled, 3, axis=1))


def test_gross_drops_two_bad_rounds_of_three_only_beside_the_arms_other_launches() -> None:
    good, bad = [0.0, 0.01, -0.01], [-0.69, 0.0, -0.7]
    values = np.array([good, bad])
    assert gross(values, np.array([4, 4])).tolist() == [[False] * 3, [True, False, True]]
    assert not gross(values, np.array([4, 5])).any()
    slow = np.array([good, [-0.69, -0.7, -0.68], good])
    assert not gross(slow, np.array([4, 4, 4])).any()  # the whole launch is slow: that is not a bad round


def test_unsteady_needs_a_third_of_the_rounds() -> None:
    residuals = np.array([[0.0, 0.0, 0.7], [0.0, 0.01, 0.02], [0.0] * 3])
    assert unsteady(residuals, 0.01).tolist() == [True, False, False]
    eight = np.array([[0.0] * 6 + [-0.7, np.nan]])
    assert not unsteady(eight, 0.01).any()


def test_moderated_variance_shrinks_to_the_pool() -> None:
    rng = np.random.default_rng(4)
    residuals = rng.normal(0, 0.02, (500, 3))
    residuals -= residuals.mean(axis=1, keepdims=True)
    variance, df = moderated_variance(residuals, 0.02)
    assert df.tolist() == [6.0] * 500
    assert float(variance.mean()) == pytest.approx(0.02**2, rel=0.1)
    own = (residuals**2).sum(axis=1) / 2
    assert float(variance.std()) < 0.5 * float(own.std())
