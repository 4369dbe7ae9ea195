"""How a model may be divided over an instance: what each way needs and takes, before compiling."""
