"""Functions of TensorFlow as HLO, and models that hold their NEFFs."""
