"""Plans and simulates how tables are shared out among ranks."""
