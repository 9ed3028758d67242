"""Reinforcement learning: a policy draws architectures and is trained on their scores.

REINFORCE (Williams 1992; Zoph and Le 2017) and PPO (Schulman et al. 2017), for any policy: a frozen
dataclass with pure functions of its parameters.

  init(key, space) -> params
  sample(params, space, key, context) -> code, int32 [L]
  evaluate(params, space, code, context) -> log-probability [], entropy [], value []

`context` is what the search has seen so far, float32 [CONTEXT]. Decisions that the earlier ones make
inactive are not counted. `value` predicts the reward from the context.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas.checks import check_counts, check_key, check_methods, check_numbers
from jaxnas.search.neighbors import canonical_codes
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, as_told, ranking
from jaxnas.space import Arch, Space

CONTEXT = 3
_DRAWS = 8  # Draws of the policy for each architecture asked: most are known once it is sure.


def _allowed(space: Space) -> jax.Array:
    """Which options each decision has, bool [L, W]."""
    width = max(space.sizes)
    return jnp.arange(width)[None, :] < jnp.asarray(space.sizes, jnp.int32)[:, None]


def _decided_in_order(space: Space) -> np.ndarray:
    """For which decisions all that may make them inactive are decided before, bool [L]."""
    order, known = list(space.choices), []
    for place, (_, choice) in enumerate(space.decisions):
        deciding = [choice.active, choice.condition[0] if choice.condition else None]
        before = all(order.index(name) < place for name in deciding if name is not None)
        known += [before] * (choice.length or 1)
    return np.asarray(known)


def _score(space: Space, logits: jax.Array, code: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of the active decisions under logits [L, W]."""
    log_probabilities = jax.nn.log_softmax(jnp.where(_allowed(space), logits, -1e9))
    active = space.active_code(space.decode(code)).astype(jnp.float32)
    chosen = jnp.take_along_axis(log_probabilities, code[:, None], axis=1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=1)
    return jnp.sum(active * chosen), jnp.sum(active * entropy)


@dataclasses.dataclass(frozen=True)
class SoftmaxPolicy:
    """An independent softmax for each decision (Zoph and Le's baseline; NAS-Bench-201's REINFORCE)."""

    scale: float = 1e-3  # standard deviation of the logits at the start

    def __post_init__(self):
        check_numbers(self, "scale", least=0)

    def init(self, key: jax.Array, space: Space) -> Any:
        """Returns the parameters at the start."""
        shape = (space.length, max(space.sizes))
        return {"logits": self.scale * jax.random.normal(key, shape), "value": jnp.float32(0)}

    def sample(self, params: Any, space: Space, key: jax.Array, context: jax.Array) -> jax.Array:
        """A random canonical architecture, int32 [L]."""
        del context
        logits = jnp.where(_allowed(space), params["logits"], -jnp.inf)
        return canonical_codes(space, jax.random.categorical(key, logits))

    def evaluate(self, params: Any, space: Space, code: jax.Array, context: jax.Array) -> Any:
        """Log-probability, entropy and value, float32 [] each."""
        del context
        return *_score(space, params["logits"], code), params["value"]


class _Decoder(nn.Module):
    """A causal Transformer over [context, decision 1, ...]: logits of each decision from those before."""

    space: Space
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, code: jax.Array, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        length, options = self.space.length, max(self.space.sizes)
        # Repeats of one choice share the embeddings of its options.
        kinds = [i for i, (_, c) in enumerate(self.space.decisions) for _ in range(c.length or 1)]
        tokens = jnp.asarray(np.asarray(kinds) * options, jnp.int32) + code
        init = nn.initializers.normal(0.1)
        embedded = nn.Embed(len(self.space) * options, self.width, embedding_init=init)(tokens)
        first = nn.Dense(self.width, name="context")(context)[None]
        x = jnp.concatenate([first, embedded[:-1]])  # [L, width]
        x = x + self.param("positions", init, (length, self.width))
        causal = nn.make_causal_mask(jnp.ones((length,)))
        for layer in range(self.layers):
            y = nn.LayerNorm(name=f"attention_norm_{layer}")(x)
            attention = nn.MultiHeadDotProductAttention(self.heads, name=f"attention_{layer}")
            x = x + attention(y, mask=causal)  # pyrefly: ignore[unsupported-operation] # no None
            y = nn.LayerNorm(name=f"mlp_norm_{layer}")(x)
            y = nn.gelu(nn.Dense(4 * self.width, name=f"mlp_in_{layer}")(y))
            x = x + nn.Dense(self.width, name=f"mlp_out_{layer}")(y)
        x = nn.LayerNorm(name="norm")(x)
        # A small last layer: the first architectures are nearly uniform.
        last = nn.initializers.variance_scaling(1e-4, "fan_in", "normal")
        logits = nn.Dense(options, kernel_init=last, name="logits")(x)
        return logits, nn.Dense(1, kernel_init=last, name="value")(x[0])[0]


@dataclasses.dataclass(frozen=True)
class TransformerPolicy:
    """A causal Transformer over the decisions; its first token carries what the search has seen so far.

    Attributes:
      width, layers, heads: of the Transformer.
    """

    width: int = 32
    layers: int = 2
    heads: int = 4

    def __post_init__(self):
        check_counts(self, "width", "layers", "heads")
        if self.width % self.heads:
            raise ValueError(
                f"TransformerPolicy: width is {self.width}, expected a multiple of the {self.heads} heads."
            )

    def _module(self, space: Space) -> _Decoder:
        return _Decoder(space, self.width, self.layers, self.heads)

    def init(self, key: jax.Array, space: Space) -> Any:
        """Returns the parameters at the start."""
        code = jnp.zeros((space.length,), jnp.int32)
        return self._module(space).init(key, code, jnp.zeros((CONTEXT,)))["params"]

    def sample(self, params: Any, space: Space, key: jax.Array, context: jax.Array) -> jax.Array:
        """A random canonical architecture, int32 [L]."""
        allowed, module = _allowed(space), self._module(space)
        known = jnp.asarray(_decided_in_order(space))

        def decide(code: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            place, key = step
            logits, _ = module.apply({"params": params}, code, context)
            option = jax.random.categorical(key, jnp.where(allowed[place], logits[place], -jnp.inf))
            # Later decisions see what `evaluate` will show them: an inactive one is canonical.
            active = space.active_code(space.decode(code))[place] | ~known[place]
            return code.at[place].set(jnp.where(active, option, 0)), None

        steps = jnp.arange(space.length), jax.random.split(key, space.length)
        code, _ = jax.lax.scan(decide, jnp.zeros((space.length,), jnp.int32), steps)
        return canonical_codes(space, code)

    def evaluate(self, params: Any, space: Space, code: jax.Array, context: jax.Array) -> Any:
        """Log-probability, entropy and value, float32 [] each."""
        logits, value = self._module(space).apply({"params": params}, code, context)
        return *_score(space, logits, code), value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
    """The memory of a policy search: parameters, optimizer state, and the moving average of rewards."""

    params: Any
    opt_state: Any
    average: jax.Array  # float32 []
    weight: jax.Array  # of the average, for its bias correction, float32 []


@dataclasses.dataclass(frozen=True)
class Reinforce(Strategy):
    """Policy gradients on batches of architectures; use as `Strategy`.

    The reward of an architecture is the share of all scores so far that its own exceeds. Nothing is evaluated
    twice: of the policy's draws the new ones are asked for, and random ones if there are too few.

    Attributes:
      policy: draws the architectures; see this module.
      batch: architectures for each update.
      learning_rate: of Adam.
      baseline: "average" (moving, of the rewards) or "value" (the policy's own prediction).
      decay: of the moving average.
      entropy: weight of the entropy in the objective.
      queue, queue_weight: how many of the best so far are imitated beside, and the weight of their
        log-likelihood (priority queue training, Abolafia et al. 2018).
      steps_per_batch: gradient steps on each batch.
    """

    policy: Any = SoftmaxPolicy()
    batch: int = 10
    learning_rate: float = 1e-2
    baseline: str = "average"
    decay: float = 0.9
    entropy: float = 1e-3
    queue: int = 0
    queue_weight: float = 1.0
    steps_per_batch: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_methods(self, "policy", ("init", "sample", "evaluate"), "search.TransformerPolicy()")
        check_counts(self, "queue", least=0)
        check_counts(self, "steps_per_batch")
        check_numbers(self, "learning_rate", above=0)
        check_numbers(self, "decay", least=0, below=1)
        check_numbers(self, "entropy", "queue_weight", least=0)
        if self.baseline not in ("average", "value"):
            raise ValueError(
                f"{type(self).__name__}: baseline is {self.baseline!r}, expected 'average' or 'value'."
            )

    @property
    def plans_by_budget(self) -> bool:
        """Whether the budget decides what is drawn: the context holds how much of it is spent."""
        return not isinstance(self.policy, SoftmaxPolicy)

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`."""
        check_key("search", key)
        key, policy_key = jax.random.split(key)
        params = self.policy.init(policy_key, self.space)
        learner = Learner(params, self._optimizer().init(params), jnp.float32(0), jnp.float32(0))
        return dataclasses.replace(super().init(key), memory=learner)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, draw_key, ask_key = jax.random.split(state.key, 3)
        context = self._context(state)
        codes = jax.vmap(lambda key: self.policy.sample(state.memory.params, self.space, key, context))(
            jax.random.split(draw_key, _DRAWS * self.batch)
        )
        state = dataclasses.replace(state, key=key)
        return propose(self, state, ask_key, [(codes, self.batch)])

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """The state that knows the scores, float [batch]; see `Strategy`."""
        scores = as_told("scores", scores, (self.batch,))
        context, used = self._context(state), state.valid & jnp.isfinite(scores)
        codes = self.space.encode(archs)
        state = super().tell(state, archs, scores)
        rewards = jax.vmap(lambda score: self._reward(state, score))(scores.astype(jnp.float32))
        rewards, weights = jnp.where(used, rewards, 0), used.astype(jnp.float32)
        learner = state.memory
        keep = jnp.float32(self.decay) ** jnp.sum(weights)
        mean = jnp.sum(rewards * weights) / jnp.maximum(jnp.sum(weights), 1)
        average = keep * learner.average + (1 - keep) * mean
        weight = keep * learner.weight + (1 - keep)
        baseline = average / jnp.maximum(weight, 1e-6)
        order, usable = ranking(state)
        best = state.codes[order[: max(self.queue, 1)]]
        chosen = jnp.arange(max(self.queue, 1)) < jnp.minimum(self.queue, usable)
        evaluate = jax.vmap(self.policy.evaluate, (None, None, 0, None))
        before = evaluate(learner.params, self.space, codes, context)[0]

        def loss(params: Any) -> jax.Array:
            likelihood, entropy, value = evaluate(params, self.space, codes, context)
            against = jax.lax.stop_gradient(value) if self.baseline == "value" else baseline
            gain = self._gain(likelihood, before, rewards - against) + self.entropy * entropy
            total = -jnp.sum(gain * weights) / jnp.maximum(jnp.sum(weights), 1)
            if self.baseline == "value":
                total += 0.5 * jnp.sum(weights * jnp.square(value - rewards)) / self.batch
            if self.queue:
                imitated = evaluate(params, self.space, jnp.maximum(best, 0), context)[0]
                total -= self.queue_weight * jnp.sum(jnp.where(chosen, imitated, 0)) / self.queue
            return total

        params, opt_state = learner.params, learner.opt_state
        for _ in range(self.steps_per_batch):
            grads = jax.grad(loss)(params)
            with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
                updates, opt_state = self._optimizer().update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
        return dataclasses.replace(state, memory=Learner(params, opt_state, average, weight))

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.learning_rate))

    def _gain(self, likelihood: jax.Array, before: jax.Array, advantage: jax.Array) -> jax.Array:
        del before
        return likelihood * advantage

    def _reward(self, state: State, score: jax.Array) -> jax.Array:
        known = ~jnp.isnan(state.scores)
        one, half = jnp.float32(1), jnp.float32(0.5)
        below = jnp.where(state.scores < score, one, jnp.where(state.scores == score, half, 0))
        count = jnp.maximum(jnp.sum(known, dtype=jnp.float32), 1)
        return jnp.sum(jnp.where(known, below, 0)) / count

    def _context(self, state: State) -> jax.Array:
        """The observation: progress, and mean and spread of the last batch's rewards."""
        progress = state.size.astype(jnp.float32) / self.evaluations
        rows = jnp.arange(self.evaluations)
        last = (rows >= state.size - self.batch) & (rows < state.size) & ~jnp.isnan(state.scores)
        # Rewards are shares of all scores so far, so that the unit of the scores does not matter.
        rewards = jnp.where(last, jax.vmap(lambda s: self._reward(state, s))(state.scores), 0)
        count = jnp.maximum(jnp.sum(last, dtype=jnp.float32), 1)
        mean = jnp.sum(rewards) / count
        spread = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(rewards)) / count - mean**2, 0))
        return jnp.stack([progress, mean, spread])


@dataclasses.dataclass(frozen=True)
class PPO(Reinforce):
    """Proximal policy optimization: several clipped steps on each batch; see `Reinforce`."""

    baseline: str = "value"
    steps_per_batch: int = 4
    clip: float = 0.2  # how far from 1 the ratio of the new to the old probability counts

    def __post_init__(self):
        super().__post_init__()
        check_numbers(self, "clip", above=0)

    def _gain(self, likelihood: jax.Array, before: jax.Array, advantage: jax.Array) -> jax.Array:
        ratio = jnp.exp(likelihood - jax.lax.stop_gradient(before))
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        return jnp.minimum(ratio * advantage, clipped * advantage)
