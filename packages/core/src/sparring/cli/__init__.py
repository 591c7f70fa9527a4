"""The command line. `main` is the program; plugins add subcommands through the commands hook."""
