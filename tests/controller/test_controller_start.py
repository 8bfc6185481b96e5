"""A controller's start: quick, and no address is tried that can't be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.controller.registry_address import open_registry
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.sqlite_registry import SqliteRegistry
from manyhands.controller.task import buckets_of
from manyhands.errors import ConfigError, RegistryUnavailable
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map


def test_a_controller_needs_no_torch_and_no_numpy() -> None:
    rooms = "manyhands.launch.role_process, manyhands.controller.task"
    code = f"import sys, {rooms}; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout.strip() == "[]", outcome.stderr


@pytest.mark.parametrize(
    "address",
    [
        "",
        "sqlite:",
        "redis://x:1",
        "etcd://",
        "etcd://host",
        "etcd://h:0",
        "etcd://h:1,h",
        "etcd://h:x",
    ],
)
def test_an_address_that_can_not_be_right_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected sqlite:/path/to/file or etcd://"):
        open_registry(address)


def test_certificates_that_can_not_be_read_are_named() -> None:
    with pytest.raises(ConfigError, match="certificates"):
        open_registry("etcds://h:1/run?ca=/does/not/exist")
    with pytest.raises(ConfigError, match="option 'name'"):
        open_registry("etcds://h:1/run?name=x")


@pytest.mark.parametrize("wrong", [{"servers": 0}, {"copies": 0}, {"lease_s": 0}, {"join_mb": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is"):
        ControllerSettings(**({"servers": 1, "copies": 1} | wrong))


def test_a_file_that_can_not_be_used_is_unavailable_and_may_come_back(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "later" / "registry.db")
    with pytest.raises(RegistryUnavailable, match="could not be used"):
        registry.get("k")
    (tmp_path / "later").mkdir()
    assert registry.put("k", b"v") is not None
    (tmp_path / "junk.db").write_bytes(b"this is no database" * 99)
    with pytest.raises(RegistryUnavailable, match="not a database"):
        SqliteRegistry(tmp_path / "junk.db").put("k", b"v")
    registry.close()


def test_the_lease_of_a_dead_process_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    code = (
        "import sys; from pathlib import Path;"
        "from manyhands.controller.sqlite_registry import SqliteRegistry;"
        "registry = SqliteRegistry(Path(sys.argv[1]));"
        "print(registry.put('leader', b'me', lease=registry.grant(1e6)), flush=True);"
        "input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    registry = SqliteRegistry(path)
    assert registry.get("leader") is not None
    process.kill()
    process.communicate()
    assert registry.get("leader") is None
    assert registry.put("leader", b"you", expected=0) is not None
    registry.close()


def test_the_buckets_of_a_map_have_homes_and_sizes() -> None:
    shards = make_shard_map([ParameterSpec("w", (700, 500))], servers=2, lanes=1)
    buckets = buckets_of(shards)
    assert sum(buckets.loads.values()) == 4 * 700 * 500
    assert set(buckets.homes.values()) == {0, 1}
    assert buckets.homes.keys() == buckets.loads.keys()
