"""The command line. Only this package knows about typer; nothing here imports torch before a command needs it."""
