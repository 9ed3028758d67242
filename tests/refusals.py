"""Mistakes of users: a table of cases for each package, checked by one function."""


def check(*cases):
    """Each case is (call, error, *names): the call raises that error, and its message has each of the names.

    Names are those of fields and the values that were given, not sentences: a message may be reworded.
    """
    failures = []
    for call, error, *names in cases:
        where = f"line {call.__code__.co_firstlineno}"
        try:
            result = call()
        except error as raised:
            said = str(raised)
            failures += [f"{where}: {name!r} is not in {said!r}" for name in names if name not in said]
        except Exception as raised:
            failures.append(f"{where}: expected {error}, got {type(raised).__name__}: {raised}")
        else:
            failures.append(f"{where}: expected {error}, and it returned {result!r:.200}")
    assert not failures, "\n".join(failures)
