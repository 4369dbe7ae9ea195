"""The targets that a test of programs of one core runs on: one of each generation.

Targets whose cores are alike get the same programs, as test_targets_of_a_core.py holds.
"""

CORES = ("trn1", "trn2", "trn3")
