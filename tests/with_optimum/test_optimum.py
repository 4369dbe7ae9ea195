"""optimum-neuron, unmodified, exports, runs, saves and reloads models of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentence_transformers
import torch
import transformers
from sentence_transformers.models import Pooling, Transformer

from with_optimum.stand_ins import install

install()

from optimum import neuron  # noqa: E402  # looks for its packages when it is imported

TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
BLOCKS = {key: TEXT[key] for key in list(TEXT)[:4]}
IDS = torch.arange(16)[None] % 90 + 3
WORDS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
SENTENCE = {"batch_size": 1, "sequence_length": 16}
WAVE = torch.linspace(-1, 1, 400)[None].sin()
PIXELS = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
IMAGE = {"batch_size": 1, "num_channels": 3, "height": 32, "width": 32}


class Model(NamedTuple):
    """A model's class and configuration, the class that exports it, inputs and fixed sizes."""

    kind: str
    config: Any
    exporter: str
    inputs: Mapping[str, torch.Tensor]
    sizes: Mapping[str, int]


def bert() -> Any:
    return transformers.BertConfig(**TEXT)


MODELS = {
    "words": Model(
        "BertForTokenClassification", bert(), "NeuronModelForTokenClassification",
        {**WORDS, "token_type_ids": torch.zeros_like(IDS)}, SENTENCE,
    ),
    "texts": Model(
        "DistilBertForSequenceClassification",
        transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100),
        "NeuronModelForSequenceClassification", WORDS, SENTENCE,
    ),
    "answers": Model(
        "RobertaForQuestionAnswering", transformers.RobertaConfig(**TEXT),
        "NeuronModelForQuestionAnswering", WORDS, SENTENCE,
    ),
    "images": Model(
        "ViTForImageClassification", transformers.ViTConfig(**BLOCKS, image_size=32, patch_size=8),
        "NeuronModelForImageClassification", {"pixel_values": PIXELS}, IMAGE,
    ),
    "sounds": Model(
        "Wav2Vec2ForSequenceClassification",
        transformers.Wav2Vec2Config(**BLOCKS, conv_dim=(32, 32), conv_stride=(5, 2),
                                    conv_kernel=(10, 3), num_conv_pos_embeddings=16,
                                    num_conv_pos_embedding_groups=4, classifier_proj_size=16),
        "NeuronModelForAudioClassification", {"input_values": WAVE},
        {"batch_size": 1, "audio_sequence_length": 400},
    ),
}  # fmt: skip


def check(
    exporter: Any, source: Path, sizes: Mapping[str, int], agrees: Callable[[Any], None]
) -> None:
    """Export, run, save, reload and run again."""
    exported = exporter.from_pretrained(source, export=True, disable_neuron_cache=True, **sizes)
    agrees(exported)
    exported.save_pretrained(source / "neuron")
    assert (source / "neuron/model.neuron").stat().st_size > 0
    agrees(exporter.from_pretrained(source / "neuron"))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_does_on_the_cpu(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = MODELS[name]
    model = getattr(transformers, given.kind)(given.config).eval()
    model.save_pretrained(tmp_path)

    def agrees(exported: Any) -> None:
        with torch.no_grad():
            found, expected = exported(**given.inputs)[0], model(**given.inputs)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    check(getattr(neuron, given.exporter), tmp_path, given.sizes, agrees)


def test_a_model_of_sentences_computes_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.BertModel(bert()).save_pretrained(tmp_path / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(95))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    parts = Transformer(str(tmp_path / "bert")), Pooling(32)
    model = sentence_transformers.SentenceTransformer(modules=list(parts), device="cpu")
    model.save(str(tmp_path / "sentences"))

    def agrees(exported: Any) -> None:
        with torch.no_grad():
            found = exported(**WORDS).sentence_embedding
            expected = model(dict(WORDS))["sentence_embedding"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    check(neuron.NeuronSentenceTransformers, tmp_path / "sentences", SENTENCE, agrees)
