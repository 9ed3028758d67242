"""Images that are arrays: the digits of scikit-learn. Run it by `python examples/first_digits.py`."""

import sklearn.datasets

from jaxnas import data, runs, search, spaces, supernets, tasks, training

images, labels = sklearn.datasets.load_digits(return_X_y=True)
task = tasks.Images(data=data.from_arrays(images.reshape(-1, 8, 8), labels))
net = supernets.ConvNet(spaces.convnet(kernel=((3,), (3,))), num_classes=10)
settings = training.Training(steps=1200, batch_size=64, learning_rate=4e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/digits")
evolution = runs.Search(runs.ByStrategy(search.Evolution(net.space, evaluations=100)), most_share=0.6)
result = runs.search_and_finish(task, net, trained.variables, evolution, runs.Lab("runs/digits"))
print(result.found.metrics["test"], "a linear model:", result.linear)
