"""The device `neuron` of PyTorch: tensors on it, and operators that run when they are called."""
