"""Pictures in folders named like their classes. Run it by `python examples/first_pictures.py FOLDER`."""

import sys

from jaxnas import data, runs, search, spaces, supernets, tasks, training

pictures = data.from_folder(sys.argv[1], size=32)
task = tasks.Images(data=pictures, crop_padding=2, flip=True)
net = supernets.ConvNet(spaces.convnet(), num_classes=len(pictures.classes))
settings = training.Training(steps=1200, batch_size=64, learning_rate=4e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/pictures")
evolution = runs.Search(runs.ByStrategy(search.Evolution(net.space, evaluations=100)), most_share=0.6)
result = runs.search_and_finish(task, net, trained.variables, evolution, runs.Lab("runs/pictures"))
print(result.found.metrics["test"], "a linear model:", result.linear)
