"""The two registries, each as a real one: a file of SQLite, an etcd of three members."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.etcd_cluster import EtcdCluster, etcd_cluster


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One cluster for all tests that leave it as they found it."""
    cluster = etcd_cluster(tmp_path_factory.mktemp("etcd"))
    yield cluster
    cluster.close()


@pytest.fixture(params=["sqlite", "etcd"])
def registry_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a registry that is empty."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'registry.db'}"
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    return cluster.address(secrets.token_hex(4))
