"""A real etcd that speaks TLS alone and asks for certificates."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from manyhands.controller.registry_address import in_run, open_registry
from manyhands.errors import RegistryUnavailable
from tests.cluster.conftest import wait_until
from tests.controller.etcd_cluster import EtcdCluster, etcd_cluster


def own_certificate(file: Path) -> Path:
    """A certificate for loopback that is its own authority, for both sides; its key beside it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "etcd of a test")])
    now = datetime.now(timezone.utc)
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(pem))
    file.with_suffix(".key").write_bytes(secret)
    return file


@pytest.fixture
def encrypted(tmp_path: Path):
    cluster = etcd_cluster(tmp_path, certificate=own_certificate(tmp_path / "both.pem"))
    yield cluster
    cluster.close()


def test_an_etcd_behind_tls(encrypted: EtcdCluster, tmp_path: Path) -> None:
    files = f"ca={tmp_path}/both.pem&cert={tmp_path}/both.pem&key={tmp_path}/both.key"
    address = in_run(encrypted.address("", scheme="etcds").rstrip("/") + f"?{files}", "a run/1")
    registry = open_registry(address)

    def is_up() -> bool:
        try:
            return registry.get("k") is None
        except RegistryUnavailable:
            return False

    wait_until(is_up, what="etcd answers")
    revision = registry.put("k", b"v", expected=0)
    assert revision is not None
    assert [entry.value for entry in open_registry(address).entries("")] == [b"v"]
    change = next(iter(registry.watch("", after=revision - 1, timeout_s=30.0)))
    assert change.value == b"v"
    stranger = open_registry(
        encrypted.address("a%20run/1", scheme="etcds") + f"?ca={tmp_path}/both.pem"
    )
    with pytest.raises(RegistryUnavailable, match="No etcd member"):
        stranger.get("k")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("etcd://a:1,b:2", "etcd://a:1,b:2/run-1"),
        ("etcd://a:1/lab/", "etcd://a:1/lab/run-1"),
        ("etcds://a:1?ca=/x", "etcds://a:1/run-1?ca=/x"),
    ],
)
def test_a_run_has_a_name_of_its_own_in_an_etcd(given: str, named: str) -> None:
    assert in_run(given, "run-1") == named
