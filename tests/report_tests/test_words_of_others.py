"""What a report makes of names and notes that come from a study: none may melt into another, none is Python."""

from __future__ import annotations

from dataclasses import replace

from storage.records import StudyRow
from storage.store import Store
from sweep.report.facts import collect
from sweep.report.plots_why import effects
from sweep.report.provenance import provenance


def test_values_of_a_setting_stay_apart(store: Store, study: StudyRow) -> None:
    """Drafters of a family begin alike, and end alike: each has a place of its own on the axis, and a median."""
    facts = collect(store, study)
    for names in (
        ("EAGLE3-LLaMA3.1-Instruct-8B", "EAGLE3-LLaMA3.1-Instruct-70B"),
        ("eagle3-of-monday-for-llama8b", "eagle3-of-friday-for-llama8b"),
        ("<b>eagle3-of-monday", "<b>eagle3-of-friday"),
    ):
        renamed = {"good": names[0], "other": names[1]}
        trials = [
            replace(trial, config=replace(trial.config, draft_model=renamed.get(str(trial.config.draft_model), "x")))
            for trial in facts.trials
        ]
        (plot,) = [plot for plot in effects(replace(facts, trials=trials)) if plot.title == "draft_model"]
        places = list(plot.figure.layout.xaxis.categoryarray)
        assert len(set(places)) == 3
        assert set(plot.figure.data[0].x) == set(plot.figure.data[1].x) == set(places)
        assert not any("<" in place for place in places)
        assert all(gain is not None for gain in plot.figure.data[1].y)


def test_a_server_that_was_running_is_named_in_words(store: Store, study: StudyRow) -> None:
    notes = ({"attached": "http://127.0.0.1:30000", "arm": {}}, "budget.trials: 3 -> 6")
    facts = collect(store, study)
    said = provenance(replace(facts, study=replace(study, notes=notes)))["notes"]
    assert said == "measured at http://127.0.0.1:30000, a server that was running already, budget.trials: 3 -> 6"
