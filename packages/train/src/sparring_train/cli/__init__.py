"""The commands of sparring-train."""
