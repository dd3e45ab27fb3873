"""The listening socket, and which hosts and host names are allowed: checked before torch and the models are loaded."""

import ipaddress
import socket

from bertkit.connection import KEY_VARIABLE
from bertkit.errors import BertkitError, RequestError
from bertkit.serve.http.auth import Keys

BACKLOG = 4096  # connections that may wait to be accepted
MAX_PORT = 65_535


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_key(host: str, keys: Keys, *, no_key: bool) -> None:
    """Refuse to listen beyond loopback without a key, unless `no_key`."""
    if not keys and not no_key and not is_loopback(host):
        raise RequestError(
            f"--host {host} lets others in, and no key is set: write one into a file for --api-key or into "
            f"{KEY_VARIABLE}, or say --no-key"
        )


def is_local_name(host: str) -> bool:
    """Whether a request's Host header is localhost or an IP address.

    Any other name may be that of a foreign web page whose DNS entry points here, to read replies (DNS rebinding).
    """
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; an unavailable address is an error of one sentence."""
    if not 0 <= port <= MAX_PORT:
        raise RequestError(f"--port {port} must be from 1 to {MAX_PORT}, or 0 for a free one")
    try:
        host.encode("idna")  # as getaddrinfo does, whose own error names neither host nor reason
        [family, kind, protocol, _, address] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except UnicodeError as error:
        raise RequestError(f"--host {host} is no name or address of a machine; write it as 127.0.0.1") from error
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise BertkitError(f"{host} port {port} cannot be listened at: {reason}; choose another --port") from error
    return listener
