"""Small random checkpoints of each family, made by transformers, and what transformers computes with them."""

import numpy as np

SIZES = dict(hidden_size=24, num_hidden_layers=3, intermediate_size=40)
HEADS = dict(num_attention_heads=6, num_key_value_heads=2)
DECODER = dict(**SIZES, **HEADS, vocab_size=61, max_position_embeddings=64, pad_token_id=0)
IMAGE = dict(**SIZES, num_attention_heads=3, image_size=8, patch_size=4, num_labels=7)
ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3 = dict(**ROPE, rope_theta=100.0, original_max_position_embeddings=16)
LAYER_TYPES = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
GEMMA = dict(
    **LAYER_TYPES, head_dim=8, sliding_window=4, query_pre_attn_scalar=12, final_logit_softcapping=5.0
)
QWEN = dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)
# The class of the model, and what its config has beside the sizes.
CASES = {
    "llama": ("LlamaForCausalLM", dict(head_dim=4, num_hidden_layers=2)),
    "llama3": ("LlamaForCausalLM", dict(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)),
    "mistral": ("MistralForCausalLM", dict(head_dim=8, sliding_window=5)),
    "qwen2": ("Qwen2ForCausalLM", dict(tie_word_embeddings=True, **QWEN)),
    "qwen2_heads": ("Qwen2ForCausalLM", dict(num_key_value_heads=6)),
    "qwen3": ("Qwen3ForCausalLM", dict(head_dim=8)),
    "gemma3": ("Gemma3ForCausalLM", GEMMA),
    "gemma3_one_group": ("Gemma3ForCausalLM", dict(GEMMA, num_key_value_heads=1)),
    "vit": ("ViTForImageClassification", {}),
    "deit": ("DeiTForImageClassification", dict(hidden_act="gelu_pytorch_tanh")),
    "deit_teacher": ("DeiTForImageClassificationWithTeacher", dict(qkv_bias=False, num_hidden_layers=2)),
}
IMAGES = ("vit", "deit", "deit_teacher")


def inputs_of(name):
    random = np.random.default_rng(0)
    if name in IMAGES:
        return random.normal(size=(2, 8, 8, 3)).astype(np.float32)
    return random.integers(1, 61, (2, 12)).astype(np.int32)


def make(name, folder, **options):
    """Saves a random checkpoint; returns the model of transformers."""
    import torch
    import transformers

    kind, more = CASES[name]
    model_class = getattr(transformers, kind)
    base = IMAGE if name in IMAGES else DECODER
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**{**base, **more})).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(0.3 * torch.randn_like(x))
    model.to(options.pop("dtype", torch.float32)).save_pretrained(folder, **options)
    return model


def tiny(folder):
    """A random Llama of the sizes of `DECODER`, which needs no transformers."""
    import jax

    from jaxnas import hf
    from jaxnas.hf import checkpoint, decoder_values

    values = dict(DECODER, model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=True)
    module = decoder_values.read(values)
    variables = module.init(jax.random.key(0), np.zeros((1, 2), np.int32))
    hf.save(folder, module, variables, checkpoint.Config(values, folder.parent))
    with_tokenizer(folder, "Call me whatever you like .".split())


def with_tokenizer(folder, words):
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))


def logits(model, inputs):
    import torch

    if inputs.ndim == 4:
        inputs = torch.tensor(inputs.transpose(0, 3, 1, 2))
    else:
        inputs = torch.tensor(inputs, dtype=torch.int64)
    with torch.no_grad():
        return model(inputs).logits.float().numpy()


def reloaded(folder, kind):
    """A checkpoint as transformers loads it; no weight is missing or left over."""
    import transformers

    auto = "AutoModelForCausalLM" if kind.endswith("CausalLM") else kind
    model, told = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()
