"""Whether a result is any good, as the page and the terminal say it, and what they advise."""

import dataclasses
import random

import pytest
import workdirs
from workdirs import change, page_of

from jaxnas import files
from jaxnas.report import advice
from jaxnas.report import result as result_lib
from jaxnas.report.findings import TIMED, read_run
from jaxnas.report.page import summary_lines


def train(root, loss, every=10):
    """Training records whose loss is a function of the part that is done, with noise."""
    noise = random.Random(0)
    lines = [
        {"step": step, "split": "train", "loss": loss(step / 1000) + noise.gauss(0, 0.02)}
        for step in range(every, 1001, every)
    ]
    workdirs.write_lines(root / "metrics.jsonl", lines)


def advised(root, shown="DIR"):
    return "\n".join(f"{text}\n{code}" for text, code in advice.advice(read_run(root), shown))


@pytest.fixture
def vision(tmp_path):
    return workdirs.vision(tmp_path, evaluations=20)


@pytest.mark.parametrize("every", [1, 50])
def test_a_loss_that_still_falls_asks_for_twice_the_steps(vision, every):
    for loss, improving in (
        (lambda part: 3 - 2 * part, True),
        (lambda part: 1 + (part < 0.5), False),
        (lambda part: 1.0, False),
    ):
        train(vision, loss, every)
        assert bool(advice.still_improving(read_run(vision))) == improving
        assert ("training.steps=2000" in advised(vision)) == improving
        # What is flat is said so where the noise of many losses leaves no room for a fall.
        assert ("was flat" in advised(vision)) == (every == 1 and loss(0) > loss(1) and not improving)
    train(vision, lambda part: 3 - part, every=350)  # two losses
    assert advice.still_improving(read_run(vision)) is None
    workdirs.write_lines(vision / "metrics.jsonl", [])
    assert advice.still_improving(read_run(vision)) is None and "steps=" not in advised(vision)


def test_a_linear_model_stands_beside_the_network(vision):
    assert "linear model" not in page_of(vision).text
    for value, good in ((0.5, True), (0.99, False)):
        change(vision, linear={"search": value, "test": value})
        text = page_of(vision).text
        assert text.count("linear model (logistic regression)") == 1 + (not good)  # the row; the advice
        assert f"{100 * value:.2f} %" in text and ("another learning rate" in advised(vision)) != good
        assert ("is better by" in " ".join(summary_lines(vision))) != good


def test_advice_is_of_what_made_the_run(vision):
    """Commands for binaries, with every --set of the training; calls for Python; nothing that was done."""
    train(vision, lambda part: -part)
    settings = ["a=1", "training.steps=9"]
    config = {"name": "digits", "--config": "own.py:a", "--set": settings, "search": {"limit": 1}}
    change(vision, config=config)
    commands = advised(vision, "runs/my run")
    assert "train_supernet --config=own.py:a --workdir=NEW --set a=1 --set training.steps=2000\n" in commands
    assert "retrain --config=own.py:a '--workdir=runs/my run'" in commands
    assert "--set search.method=strategy --set search.method.finalists=5 --set search.ranked=10" in commands
    change(vision, config={"search": {"method": {"finalists": 3}}})
    said = advised(vision)
    assert "experiments" not in said and "2,000 steps" in said and "runs.retrain" in said
    assert "finalists=5" not in said and "ranked=10" in said
    folder, run = vision / "retrained" / "found", read_run(vision).result
    folder.mkdir(parents=True)
    for value, retrain in ((1.0, False), (0.1, True)):
        alone = {"weights": "from scratch", "seed": 0, "steps": 5, "metrics": {"test": {"accuracy": value}}}
        result_lib.write(folder, dataclasses.replace(run, found=dataclasses.replace(run.found, **alone)))
        assert ("Fine-tune" in advised(vision)) == retrain and "runs.retrain" not in advised(vision)


@pytest.mark.parametrize(
    "own, largest, smallest, said",  # quartiles of networks, and what the page says
    [
        ((0.5, 0.6, 0.7), (1.1, 1.2, 1.3), (0.2, 0.3, 0.4), "50 % of the largest|keeps the budget of"),
        ((0.8, 0.95, 1.1), (1.0, 1.2, 1.3), (1.2, 1.3, 1.4), "no faster|noise, at the budget"),
        ((1.0, 1.1, 1.2), (2.1, 2.2, 2.3), (0.2, 0.3, 0.4), "50 % of the largest|exceeds the budget of"),
    ],
)
def test_a_run_claims_no_more_speed_than_it_measured(tmp_path, own, largest, smallest, said):
    """Times that overlap are no gain, and the budget is compared with what was measured."""
    root = workdirs.own(tmp_path)
    times = {"found": own, "largest": largest, "smallest": smallest}
    record = {"rows": 8, "device": "chip", "milliseconds": times}
    files.write_json(root / TIMED, record | {"architecture": read_run(root).result.found.architecture})
    text = " ".join(summary_lines(root))
    assert all(part in text for part in said.split("|")), text
    page = page_of(root).text
    assert "Latency, as measured" in page and f"with {own[1]:g} ms latency" in page
    files.write_json(root / TIMED, record | {"architecture": {}})  # of a network that was found before
    assert "as measured" not in page_of(root).text
