"""Headers that whoever plays gives a server, above all who they are; secrets are named in them, never written.

Options are stored with every episode. So a value names environment variables, ``Bearer ${TOKEN}``, which are read
where the server is reached, and a header that by its name holds a secret is refused when it names none.
"""

import os
import re
from collections.abc import Mapping

__all__ = ["filled_headers"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"\$\{(\w+)\}", re.ASCII)
_SECRET = re.compile(r"auth|cookie|credential|key|passw|secret|session|token", re.I)


def filled_headers(headers: object, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers, with each ``${NAME}`` as the environment has it (this process's by default).

    Raises ValueError for what is no object of texts, a name or a value that no header can have, a variable that
    there is not, and a secret that is written out.
    """
    if not isinstance(headers, Mapping) or not all(
        isinstance(one, str) for pair in headers.items() for one in pair
    ):
        raise ValueError("headers must be an object of texts, name -> value")
    known = os.environ if environment is None else environment
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"headers has {name!r}, which is no name of a header")
        variables = _VARIABLE.findall(value)
        if not variables and _SECRET.search(name):
            raise ValueError(
                f"headers has {name!r} with its value, and options are stored with every episode; put the secret "
                f"into an environment variable and name that: '${{NAME}}'"
            )
        if lacking := [one for one in variables if one not in known]:
            raise ValueError(f"headers.{name} names {lacking}, and there is no such environment variable")
        whole = _VARIABLE.sub(lambda match: known[match[1]], value)
        if not whole.isascii() or not whole.isprintable():
            raise ValueError(f"headers.{name} must be printable ASCII in one line when its variables are read")
        found[name] = whole
    return found
