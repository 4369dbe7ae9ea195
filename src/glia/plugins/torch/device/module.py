"""When the device `neuron` is made known: where this PyTorch takes devices written in Python."""

from __future__ import annotations

import torch
from torch.utils import backend_registration

from glia.runtime.model import import_object


def register_if_possible() -> bool:
    """Make the device known; whether this PyTorch, of 2.13 or later, can have it.

    Earlier ones have the devices of torch_xla.
    """
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return False
    import_object("glia.plugins.torch.device.device_module:register")()
    return True


def autoload() -> None:
    """Make the device known when PyTorch is imported, unless there is another accelerator.

    PyTorch would take `neuron` for the accelerator to use; `import torch_neuronx` asks for it.
    """
    if torch.accelerator.current_accelerator(check_available=True) is None:
        register_if_possible()
