"""Which addresses stay on the machine."""

import pytest

from manyhands.transport.endpoint import Endpoint, is_loopback, is_wildcard


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_plain_unless_asked(host):
    assert is_loopback(host)
    assert not Endpoint(host, 1).encrypted
    assert Endpoint(host, 1, tls=True).encrypted


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "localhost.example.com", "fe80::1"])
def test_everything_else_is_encrypted(host):
    assert not is_loopback(host)
    assert Endpoint(host, 1).encrypted


def test_wildcards():
    assert all(map(is_wildcard, ["", "0.0.0.0", "::"]))
    assert not is_wildcard("10.0.0.1")


def test_shown_as_people_write_it():
    assert str(Endpoint("10.0.0.1", 80)) == "10.0.0.1:80"
    assert str(Endpoint("fe80::1", 80)) == "[fe80::1]:80"
