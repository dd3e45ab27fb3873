"""Where a server listens, and by which name it may be asked; looked at before anything heavy is loaded."""

import ipaddress
import socket

from bertkit.errors import BertkitError, RequestError
from bertkit.serve.http.auth import VARIABLE, Keys

BACKLOG = 4096  # connections that wait to be taken in
MOST_PORT = 65_535


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_door(host: str, keys: Keys, *, told: bool) -> None:
    """Nobody is let in from outside without a key, unless that was asked for."""
    if not keys and not told and not is_loopback(host):
        raise RequestError(
            f"--host {host} lets others in, and no key is set: write one into a file for --api-key or into {VARIABLE}, "
            "or say --no-key"
        )


def names_this_machine(host: str) -> bool:
    """Whether a request's Host header is localhost or an address.

    Any other name may be that of a foreign page that had it point here meanwhile, so that it may read replies.
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
    """A listening socket; an address that cannot be had is said in one sentence."""
    if not 0 <= port <= MOST_PORT:
        raise RequestError(f"--port {port} must be from 1 to {MOST_PORT}, or 0 for a free one")
    try:
        host.encode("idna")  # as looking it up does, where what is wrong has no sentence
        [family, kind, protocol, _, address] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except UnicodeError as error:
        raise RequestError(f"--host {host} is no name or address of a machine; write it as 127.0.0.1") from error
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise BertkitError(f"{host} port {port} cannot be listened at: {reason}; choose another --port") from error
    return found
