"""The command line of the compiler, `neuronxcc.driver.CommandDriver`."""
