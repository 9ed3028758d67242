"""What parts of the data may be used for, and arrays that nobody changes: of images and of texts."""

import numpy as np

ROLES = ("train", "search", "validation", "test")
_USES = (
    "networks are trained on 'train', compared in a search on 'search', watched on 'validation', and"
    " only the chosen ones are measured on 'test'"
)


def check_role(role: str) -> None:
    """Raises ValueError for a role that is not known."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}, expected one of {', '.join(ROLES)}")


def require_role(what: str, role: str, roles: tuple[str, ...]) -> None:
    """Raises ValueError if a part of the data, say a "split", has none of the roles."""
    if role not in roles:
        wanted = " or ".join(map(repr, roles))
        raise ValueError(f"this needs the {wanted} {what}, and got the {role!r} {what}: {_USES}")


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
