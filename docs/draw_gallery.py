"""Draws pictures of the gallery from the tables of docs/benchmarks: `python docs/draw_gallery.py`."""

import pathlib
import re

import matplotlib
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent


def rows(page, first):
    """The cells of the table whose first row has this first cell, below its header."""
    lines = (HERE / "benchmarks" / f"{page}.md").read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"|{first}|"))
    table = [line[1:-1].split("|") for line in lines[begin + 2 :]]
    end = next((i for i, cells in enumerate(table) if len(cells) < 2), len(table))
    return [[cell.strip() for cell in cells] for cells in table[:end]]


def numbers(text):
    """The numbers in a cell, of a mean and its spread two."""
    return [float(x) for x in re.findall(r"-?\d*\.?\d+", text.replace(",", " "))]


def points(name, labels, series, label):
    """A point with its spread for each label and series: {name: [(mean, spread)]}."""
    figure, axes = plt.subplots(figsize=(7, 0.7 + 0.3 * len(labels)), layout="constrained")
    for k, (title, values) in enumerate(series.items()):
        places = [i + (k - (len(series) - 1) / 2) * 0.16 for i in range(len(labels))]
        means, spreads = zip(*values, strict=True)
        axes.errorbar(means, places, xerr=spreads, fmt="o", label=title, capsize=2)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(HERE / "gallery" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def pair(cell):
    """The mean and the spread of a cell, 0 without one."""
    found = numbers(cell)
    return found[0], found[1] if "±" in cell else 0.0


def main():
    """Draws all pictures."""
    matplotlib.rcParams.update({"svg.hashsalt": "jaxnas", "svg.fonttype": "none", "font.size": 10})
    spaces = [
        (cells[0][0], numbers(cells[2])) for cells in rows("vision", "space") if cells[0][1:2] in ("", " ")
    ]
    seeds = {f"seed {i}": [(errors[i], 0.0) for _, errors in spaces] for i in range(3)}
    points("s3", [f"space {name}" for name, _ in spaces], seeds, "E-T error on CIFAR-10, %")

    found = {cells[1]: cells for cells in rows("vision", "config, one seed")[2:]}
    test = numbers(found["random search; largest"][4])
    named = {"found, 27 % of the products": numbers(found["found"][4])[0], "random search": test[0]}
    values = [(x, 0.47) for x in (*named.values(), test[1])]
    points("hybrids", [*named, "largest"], {"NASViT's blocks": values}, "test accuracy on digits, %")

    alone = [cells for cells in rows("attention", "mechanism") if "±" in cells[1]]
    series = {"up to 100 symbols": [pair(c[1]) for c in alone], "up to 200": [pair(c[3]) for c in alone]}
    points("dartformer", [cells[0] for cells in alone], series, "search accuracy on ListOps, alone, %")

    cora = {cells[0]: cells[1] for cells in rows("attention", "network")}
    values = {name: pair(cora[name]) for name in ("found", "random search", "found, published")}
    for name in ("GCN; published", "GAT by loss; published"):
        kind, (ours, theirs) = name.split()[0].strip(";"), cora[name].split(";")
        values |= {kind: pair(ours), f"{kind}, published": pair(theirs)}
    points("autoattend", list(values), {"": list(values.values())}, "test accuracy on Cora, %")

    budgets = rows("pretrained", "budget")
    series = {
        title: [pair(cells[k]) for cells in budgets]
        for k, title in ((1, "solver"), (2, "solver, distilled"), (3, "uniform"), (4, "uniform, distilled"))
    }
    points(
        "smollm2", [f"{cells[0]} kept" for cells in budgets], series, "test perplexity (whole network 36.1)"
    )


if __name__ == "__main__":
    main()
