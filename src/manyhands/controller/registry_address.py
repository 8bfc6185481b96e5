"""Opening a registry by its address: a file of this machine, or the members of an etcd.

sqlite:/path/to/registry.db
etcd://host:port,host:port,host:port/name-of-the-run
etcds://...?ca=FILE&cert=FILE&key=FILE      the same over TLS
"""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from manyhands.controller.registry import Registry
from manyhands.errors import ConfigError

_FORMS = "expected sqlite:/path/to/file or etcd://host:port,host:port/name"


def open_registry(address: str) -> Registry:
    """The registry at this address; ConfigError when it is not one. Does not connect yet."""
    scheme = address.partition(":")[0]
    if scheme == "sqlite":
        from manyhands.controller.sqlite_registry import SqliteRegistry

        path = address.partition(":")[2]
        if not path:
            raise ConfigError(f"The registry's address {address!r} names no file; {_FORMS}.")
        return SqliteRegistry(Path(path))
    if scheme in ("etcd", "etcds"):
        return _open_etcd(address)
    raise ConfigError(f"The registry's address is {address!r}; {_FORMS}.")


def in_run(address: str, run: str) -> str:
    """The address of a registry that this run has to itself, in the etcd at `address`."""
    parts = urlsplit(address)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(run)}").geturl()


def etcd_endpoints(address: str) -> tuple[tuple[str, int], ...]:
    """The hosts and ports of an etcd's address; ConfigError for one that is none."""
    return tuple(_endpoint(text, address) for text in urlsplit(address).netloc.split(","))


def _open_etcd(address: str) -> Registry:
    from manyhands.controller.etcd_gateway import EtcdGateway
    from manyhands.controller.etcd_registry import EtcdRegistry

    parts = urlsplit(address)
    endpoints = etcd_endpoints(address)
    files = {name: values[0] for name, values in parse_qs(parts.query).items()}
    context = _tls_context(files, address) if parts.scheme == "etcds" else None
    name = unquote(parts.path.strip("/")) or "default"
    return EtcdRegistry(EtcdGateway(endpoints, context=context), prefix=f"manyhands/{name}/")


def _endpoint(text: str, address: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"The registry's address {address!r} has {text!r} where a host and a port belong; "
            f"{_FORMS}."
        )
    return host.strip("[]"), int(port)


def _tls_context(files: dict[str, str], address: str) -> ssl.SSLContext:
    unknown = files.keys() - {"ca", "cert", "key"}
    if unknown:
        raise ConfigError(f"{address!r} has the option {min(unknown)!r}; expected ca, cert, key.")
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"The certificates of {address!r} can't be read: {error}.") from error
    return context
