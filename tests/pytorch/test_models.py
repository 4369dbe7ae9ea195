"""Architectures of Hugging Face, small and with random weights, compute what they do on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.plugins.torch.export import lower_exported
from glia.plugins.torch.script_module import export_flat
from glia.plugins.torch.structure import tensors_of
from glia.plugins.torch.tensors import to_numpy

TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
EXPERTS = {"experts_implementation": "batched_mm"}  # the default is no operator of PyTorch's own

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "MPNet": {}, "Electra": {"embedding_size": 32},
    "Albert": {"embedding_size": 16}, "ConvBert": {"embedding_size": 32},
    "DebertaV2": {"relative_attention": True, "position_buckets": 8}, "RoFormer": {},
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": GROUPED, "Qwen3": HEADS, "Gemma2": HEADS, "GPTNeoX": {}, "Falcon": {},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "Mamba": {"state_size": 8},
    "Mixtral": {**GROUPED, "num_local_experts": 4},
}  # fmt: skip
VISION = ("ViT", "DeiT", "Dinov2")

IDS = torch.arange(8).reshape(1, 8) % 90 + 3
PIXELS = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)


def config(name: str, **values: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**values)


def encoder(name: str) -> Any:
    chosen = config(name, **{**TEXT, **ENCODERS[name]})
    return transformers.AutoModel.from_config(chosen)


def decoder(name: str) -> Any:
    chosen = config(name, **{**TEXT, **DECODERS[name]}, use_cache=False)
    experts = EXPERTS if name == "Mixtral" else {}
    return transformers.AutoModelForCausalLM.from_config(chosen, **experts)


def image_model(name: str) -> Any:
    return transformers.AutoModel.from_config(config(name, **IMAGE))


class Named(torch.nn.Module):
    """A model called with arguments by position."""

    def __init__(self, model: Any, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


def translator() -> Any:
    chosen = config("T5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100,
                    use_cache=False)  # fmt: skip
    model = transformers.AutoModelForSeq2SeqLM.from_config(chosen)
    return Named(model, "input_ids", "decoder_input_ids")


def listener() -> Any:
    rest = {key: TEXT[key] for key in TEXT if key != "max_position_embeddings"}
    chosen = config("Wav2Vec2", **rest, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
                    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)  # fmt: skip
    return transformers.AutoModel.from_config(chosen)


MODELS: dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...]]] = {
    **{name: (lambda name=name: encoder(name), (IDS,)) for name in ENCODERS},
    **{name: (lambda name=name: decoder(name), (IDS,)) for name in DECODERS},
    **{name: (lambda name=name: image_model(name), (PIXELS,)) for name in VISION},
    "T5": (translator, (IDS, IDS)),
    "Wav2Vec2": (listener, (torch.linspace(-1, 1, 400)[None].sin(),)),
}


def made(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    return make().eval(), inputs


EVERY_RUN = ("Bert", "DebertaV2", "Llama", "Mamba", "Mixtral", "ViT", "T5", "Wav2Vec2")


@pytest.mark.parametrize(
    "name",
    [
        name if name in EVERY_RUN else pytest.param(name, marks=pytest.mark.nightly)
        for name in MODELS
    ],
)
def test_a_model_computes_what_it_does_on_the_cpu(name: str) -> None:
    model, inputs = made(name)
    with torch.no_grad():
        expected = tensors_of(model(*inputs))
    program, _ = lower_exported(export_flat(model, inputs).program)
    found = evaluate(import_hlo(program.hlo), [to_numpy(each) for each in inputs])
    assert len(found) == len(expected)
    for array, tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(array), tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_a_compiled_model_has_the_gradients_that_it_has_on_the_cpu(name: str) -> None:
    model, inputs = made(name)
    losses, gradients = [], []
    for run in (model, torch.compile(model, backend="neuron")):
        model.zero_grad()
        loss = tensors_of(run(*inputs))[0].square().mean()
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for each, gradient in gradients[1].items():  # zero where the loss does not depend on it
        expected = gradients[0].get(each, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-4)
