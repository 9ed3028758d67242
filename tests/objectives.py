"""Functions of one architecture that workers import, and that fail in every way; few imports: quick."""

import json
import os
import signal
import sys
import time


def count(values):
    return float(sum(value == "c" for value in values["op"]))


def troubled(values):
    """Fails in another way for each pair of first options but the last."""
    first, name = "".join(values["op"][:2]), "".join(values["op"])
    if name == "aab":
        sys.exit("no data")
    if name == "bbb":
        return lambda: 1.0
    if first == "aa":
        raise RuntimeError("out of luck")
    if first == "ab":
        os._exit(3)
    if first == "ac":
        time.sleep(1000)
    wrong = {"ba": None, "bb": "high", "bc": [1.0, 2.0, 3.0], "ca": float("nan"), "cb": {"loss": 1.0}}
    return wrong.get(first, {"score": count(values), "loss": 1.0})


def never(values):
    raise AssertionError("evaluated")


def broken(values):
    raise ImportError(f"no module for {values['op'][0]}")


def numbered(values):
    """Leaves the number of its process in a folder, and takes a while."""
    with open(os.path.join(os.environ["NUMBERS"], str(os.getpid())), "w", encoding="utf-8"):
        time.sleep(0.3)
    return count(values)


def noted(folder, values):
    """Leaves in a folder a file for each call; one that finds a file `kill` takes it and is killed."""
    with open(os.path.join(folder, f"{''.join(values['op'])}-{time.time_ns()}"), "x"):
        time.sleep(0.2)
    try:
        os.remove(os.path.join(folder, "kill"))
    except FileNotFoundError:
        return count(values)
    os.kill(os.getpid(), signal.SIGKILL)


def began(folder, number):
    """Leaves a file named after a job, which ends when there is a file `go`; job 0 ends at once."""
    with open(os.path.join(folder, str(number)), "w", encoding="utf-8"):
        deadline = time.monotonic() + 60
    while number and time.monotonic() < deadline and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)


def product(left, right):
    if left == 7:
        raise ValueError("seven")
    if left == 8:
        os._exit(3)
    return left * right


def raced(folder, text, fidelity):
    """A trial of an architecture as JSON; leaves a note, and ends its process if the file `kill` is there."""
    name = text.replace('"', "").replace(" ", "")
    note = os.path.join(folder, f"{name}-{fidelity}-{os.getpid()}-{time.monotonic_ns()}")
    open(note, "x").close()
    if fidelity == 1 and os.path.exists(kill := os.path.join(folder, "kill")):
        os.remove(kill)
        os._exit(9)
    op = int(json.loads(text)["op"])
    time.sleep(0.05 * (op % 3))  # They end in another order than they begin.
    return float("nan") if op == 5 else (7 * op % 11) + 0.1 * fidelity
