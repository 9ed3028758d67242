"""What parts of the data may be used for, and arrays that nobody changes: of images and of texts."""

import numpy as np


def check_role(role: str, known: tuple[str, ...]) -> None:
    """Raises ValueError for a role that is not known."""
    if role not in known:
        raise ValueError(f"unknown role {role!r}, expected one of {', '.join(known)}")


def require_role(what: str, role: str, roles: tuple[str, ...], uses: str) -> None:
    """Raises ValueError if a part of the data, say a "split", has none of the roles; `uses` says why."""
    if role not in roles:
        wanted = " or ".join(map(repr, roles))
        raise ValueError(f"this needs the {wanted} {what}, and got the {role!r} {what}: {uses}")


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
