"""A checkpoint of which a search cuts parts: from a folder and a text to a folder that transformers loads."""

import dataclasses
import functools
import json

import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from hf_checkpoints import CASES, logits, make, reloaded, with_tokenizer
from scipy import special
from small_nets import difference

import jaxnas
from jaxnas import data, files, hf, runs, tasks
from jaxnas.hf import prunable
from jaxnas.recipes import Distillation
from jaxnas.report import findings
from jaxnas.report import result as results
from jaxnas.runs.replacing import Imitation
from jaxnas.search.random_search import Listed
from jaxnas.training import Training, make_evaluator

pytest.importorskip("transformers", reason="it comes with the extra `torch`")
WORDS = "the quick brown fox jumps over a lazy dog and runs home before it rains again today".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    with_tokenizer(folder, WORDS)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(np.random.default_rng(i).choice(WORDS, 12)) for i in range(300)))
    return path


@pytest.fixture(scope="module")
def task(folder, text):
    corpus = data.from_text(text, tokenizer=str(folder))
    return tasks.Language(data=corpus, length=12, evaluation_rows=4, evaluation_tokens=97)


@pytest.fixture(scope="module")
def loaded(folder, task):
    cuts = hf.Prunable(checkpoint=str(folder), hidden=(0.25, 0.5, 1.0), calibration=2, batch=3, form="masked")
    return cuts.load(task)


def test_a_text_has_the_tokens_of_the_checkpoint(folder, text, task):
    import transformers

    vocabulary = task.dataset.vocabulary
    whole = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    expected = whole.encode(text.read_text(), add_special_tokens=False)
    assert np.concatenate([x.tokens for x in task.dataset.splits.values()]).shape == (len(expected),)
    assert task.dataset.train.tokens.tolist() == expected[: len(task.dataset.train)]
    assert vocabulary.size == len(WORDS) and vocabulary.decode([1, 3]) == "quick fox"
    assert task.evaluation("search")["weight"].sum() == 96
    stream = task.dataset.search
    average = stream.n_bytes / len(stream)
    assert task.evaluation("search")["bytes"].sum() == pytest.approx(96 * average, rel=0.02)


def test_the_whole_network_stays_the_same_function_and_memory_is_counted_for_a_batch(folder, task, loaded):
    net, variables = loaded
    module, stored, _ = hf.load(folder)
    inputs = task.preprocess(task.batches("train", 2, 0).at(0))
    whole = net.space.largest()
    expected = module.apply(stored, inputs["tokens"])
    assert difference(net.apply(variables, inputs, whole), expected) < 1e-5
    assert any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (variables, stored)), strict=True))
    costs = jaxnas.cost(net, task.inputs)(whole)
    assert costs["memory"] == 4 * costs["params"] + 3 * costs["kv_bytes"] > 4 * costs["params"]
    assert net.vocabulary == module.vocabulary and net.space["layers_*/mlp/hidden"].options == (10, 20, 40)


def test_the_divergence_is_that_of_the_predictions(task, loaded):
    net, variables = loaded
    imitation = Imitation(task, net, variables, net.space.largest())
    evaluate = make_evaluator(imitation, net, "search", limit=1)
    small = net.space.smallest() | {"layers_*/mlp": np.array([1, 1]), "layers_*/attention": np.array([1, 1])}
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), task.evaluation("search", None, 1))
    apply = functools.partial(net.apply, variables, task.preprocess(batch))
    p, q = (jax.nn.softmax(apply(arch)) for arch in (net.space.largest(), small))
    nats = special.rel_entr(np.asarray(p, np.float64), np.asarray(q, np.float64)).sum(-1)
    expected = (nats * batch["weight"]).sum() / batch["weight"].sum()
    assert expected > 0.01
    np.testing.assert_allclose(evaluate(variables, small)["kl"], expected, rtol=1e-3)
    np.testing.assert_allclose(evaluate(variables, net.space.largest())["kl"], 0, atol=1e-6)


def test_one_command_from_a_folder_to_a_folder(folder, text, tmp_path):
    """Found by replacements, distilled, loaded by transformers; the same command again changes nothing."""
    settings = {
        "network.checkpoint": folder,
        "network.hidden": "0.25,0.5,1.0",
        "network.form": "masked",
        "network.length": 64,
        "task.data": text,
        "task.length": 12,
        "task.evaluation_rows": 4,
        "search.budget": "memory",
        "search.most_share": 0.8,
        "search.method.samples": 3,
        "retraining.steps": 3,
        "retraining.warmup_steps": 1,
    }
    sets = [f"--set={name}={value}" for name, value in settings.items()]
    command = "search", "--config=shrink_decoder", f"--workdir={tmp_path}", *sets
    done = in_process.run(*command)
    assert done.status == 0, done.stderr
    result = results.read(tmp_path)
    whole, found = result.networks[-1], result.found
    assert whole.name == "largest" and found.costs["memory"] <= 0.8 * whole.costs["memory"]
    assert found.extraction_error < 1e-5 and result.loader == "AutoModelForCausalLM"
    record = result.replacements
    assert record.evaluations == len((tmp_path / "search/replacements.jsonl").read_text().splitlines()) - 3
    # Each layer's attention without one or both of its key/value heads, its MLP of three sizes or none.
    assert record.evaluations == 1 + 2 * (2 + 3)
    assert [one.share for one in record.others][:2] == [0.9, 0.8]
    (retrained,) = findings.read_run(tmp_path).retrained
    assert retrained.network.weights == "fine-tuned" and retrained.network.steps == 3
    page = (tmp_path / "report.html").read_text()
    assert "AutoModelForCausalLM" in page and "What other budgets would cost" in page

    module, variables, _ = hf.load(tmp_path / "subnet")
    assert sum(x.size for x in jax.tree.leaves(variables)) == found.costs["params"]
    tokens = np.random.default_rng(0).integers(0, 15, (2, 12)).astype(np.int32)
    model = reloaded(tmp_path / "subnet", CASES["llama"][0])
    assert difference(logits(model, tokens), module.apply(variables, tokens)) < 2e-5
    assert (tmp_path / "subnet/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    evaluated = in_process.run("evaluate", f"--workdir={tmp_path}")
    assert evaluated.status == 0, evaluated.stderr
    figure = json.loads(evaluated.stdout)["perplexity"]
    assert figure == pytest.approx(retrained.network.metrics["test"]["perplexity"], rel=1e-4)

    kept = [tmp_path / "result.json", tmp_path / "search/replacements.jsonl"]
    before = [path.read_bytes() for path in kept]
    assert in_process.run(*command).status == 0
    assert before == [path.read_bytes() for path in kept]


@pytest.mark.nightly
def test_an_image_classifier_is_shrunk_on_images(tmp_path):
    """In Python; images are standardized as the checkpoint says, and the folder found is loaded again."""
    make("vit", tmp_path / "vit")
    standard = {"image_mean": [0.5], "image_std": [0.25]}
    files.write_json(tmp_path / "vit" / "preprocessor_config.json", standard)
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (140, 8, 8, 3)).astype(np.uint8), np.arange(140) % 7
    own = data.from_arrays(images, labels, name="pixels")
    cuts = hf.Prunable(checkpoint=str(tmp_path / "vit"), hidden=(0.5, 1.0), calibration_rows=4, calibration=2)
    task = cuts.adapted(tasks.Images(data=own, evaluation_batch_size=16))
    np.testing.assert_allclose(task.preprocess({"image": np.full((1, 1, 1, 3), 255.0)}), 2.0, rtol=1e-6)
    net, variables = cuts.load(task)
    settings = runs.Search(runs.Replacements(samples=2), most_share=0.7, limit=1)
    result = runs.search_and_finish(task, net, variables, settings, runs.Lab(tmp_path / "run"))
    whole = prunable.whole(tmp_path / "run/subnet")
    again, stored = whole.load(task)
    metrics = make_evaluator(task, again, "test")(stored)
    np.testing.assert_allclose(metrics["accuracy"], result.found.metrics["test"]["accuracy"], atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], result.found.metrics["test"]["loss"], rtol=1e-4)
    others = dataclasses.replace(own, classes=tuple(f"LABEL_{i}" for i in (1, 0, 2, 3, 4, 5, 6)))
    floats = data.from_arrays(images / 255.0, labels, name="floats")
    seven = data.from_arrays(images[labels < 6], labels[labels < 6], name="six")
    refusals.check(
        (lambda: cuts.load(tasks.Images(data=others)), ValueError, "LABEL_1, LABEL_0"),
        (lambda: cuts.load(tasks.Images(data=seven)), ValueError, "six", "6", "7"),
        (lambda: cuts.adapted(tasks.Images(data=floats)), ValueError, "float"),
    )


def test_mistakes(folder, text, task, loaded):
    net, variables = loaded
    letters = tasks.Language(data=data.from_text(text), length=12)
    with_tokenizer(text.parent, ["the"])
    path = text.with_name("tokenizer.json")
    foreign = tasks.Language(data=data.from_text(text, tokenizer=str(path)), length=12)
    damaged = text.with_name("damaged.json")
    damaged.write_text("{}")
    cuts, arch = hf.Prunable(checkpoint=str(folder)), net.space.largest()
    lab = runs.Lab(folder, alone=Training(steps=2, batch_size=1))
    retrain = functools.partial(runs.retrain, task, net, arch, lab, distill=Distillation())
    refusals.check(
        (lambda: hf.Prunable(checkpoint="").load(task), ValueError, "network.checkpoint"),
        (lambda: hf.Prunable(checkpoint="x", hidden=(0.5, 1.5)), ValueError, "hidden", "1.5"),
        (lambda: hf.Prunable(checkpoint="x", skip=("layer",)), ValueError, "skip", "'layer'"),
        (lambda: hf.Prunable(checkpoint="x", batch=0), ValueError, "batch"),
        (lambda: cuts.load(letters), ValueError, "ByteVocabulary", str(folder)),
        (lambda: cuts.load(foreign), ValueError, str(folder / "tokenizer.json")),
        (lambda: data.from_text(text, tokenizer=str(damaged)), ValueError, str(damaged)),
        (lambda: data.from_text(text, tokenizer=str(text.parent)[:-1] + ".json"), FileNotFoundError, "json"),
        (lambda: net.save(folder.with_name("out"), variables), ValueError, f"{net.space.cardinality:,}"),
        (lambda: retrain(), ValueError, "Distillation"),
        (lambda: Listed(net.space), TypeError, "given"),
    )
