"""Addresses at which the processes of a test find each other."""

import socket


def free():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return f"localhost:{one.getsockname()[1]}"
