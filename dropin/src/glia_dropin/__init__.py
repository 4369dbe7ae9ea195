"""Re-creations of modules inside AWS's packages, implemented on glia."""
