"""Classification of texts: nothing is seen behind the end of a text, and batches have several lengths."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_tasks import net_of, task_of

import jaxnas
from jaxnas import Choice, Space, data, runs, tasks
from jaxnas.elastic import Decisions, Dense, fixed, width
from jaxnas.report import result as results
from jaxnas.training import Options, Training, fit, make_evaluator
from jaxnas.training.mesh import make_mesh

TASK, NET = task_of("text"), net_of("text")


@pytest.fixture(scope="module")
def variables():
    return jaxnas.init(NET, jax.random.key(0), TASK.inputs)


def test_the_words_decide_and_not_what_fills_a_row_up(variables):
    batch = TASK.batches("train", 8, 0).at(0)
    arch, key = NET.space.largest(), jax.random.key(0)

    def loss(batch):
        return float(TASK.loss(tasks.Call(NET, variables, arch, batch, key=key))[0])

    filled = {**batch, "tokens": np.where(batch["mask"], batch["tokens"], 0)}
    other = {**batch, "tokens": np.where(batch["mask"], 5, batch["tokens"])}
    assert loss(filled) == loss(batch) != loss(other)


class VectorReader(nn.Module):
    """The mean of the vectors of the words that a mask leaves, and a hidden layer."""

    space: Space
    dim: int

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        hidden = width(int, decisions["hidden"])
        words = jnp.sum(inputs["mask"], axis=1, dtype=jnp.float32)[:, None]
        x = jnp.sum(inputs["vectors"], axis=1) / words  # [B, G]
        x = jnp.tanh(Dense(name="hidden")(x, fixed(self.dim), hidden))
        return Dense(name="out")(x, hidden, fixed(2))


@pytest.fixture
def task_with_vectors(tmp_path):
    """Texts of very different lengths, of two classes that their vectors say."""
    random = np.random.default_rng(0)
    labels = np.arange(80) % 2
    words = ("bad", "poor"), ("good", "fine")
    texts = [" ".join(random.choice(words[label], 1 + i % 12)) for i, label in enumerate(labels)]
    path = tmp_path / "words.txt"
    path.write_text("good 1 0 1\nfine 1 1 0\nbad -1 0 1\npoor -1 1 0\n")
    given = data.from_texts(texts, labels, encoding=data.Encoding(tokens="english"))
    return tasks.Text(data=given, embeddings=str(path), lengths=(4, 8, 12), evaluation_batch_size=16).load()


def test_each_length_is_compiled_once_a_resumed_training_is_the_same_and_texts_go_the_whole_road(
    task_with_vectors, tmp_path
):
    traces = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Counted(tasks.Text):
        def loss(self, call):
            traces.append(call.batch["tokens"].shape)
            return super().loss(call)

    fields = {field.name: getattr(task_with_vectors, field.name) for field in dataclasses.fields(tasks.Text)}
    task, net = Counted(**fields), VectorReader(Space(hidden=Choice(2, 4)), dim=3)
    training = Training(steps=40, batch_size=8, learning_rate=0.1, evaluate_every=100, checkpoint_every=5)
    once = fit(task, net, training, workdir=tmp_path / "once")
    trained = [shape for shape in traces if shape[0] == 8]
    assert sorted(set(trained)) == [(8, 4), (8, 8), (8, 12)]
    assert len(trained) == 3

    def stop(step, record):
        if step == 20:
            raise KeyboardInterrupt

    settings = dataclasses.replace(training, log_every=10)
    with pytest.raises(KeyboardInterrupt):
        fit(task, net, settings, workdir=tmp_path / "twice", options=Options(log=[stop]))
    again = fit(task, net, settings, workdir=tmp_path / "twice")
    jax.tree.map(np.testing.assert_array_equal, once.variables, again.variables)
    with pytest.raises(ValueError, match="steps_per_call"):
        fit(task, net, dataclasses.replace(training, steps_per_call=5))

    root, mesh = tmp_path / "once", make_mesh(1)
    settings = runs.Search(budget="macs", most_share=0.9)
    runs.search_and_finish(task_with_vectors, net, once.variables, settings, runs.Lab(root, mesh=mesh))
    result = results.read(root)
    assert result.task.details["words_with_vectors"] == {"train": 1.0, "search": 1.0, "test": 1.0}
    assert "float32[1, 12, 3]" in result.task.inputs.replace("f32", "float32")
    page = (root / "report.html").read_text()
    assert "words with vectors" in page and "words.txt, 3 numbers each" in page
    small, variables = jaxnas.load_subnet(root / "subnet", module=VectorReader)
    loaded = make_evaluator(task_with_vectors, small, "test", mesh=mesh)(variables)
    assert loaded["accuracy"] > 0.9
    np.testing.assert_allclose(loaded["loss"], result.found.metrics["test"]["loss"], rtol=1e-5)
