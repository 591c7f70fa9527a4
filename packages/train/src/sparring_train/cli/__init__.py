"""The commands `sparring train` and `sparring config`."""
