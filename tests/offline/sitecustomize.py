"""Loaded by every Python process of the test suite: sockets to anywhere but loopback are refused.

`conftest.py` imports it for the test process and puts this folder on PYTHONPATH for its children.
"""

import ipaddress
import socket
from typing import Any


class NetworkRefused(Exception):
    """Something tried to leave the machine. Not an OSError: nothing may catch it as a network hiccup."""


def _loopback(address: Any) -> bool:
    if not isinstance(address, tuple):  # a Unix socket path
        return True
    host = str(address[0]).partition("%")[0]
    try:
        return host in ("localhost", "") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _guard(name: str, at: int) -> None:
    """Wrap socket.socket.<name>, whose argument `at` is the address."""
    original = getattr(socket.socket, name)

    def guarded(self: socket.socket, *args: Any) -> Any:
        if not _loopback(args[at]):
            raise NetworkRefused(f"{name} to {args[at]} refused: tests run offline")
        return original(self, *args)

    setattr(socket.socket, name, guarded)


if not getattr(socket, "loopback_only", False):
    _guard("connect", 0)
    _guard("connect_ex", 0)
    _guard("sendto", -1)
    _lookup = socket.getaddrinfo

    def _local_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _loopback((name,)):
            raise NetworkRefused(f"looking up {name} refused: tests run offline")
        return _lookup(host, *args, **kwargs)

    socket.getaddrinfo = _local_lookup  # type: ignore[assignment]
    socket.loopback_only = True  # type: ignore[attr-defined]
