"""Sentences in a table with the columns text and label: `python examples/first_sentences.py FILE.tsv`."""

import sys

from jaxnas import data, runs, search, spaces, supernets, tasks, training

texts = data.from_tsv(sys.argv[1], text="text", label="label")
space = spaces.vit(embed_dim=(32, 48, 64), depth=(1, 2), num_heads=(1, 2, 4), mlp_ratio=(1.0, 2.0))
net = supernets.TextTransformer(space, texts.vocabulary.size, len(texts.classes), texts.length)
task = tasks.Text(data=texts)
settings = training.Training(steps=800, batch_size=64, learning_rate=4e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/sentences")
evolution = runs.Search(runs.ByStrategy(search.Evolution(space, evaluations=60)), most_share=0.9)
result = runs.search_and_finish(task, net, trained.variables, evolution, runs.Lab("runs/sentences"))
print(result.found.metrics["test"], "a linear model:", result.linear)
