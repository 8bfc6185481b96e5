"""What is asked of a run's survival is checked before anything starts, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("copies", 0),
        ("copies", 4),
        ("write_back_s", 0),
        ("write_back_s", True),
        ("lease_s", 0.05),
        ("lease_s", None),
        ("registry", None),
        ("registry", "zk://host:1"),
        ("registry", "etcd://"),
        ("registry", "etcd://host:99999"),
        ("replication_host", 5),
        ("admin_host", ""),
        ("faults", "kill server/0"),
    ],
)
def test_a_wrong_setting_is_told_in_one_sentence(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as told:
        mh.Downpour(servers=3, **{setting: value})
    assert repr(value) in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_right_is_taken() -> None:
    strategy = mh.Downpour(
        servers=3,
        copies=2,
        write_back_s=None,
        lease_s=0.5,
        registry="etcd://one:2379,two:2379",
        faults=mh.FaultPlan().kill("server/2", at_push=3),
    )
    assert strategy.copies == 2
