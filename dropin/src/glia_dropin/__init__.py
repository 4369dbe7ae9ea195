"""What stands behind the names of AWS's packages: re-creations of their inside on glia."""
