"""The suite itself refuses the network: a socket to anywhere but loopback fails, here and in child processes."""

import socket
import subprocess
import sys

import pytest


def test_this_process_cannot_leave_the_machine():
    with pytest.raises(Exception, match="tests run offline"), socket.socket() as outside:
        outside.connect(("192.0.2.1", 80))  # a documentation address: nobody is there
    with pytest.raises(Exception, match="tests run offline"):
        socket.getaddrinfo("example.invalid", 443)


def test_a_child_process_cannot_either():
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tests run offline" in done.stderr


def test_loopback_is_open():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
