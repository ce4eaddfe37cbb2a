"""The command line that files state: the driver's, whoever writes them and wherever that is.

Workers take over the words of the command that started them (`Driver.begin_worker`). Words that
say where and how long to compute are left out: they shape nothing, and the files of a laptop and of
a cluster are the same.
"""

import sys
from collections.abc import Sequence

from graphcircuits.io.store import running_command

FLAG = "--json"
VALUED = ("--minutes", "--processes")
RAY = "--ray"
"""Its value may be left out."""


def is_address(word: str) -> bool:
    """Whether a word after --ray is its value, and not a case."""
    return word == "auto" or (":" in word and not word.startswith("-"))


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """The words with the value of --ray joined to it, an empty one where none was given."""
    words: list[str] = []
    for word in arguments:
        if words and words[-1] == RAY:
            words[-1] += "="
            if is_address(word):
                words[-1] += word
                continue
        words.append(word)
    return [*words[:-1], f"{RAY}="] if words and words[-1] == RAY else words


def lasting(arguments: Sequence[str]) -> list[str]:
    """Command line words that shape what is made. Only those are recorded: what was cut off and
    resumed, or made elsewhere, must not differ in them."""
    words = []
    before = ""
    for word in spelled_out(arguments):
        is_value = before in VALUED
        before = "" if is_value else word
        if not is_value and word.partition("=")[0] not in (FLAG, *VALUED, RAY):
            words.append(word)
    return words


def driver_command() -> str:
    """The command of whoever gave out the jobs."""
    return running_command(lasting(sys.argv[1:]))
