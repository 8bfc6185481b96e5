"""Certificates made for one run: who holds one belongs to it.

A run has an authority of its own, which signs one certificate for servers and one for clients and
then forgets its key. Nobody else's certificate is accepted, and a client's can't stand in for a
server's. Certificates and keys are handed out over the channels to the processes that the driver
started; they are never written to disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# Stands in every server's certificate in the place of a host name: a run's servers are known by
# their certificate, wherever they are.
SERVER_NAME = "server.manyhands"
_CLIENT_NAME = "client.manyhands"
_CLOCKS_DIFFER = timedelta(days=1)
_VALID = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one side shows and trusts, in PEM form. The key is a secret: it is not printed."""

    authority: str
    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunCertificates:
    """The credentials of a run's servers and of its clients."""

    server: Credentials
    client: Credentials

    @classmethod
    def make(cls) -> RunCertificates:
        """New ones, from an authority that exists for this call only. Takes milliseconds."""
        authority = _Authority()
        return cls(
            server=authority.issue(SERVER_NAME, for_server=True),
            client=authority.issue(_CLIENT_NAME, for_server=False),
        )


class _Authority:
    """Signs certificates. Its key is gone with it."""

    def __init__(self) -> None:
        # Imported here: only runs that leave the machine need it.
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("manyhands run")
        self._certificate = _sign(
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True),
            self._key,
        )

    def issue(self, name: str, *, for_server: bool) -> Credentials:
        """A new key and its certificate, good for one of the two sides only."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        side = ExtendedKeyUsageOID.SERVER_AUTH if for_server else ExtendedKeyUsageOID.CLIENT_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(
            _builder(_name(name), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([side]), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False),
            self._key,
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Credentials(_pem(self._certificate), _pem(certificate), pem.decode())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()
