"""What the run was made of and how to go on: the data and their roles, the saved network, the commands."""

from __future__ import annotations

from jaxnas.report import headline, kept, words
from jaxnas.report.commands import AGAIN, binaries, by_binaries, command
from jaxnas.report.document import block, code, facts, note, plain_table, say, section
from jaxnas.report.read import Run
from jaxnas.report.svg import count, esc

_USES = {
    "train": "the weights are trained on it, and nothing else",
    "search": "held out of training; the scores of the search are measured on it, and decide what is found",
    "validation": "never trained on; it shows how well a network generalises while settings are chosen",
    "test": "seen by neither training nor search; the networks are measured on it when everything has ended",
}

_LOAD = """import jaxnas{imported}

net, variables = jaxnas.load_subnet("{subnet}"{module})  # the folder beside this page
predictions = net.apply(variables, inputs)"""

_LOAD_EXPORTED = """from jax import export  # needs jax and flatbuffers alone; runs on CPU, CUDA GPU and TPU

model = export.deserialize(open("{subnet}/model.stablehlo", "rb").read())
predictions = model.call(inputs)"""


def data_panel(run: Run) -> str:
    """The section of the data: what they are, and which role was used for what."""
    task = run.result.task
    sizes = {role: size for role, size in task.sizes.items() if size > 0}
    bar = "".join(
        f'<div class="s-{role}" style="flex:{size}"></div>' for role, size in sizes.items() if role in _USES
    )
    rows = []
    for role, size in task.sizes.items():
        swatch = f'<span class="swatch s-{role}"></span>' if role in _USES else ""
        rows.append((swatch + esc(role), esc(count(size)), _USES.get(role, "as the task defines it")))
    details = [
        f"{esc(name.replace('_', ' '))}: {esc(_several(name, value))}" for name, value in task.details.items()
    ]
    return section(
        "Data, and which part was used for what",
        say(", ".join([esc(task.name), *details])),
        f'<div class="splits" aria-hidden="true">{bar}</div>' if bar else "",
        plain_table(("role", task.examples, "use"), rows) if rows else "",
    )


def _several(name: str, value: object) -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return (" × " if name.endswith("shape") else ", ").join(map(words.show, value))


_LOAD_CHECKPOINT = """from transformers import {loader}{more}

model = {loader}.from_pretrained("{subnet}")  # the folder beside this page{prepare}"""


def loading_panel(run: Run) -> str:
    """The section on how to load the found network."""
    if run.result.loader:
        return _checkpoint_panel(run)
    subnet, inputs, module = run.result.subnet or "subnet", run.result.task.inputs, run.result.module
    imported = f"\nfrom my_network import {module}  # from where your class is" if module else ""
    own = f", module={module}" if module else ""
    return section(
        "Load the network",
        block(_LOAD.format(subnet=subnet, imported=imported, module=own)),
        note(f"It takes <code>inputs</code>: {esc(inputs)}." if inputs else ""),
        note(
            f"It is the network of the headline, {esc(_weights(run))}. How its inputs are made, and what its "
            f"outputs mean, is in <code>{esc(subnet)}/preprocessing.json</code>."
        ),
    )


def _checkpoint_panel(run: Run) -> str:
    loader, subnet = run.result.loader, run.result.subnet
    more, prepare = "", ""
    if loader == "AutoModelForCausalLM":
        more, prepare = ", AutoTokenizer", f'\ntokenizer = AutoTokenizer.from_pretrained("{subnet}")'
    lines = _LOAD_CHECKPOINT.format(loader=loader, subnet=subnet, more=more, prepare=prepare)
    return section(
        "Load the network",
        block(lines),
        note(
            f"It is the network of the headline, {esc(_weights(run))}, as a Hugging Face checkpoint. With "
            f'jaxnas: <code>module, variables, config = jaxnas.hf.load("{esc(subnet)}")</code>.'
        ),
    )


def _weights(run: Run) -> str:
    """Where the weights of the saved network come from."""
    chosen, found = headline.retrained(run), run.result.found
    network = found if chosen is None else chosen.network
    if network.weights == "inherited":
        return "with the weights of the supernet"
    trained = "trained" if network.weights == "from scratch" else ""
    return f"{trained} {network.weights}, seed {network.seed}, {count(network.steps or 0)} steps".strip()


def exported_panel(run: Run) -> str:
    """The section on how to use the found network without jaxnas; "" for a checkpoint."""
    if run.result.loader:
        return ""
    return section(
        "Load the network without jaxnas",
        say(f"The same network was exported as StableHLO{_for_batches(run.result.exported_batch)}."),
        block(_LOAD_EXPORTED.format(subnet=run.result.subnet or "subnet")),
    )


def _for_batches(size: int | None) -> str:
    return "" if size is None else f", for batches of {size}: it takes no symbolic batch size"


def settings_panel(run: Run) -> str:
    """The section on how the run was made: commands, configuration and versions."""
    config = dict(run.result.config)
    calls = config.pop(AGAIN, "")
    if kept.places_of(run.result):  # which are drawn
        config["network"] = {name: x for name, x in config["network"].items() if name != "places"}
    if by_binaries(run):
        calls = "\n".join(command(run, binary) for binary in binaries(run))
    shared = config.get("retraining") or config.get("alone") or config.get("training") or {}
    for one in run.retrained:
        config[f"retrained/{one.folder}"] = {
            name: value for name, value in one.settings.items() if shared.get(name) != value
        }
    versions = dict(run.result.versions) | ({"device": run.result.device} if run.result.device else {})
    return section(
        "How this was made",
        code("Run it again", calls) if isinstance(calls, str) and calls else "",
        note(
            "The same configuration on the same kind of machine gives the same weights, the same search and "
            "this page again."
        )
        if calls
        else "",
        facts("Configuration", config) or note("The configuration was not recorded."),
        facts("Made with", versions),
    )
