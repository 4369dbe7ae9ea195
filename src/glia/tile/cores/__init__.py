"""One program for two physical cores: which part of each nest a core computes, and barriers."""
