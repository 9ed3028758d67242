"""Searches of attention: DARTFormer on sequences, AutoAttend on texts and on graphs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

from jaxnas import data, runs, search, spaces, supernets, tasks
from jaxnas.experiments import Config
from jaxnas.recipes import Relaxed
from jaxnas.space import Space
from jaxnas.training import Training

Pool = Literal["cora", "citeseer"]
_text = functools.partial(tasks.Text, label_smoothing=0.0)

# ---- DARTFormer: one layer of the average of all mechanisms, then the strongest of them.

_LISTOPS = supernets.DARTFormer(
    spaces.dartformer(),
    num_classes=10,
    vocabulary=16,
    max_length=2000,
    width=512,
    num_heads=8,
    hidden=1024,
    window=512,
    chunk=50,
)
_ALONE = {name: {"mechanism": name} for name in spaces.DARTFORMER}

DARTFORMER_LISTOPS = Config(
    name="dartformer_listops",
    about="Mechanisms of attention on ListOps as Long Range Arena has it: for a GPU.",
    task=_text(data=data.ListOps(), evaluation_batch_size=64),
    network=_LISTOPS,
    training=Training(
        steps=5000,
        batch_size=32,
        learning_rate=5e-4,
        warmup_steps=1000,
        weight_decay=0.1,
        evaluate_every=1000,
    ),
    recipe=Relaxed(order="joint", relaxation="average"),
    search=runs.Search(runs.Perturbation()),
    architectures=_ALONE,
)

_SHORT = data.ListOps(
    examples=20_000,
    search_examples=2000,
    test_examples=2000,
    max_depth=6,
    max_args=6,
    min_length=20,
    max_length=200,
)
# The mean of all positions is classified: the first one of a single layer sees 15 of 200 symbols by Local and
# all by Linear, so that mechanisms would be told apart by where they look alone.
_LISTOPS_SMALL = _LISTOPS.clone(
    pool="mean",
    max_length=200,
    width=64,
    num_heads=4,
    hidden=128,
    block=16,
    window=16,
    summary=2,
    num_random=2,
    num_projected=16,
    num_buckets=8,
    chunk=16,
)

DARTFORMER_LISTOPS_SMALL = dataclasses.replace(
    DARTFORMER_LISTOPS,
    name="dartformer_listops_small",
    about="The same with up to 200 symbols and a small network: some minutes on two cores.",
    task=_text(data=_SHORT, evaluation_batch_size=200),
    network=_LISTOPS_SMALL,
    training=Training(
        steps=3000, batch_size=32, learning_rate=1e-3, warmup_steps=200, weight_decay=0.1, evaluate_every=500
    ),
)

# As many blocks of one head for each mechanism as there are heads (algorithm 2). Two heads and 100 symbols:
# the supernet has all these blocks, and is evaluated once for each of them in each round.
DARTFORMER_HEADS_SMALL = dataclasses.replace(
    DARTFORMER_LISTOPS_SMALL,
    name="dartformer_heads_small",
    about="The same with a mechanism for each of two heads: the weakest of 18 blocks go one by one.",
    task=_text(data=dataclasses.replace(_SHORT, max_length=100), evaluation_batch_size=200),
    network=_LISTOPS_SMALL.clone(space=spaces.dartformer(heads=2), num_heads=2, max_length=100),
    training=dataclasses.replace(DARTFORMER_LISTOPS_SMALL.training, steps=1000),
    search=runs.Search(runs.Pruning(tune_steps=10), limit=4),
    architectures={name: {"mechanism": [name] * 2} for name in spaces.DARTFORMER},
)

_IMDB = _LISTOPS.clone(num_classes=2, vocabulary=256, max_length=1000, width=256, num_heads=4)

DARTFORMER_IMDB = dataclasses.replace(
    DARTFORMER_LISTOPS,
    name="dartformer_imdb",
    about="Mechanisms of attention on the bytes of film reviews: for a GPU.",
    task=_text(data="imdb_reviews", tokens="bytes", length=1000, evaluation_batch_size=64),
    network=_IMDB,
    training=dataclasses.replace(DARTFORMER_LISTOPS.training, steps=20_000, warmup_steps=4000),
)

DARTFORMER_IMDB_SMALL = dataclasses.replace(
    DARTFORMER_IMDB,
    name="dartformer_imdb_small",
    about="The same with 256 bytes of each review and a small network: a quarter of an hour on two cores.",
    task=_text(data="imdb_reviews", tokens="bytes", length=256, evaluation_batch_size=200),
    network=_LISTOPS_SMALL.clone(num_classes=2, vocabulary=256, max_length=256),
    training=dataclasses.replace(DARTFORMER_LISTOPS_SMALL.training, steps=1200),
    search=runs.Search(runs.Perturbation(), limit=10),
)

# ---- AutoAttend: a supernet of a random architecture in each step, then evolution.


def _evolution(space: Space, random: int, rounds: int, batch: int) -> search.Evolution:
    """The search of the paper: random architectures, and then rounds of mutants of the best (section 4.3).

    Parents are drawn from the best, where the paper mutates each of them once.
    """
    return search.Evolution(
        space,
        evaluations=random + rounds * batch,
        random_first=random,
        population=batch,
        parents=batch,
        mutations=batch,
        crossovers=0,
        layer_probability=0.05,
    )


_SST = supernets.AutoAttendText(spaces.autoattend(24), num_classes=5, width=64)
# Few layers: in as few steps, most networks of six layers learned no more than the most frequent class. The
# contexts of an operation share its weights, since each copy would be trained in few steps only.
_SST_SMALL = supernets.AutoAttendText(
    spaces.autoattend(3), num_classes=5, width=32, num_heads=4, context="none"
)

AUTOATTEND_SST = Config(
    name="autoattend_sst",
    about="24 layers on the sentences and phrases of SST-5: for a GPU.",
    task=_text(data="sst5", phrases=True, length=64, embeddings="glove6b_100d"),
    network=_SST,
    training=Training(
        steps=12_000,
        batch_size=128,
        learning_rate=5e-4,
        weight_decay=0.0,
        clip=5.0,
        evaluate_every=2000,
        checkpoint_every=2000,
    ),
    search=runs.Search(runs.ByStrategy(_evolution(_SST.space, 500, 5, 100))),
    retraining=Training(
        steps=12_000, batch_size=128, learning_rate=5e-4, weight_decay=0.0, clip=1.0, evaluate_every=1000
    ),
    architectures={"published": spaces.autoattend_sst_options()},
)

AUTOATTEND_SST_SMALL = dataclasses.replace(
    AUTOATTEND_SST,
    name="autoattend_sst_small",
    about="3 narrow layers on SST-5: about a quarter of an hour on two cores.",
    task=_text(data="sst5", phrases=True, lengths=(8, 20, 48), embeddings="glove6b_50d"),
    network=_SST_SMALL,
    training=dataclasses.replace(AUTOATTEND_SST.training, steps=4000, batch_size=64, learning_rate=2e-3),
    search=runs.Search(runs.ByStrategy(_evolution(_SST_SMALL.space, 100, 4, 25))),
    retraining=dataclasses.replace(
        AUTOATTEND_SST.alone, steps=2000, batch_size=64, learning_rate=1e-3, evaluate_every=250
    ),
    architectures={},
)


def _nodes(
    name: str,
    about: str,
    operations: tuple[str, ...],
    classes: int,
    pool: Pool,
    width: int,
    steps: int = 2000,
) -> Config:
    # Without a frame as in the authors' code, where an identity would have to change the number of features.
    space = spaces.autoattend(2, tuple(name for name in operations if name != "identity"))
    network = supernets.AutoAttendNodes(space, num_classes=classes, pool=pool, width=width, framed=False)
    training = Training(
        steps=steps,
        batch_size=1,
        learning_rate=5e-3,
        warmup_steps=0,
        weight_decay=0.1,
        clip=5.0,
        evaluate_every=200,
        checkpoint_every=500,
        devices=1,
    )
    return Config(
        name=f"autoattend_{name}",
        about=f"2 layers on the citation network {about}",
        # Few words of the bag are in a paper, but of those of PubMed, 10 %.
        task=tasks.Graphs(data=name, normalize=True, sparse=name != "pubmed"),
        network=network,
        training=training,
        search=runs.Search(runs.ByStrategy(_evolution(network.space, 500, 5, 100))),
        # As the papers train, with an L2 term in place of a decoupled decay.
        retraining=dataclasses.replace(training, steps=600, weight_decay=0.0, l2=5e-4, evaluate_every=10),
    )


_CITESEER = spaces.AUTOATTEND_CITESEER
AUTOATTEND_CORA = _nodes("cora", "Cora.", spaces.AUTOATTEND_CORA, 7, "cora", 64)
# The best networks had 74.4 % of CiteSeer's validation nodes, and 70.6 % after 2,000 steps.
AUTOATTEND_CITESEER = _nodes("citeseer", "CiteSeer.", _CITESEER, 6, "citeseer", 256, steps=1000)
AUTOATTEND_PUBMED = _nodes("pubmed", "PubMed: for a GPU.", _CITESEER, 3, "citeseer", 256, steps=1000)

CONFIGS = (
    DARTFORMER_LISTOPS,
    DARTFORMER_LISTOPS_SMALL,
    DARTFORMER_HEADS_SMALL,
    DARTFORMER_IMDB,
    DARTFORMER_IMDB_SMALL,
    AUTOATTEND_SST,
    AUTOATTEND_SST_SMALL,
    AUTOATTEND_CORA,
    AUTOATTEND_CITESEER,
    AUTOATTEND_PUBMED,
)
