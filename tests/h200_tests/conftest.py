"""The stored studies, each unpacked once."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.store import Store
from tests.h200_tests.stored import STORED


def _open(name: str, folder: Path) -> Store:
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((STORED / f"{name}.db.gz").read_bytes()))
    return Store.open(f"sqlite:///{path}", create=False)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("smollm2", tmp_path_factory.mktemp("smollm2")) as store:
        yield store


@pytest.fixture(scope="session")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("llama8b-shaped", tmp_path_factory.mktemp("shaped")) as store:
        yield store


@pytest.fixture(scope="session")
def wrong_and_taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("wrong-and-taken", tmp_path_factory.mktemp("wrong")) as store:
        yield store


@pytest.fixture(scope="session")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("failures", tmp_path_factory.mktemp("failures")) as store:
        yield store


@pytest.fixture(scope="session")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _open("resident", tmp_path_factory.mktemp("resident")) as store:
        yield store
