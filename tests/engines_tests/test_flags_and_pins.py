"""Flag tables, how options are written, and the pins that make a comparison fair."""

from __future__ import annotations

import pytest

from launchers.engines.flags import release, table_for
from launchers.engines.pins import recommended_pins


@pytest.mark.parametrize(
    ("version", "table", "noted"),
    [
        ("0.5.17", "0.5.17", False),
        ("0.5.23", "0.5.23", False),
        ("0.5.23.post1", "0.5.23", False),
        ("0.5.20", "0.5.17", True),
        ("0.6.0", "0.5.23", True),
        ("0.4.9", "0.5.17", True),
        ("", "0.5.23", True),
        ("nonsense", "0.5.23", True),
    ],
)
def test_table_of_a_version(version: str, table: str, noted: bool) -> None:
    found, note = table_for(version)
    assert found.version == table
    assert (note is not None) is noted
    if note:
        assert table in note


def test_releases_compare_as_numbers() -> None:
    assert release("0.5.9") < release("0.5.17") < release("v0.5.23rc1") < release("0.10.0")


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("tp-size", "tp-size"),
        ("--tp_size", "tp-size"),
        ("tensor-parallel-size", "tp-size"),
        ("tp", "tp-size"),
        ("cuda-graph-bs", "cuda-graph-bs-decode"),
        ("cuda_graph_max_bs", "cuda-graph-max-bs-decode"),
        ("speculative-draft-model", "speculative-draft-model-path"),
        ("speculative-num-draft", "speculative-num-draft-tokens"),
        ("cuda-graph", "cuda-graph"),  # a prefix of several: left as it came
        ("a-plugins-own-flag", "a-plugins-own-flag"),
    ],
)
def test_full_current_names_only(given: str, full: str) -> None:
    for version in ("0.5.17", "0.5.23"):
        assert table_for(version)[0].canonical(given) == full


def test_a_removed_name_is_never_written() -> None:
    """0.5.23 exits 2 on --cuda-graph-bs (ambiguous); 0.5.17 takes the current name as well."""
    for version in ("0.5.17", "0.5.23"):
        table, _ = table_for(version)
        assert "cuda-graph-bs-decode" in table.kinds
        assert table.normalise({"cuda-graph-bs": (1, 2)}) == {"cuda-graph-bs-decode": (1, 2)}


def test_old_switches_become_values_and_explicit_ones_win() -> None:
    table, _ = table_for("0.5.23")
    assert table.normalise({"disable-cuda-graph": True}) == {
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
    }
    assert table.normalise({"disable-cuda-graph": False}) == {}
    both = table.normalise({"cuda-graph-backend-prefill": "breakable", "disable-cuda-graph": True})
    assert both["cuda-graph-backend-prefill"] == "breakable"


def test_values_are_written_as_the_option_takes_them() -> None:
    table, _ = table_for("0.5.23")
    assert table.render("page-size", 1) == ("--page-size", "1")
    assert table.render("chunked-prefill-size", -1) == ("--chunked-prefill-size=-1",)
    assert table.render("cuda-graph-bs-decode", (1, 2, 4)) == ("--cuda-graph-bs-decode", "1", "2", "4")
    assert table.render("cuda-graph-bs-decode", ()) == ()
    assert table.render("disable-radix-cache", True) == ("--disable-radix-cache",)
    assert table.render("disable-radix-cache", False) == ()
    assert table.render("enable-tf32-matmul", False) == ("--no-enable-tf32-matmul",)
    assert table_for("0.5.17")[0].render("enable-tf32-matmul", False) == ()
    assert table.render("context-length", None) == ()


def test_nearest_name() -> None:
    table, _ = table_for("0.5.17")
    assert table.nearest("--speculative-num-stepz") == "speculative-num-steps"
    assert table.nearest("zzzzqqqq") is None
    assert table.knows("disable-cuda-graph")
    assert not table.knows("speculative-num-stepz")


def test_pins_that_are_recommended() -> None:
    pins = {pin.flag: pin for pin in recommended_pins({}, (1, 8, 100), "0.5.23")}
    assert set(pins) == {"attention-backend", "page-size", "max-running-requests", "cuda-graph-bs-decode"}
    assert pins["attention-backend"].value == "triton"
    assert pins["page-size"].value == 1
    assert pins["max-running-requests"].value == 100
    sizes = pins["cuda-graph-bs-decode"].value
    assert isinstance(sizes, tuple)
    assert {1, 8, 100} <= set(sizes)
    assert max(sizes) == 100
    assert list(sizes) == sorted(sizes)
    assert all(len(pin.why) > 40 for pin in pins.values())


def test_the_speculative_limit_is_the_smallest_one_pinned() -> None:
    pins = {pin.flag: pin.value for pin in recommended_pins({}, (1,), "0.5.17")}
    assert pins["max-running-requests"] == 48


def test_nothing_the_user_pinned_is_touched() -> None:
    given = {"decode-attention-backend": "fa3", "page_size": 16, "max-running-requests": 12, "cuda-graph-bs": (1, 4)}
    assert recommended_pins(given, (1, 8), "0.5.17") == ()


def test_graph_sizes_follow_a_pinned_limit_and_graphs_that_are_off() -> None:
    sizes = {pin.flag: pin.value for pin in recommended_pins({"cuda-graph-max-bs": 6}, (1, 8), "0.5.17")}
    assert sizes["cuda-graph-bs-decode"] == (1, 2, 4, 6)
    off = {pin.flag for pin in recommended_pins({"disable-cuda-graph": True}, (1, 8), "0.5.17")}
    assert "cuda-graph-bs-decode" not in off
