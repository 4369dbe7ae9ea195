"""Finding where a compilation goes wrong, and a small module with which it does."""
