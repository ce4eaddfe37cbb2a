"""Whether the Hugging Face hub can be reached, asked once and briefly.

Its client tries for half a minute before it gives up. `hub_or_cache` looks for two seconds whether
anybody answers, and if nobody does, lets the client take what it downloaded before and nothing
else, so that a name which is not there is refused at once.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE = 2.0
"""Seconds to wait for an answer."""


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Within, models come from the hub, or from its cache alone where the hub does not answer.

    Gives whether it answers.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        yield False
        return
    answers = _answers(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = not answers
    try:
        yield answers
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(address: str) -> bool:
    """Whether a connection to a server, or to the proxy before it, can be opened in time."""
    scheme = urlsplit(address).scheme
    there = urlsplit(getproxies().get(scheme, address))
    port = there.port or (80 if there.scheme == "http" else 443)
    answered = threading.Event()

    def connect() -> None:
        with suppress(OSError, UnicodeError):  # the latter of what cannot be the name of a server
            socket.create_connection((there.hostname, port), timeout=PATIENCE).close()
            answered.set()

    # In a thread: looking up a name has no limit of time by itself.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answered.is_set()
