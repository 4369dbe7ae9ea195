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
from pytorch.gradients import assert_gradients

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

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "MPNet": {}, "Electra": {"embedding_size": 32},
    "Albert": {"embedding_size": 16}, "ConvBert": {"embedding_size": 32},
    "DebertaV2": {"relative_attention": True, "position_buckets": 8}, "RoFormer": {},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": GROUPED, "Qwen3": HEADS, "Gemma2": HEADS, "GPTNeoX": {}, "Falcon": {},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "Mamba": {"state_size": 8},
    "Mixtral": {**GROUPED, "num_local_experts": 4}, "Phi3": {**GROUPED, "pad_token_id": 0},
    "Qwen3Moe": {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Mamba2": {"state_size": 8, "head_dim": 16, "num_heads": 4, "expand": 2, "n_groups": 2,
               "chunk_size": 4},
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "ViT": IMAGE, "DeiT": IMAGE, "Dinov2": IMAGE,
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
             "num_heads": [2, 4], "window_size": 4},
    "ConvNextV2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
}  # fmt: skip

IDS = torch.arange(8).reshape(1, 8) % 90 + 3
WAVE = torch.linspace(-1, 1, 400)[None].sin()
HELD = torch.linspace(-3, 3, 2 * 5 * 8).reshape(1, 2, 5, 8)
PIXELS = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)


def config(name: str, **values: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**values)


def encoder(name: str) -> Any:
    chosen = config(name, **{**TEXT, **ENCODERS[name]})
    return transformers.AutoModel.from_config(chosen)


def decoder(name: str) -> Any:
    chosen = config(name, **{**TEXT, **DECODERS[name]}, use_cache=False)
    return transformers.AutoModelForCausalLM.from_config(chosen)


def image_model(name: str) -> Any:
    return transformers.AutoModel.from_config(config(name, **VISION[name]))


class Named(torch.nn.Module):
    """A model called with arguments by position."""

    def __init__(self, model: Any, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


class WithCache(torch.nn.Module):
    """A decoder's step: the next word's scores, and keys and values with those of one more word."""

    def __init__(self) -> None:
        super().__init__()
        chosen = config("Llama", **{**TEXT, **GROUPED})
        self.model = transformers.AutoModelForCausalLM.from_config(chosen)

    def forward(self, ids: torch.Tensor, *held: torch.Tensor) -> list[torch.Tensor]:
        cache = transformers.DynamicCache()
        for layer in range(2):
            cache.update(held[2 * layer], held[2 * layer + 1], layer)
        scores = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return [scores, *(each for layer in cache.layers for each in (layer.keys, layer.values))]


def translator() -> Any:
    chosen = config("T5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100,
                    use_cache=False)  # fmt: skip
    model = transformers.AutoModelForSeq2SeqLM.from_config(chosen)
    return Named(model, "input_ids", "decoder_input_ids")


PAIRED = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100,
    "use_cache": False, "pad_token_id": 0, "decoder_start_token_id": 2,
}  # fmt: skip


def summarizer() -> Any:
    chosen = config("Bart", **PAIRED, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    model = transformers.AutoModelForSeq2SeqLM.from_config(chosen)
    return Named(model, "input_ids", "decoder_input_ids")


def transcriber() -> Any:
    chosen = config("Whisper", **PAIRED, num_mel_bins=8, max_source_positions=16,
                    max_target_positions=64, bos_token_id=1, eos_token_id=2)  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(chosen)
    return Named(model, "input_features", "decoder_input_ids")


def listener(name: str = "Wav2Vec2") -> Any:
    rest = {key: TEXT[key] for key in TEXT if key != "max_position_embeddings"}
    chosen = config(name, **rest, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
                    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)  # fmt: skip
    return transformers.AutoModel.from_config(chosen)


def matcher() -> Any:
    text = {**TEXT, "eos_token_id": 2, "bos_token_id": 1}
    chosen = config("CLIP", text_config=text, vision_config=IMAGE, projection_dim=16)
    return Named(transformers.CLIPModel(chosen), "input_ids", "pixel_values")


MODELS: dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...]]] = {
    **{name: (lambda name=name: encoder(name), (IDS,)) for name in ENCODERS},
    **{name: (lambda name=name: decoder(name), (IDS,)) for name in DECODERS},
    **{name: (lambda name=name: image_model(name), (PIXELS,)) for name in VISION},
    "Llama with a cache": (WithCache, (IDS[:, :1], *[HELD.sin()] * 4)),
    "T5": (translator, (IDS, IDS)),
    "Bart": (summarizer, (IDS, IDS)),
    "Whisper": (transcriber, (torch.linspace(-1, 1, 256).reshape(1, 8, 32), IDS)),
    "Wav2Vec2": (listener, (WAVE,)),
    "Hubert": (lambda: listener("Hubert"), (WAVE,)),
    "CLIP": (matcher, (IDS, PIXELS)),
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


TRAINED = (
    "Bert", "Llama", "Albert", "DebertaV2", "DistilBert", "Qwen3", "Gemma2", "GPT2", "Mixtral",
    "Qwen3Moe", "Mamba", "ViT", "Swin", "ConvNextV2", "T5", "Whisper", "Wav2Vec2", "CLIP",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [each if each in TRAINED[:2] else pytest.param(each, marks=pytest.mark.nightly)
     for each in TRAINED],
)  # fmt: skip
def test_a_compiled_model_has_the_gradients_that_it_has_on_the_cpu(name: str) -> None:
    assert_gradients(*made(name))
