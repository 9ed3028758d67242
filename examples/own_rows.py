"""A table of your own: what is found beside a linear model. Run it by `python examples/own_rows.py`."""

from sklearn import datasets, linear_model

from jaxnas import data, runs, spaces, supernets, tasks, training

x, y = datasets.load_diabetes(return_X_y=True)
given = data.from_table(x[:350], y[:350], x[350:], y[350:], name="diabetes")
task = tasks.Table(data=given)
net = supernets.TableMlp(spaces.mlp((8, 16), (1, 2), (8, 16)), num_outputs=1)
trained = training.fit(task, net, 300)
result = runs.search_and_finish(task, net, trained.variables, runs.Search(), runs.Lab("runs/own_rows"))
linear = linear_model.Ridge(1e-2).fit(x[:350], y[:350])
print(result.found.metrics["test"], "a linear model has r2", linear.score(x[350:], y[350:]))
